"""The objective in readable mathematics: what a set of flags means. Imports no torch."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upweight.objective.papers import PAPERS, Paper, alike
from upweight.objective.remarks import remarks
from upweight.objective.spec import Objective
from upweight.report import parts, parts_of_policies
from upweight.report.records import Formula, Part, Run, latex_number, math, number


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """An objective, part by part, and what is worth knowing about it."""

    name: str
    """The preset, or the trainer whose conventions it follows."""

    objective: Objective
    """The choices."""

    paper: Paper | None
    """The paper the preset is named after."""

    alike: str
    """Which other preset's flags these nearly are; "" for none."""

    loss: Formula
    """L, minimised."""

    parts: tuple[Part, ...]
    """What its symbols stand for, in the order in which they are made."""

    translation: tuple[str, ...]
    """How another trainer's settings became this objective."""

    unmatched: tuple[str, ...]
    """Which of them cannot be matched."""

    no_effect: tuple[str, ...]
    """Choices that do nothing in this combination."""

    biases: tuple[str, ...]
    """What the objective favours beside the reward."""

    differences: tuple[str, ...]
    """Where it is not what the paper prints."""

    contradictions: tuple[str, ...]
    """Why `upweight train` refuses it."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain lists and mappings."""
        return {
            "name": self.name,
            "paper": self.paper and {"title": self.paper.title, "arxiv": self.paper.arxiv, "where": self.paper.where},
            "alike": self.alike,
            "flags": dataclasses.asdict(self.objective),
            "loss": dataclasses.asdict(self.loss),
            "parts": {
                part.name: {
                    "formulas": [dataclasses.asdict(formula) for formula in part.formulas],
                    "says": list(part.says),
                    "facts": dict(part.facts),
                }
                for part in self.parts
            },
            **{name: list(sentences) for name, sentences in self.lists().items()},
        }

    def lists(self) -> Mapping[str, Sequence[str]]:
        """The lists of sentences, by the name of their field."""
        names = ("translation", "unmatched", "no_effect", "biases", "differences", "contradictions")
        return {name: getattr(self, name) for name in names}


def explain(
    objective: Objective,
    run: Run,
    *,
    preset: str = "",
    name: str = "",
    translation: Sequence[str] = (),
    unmatched: Sequence[str] = (),
    contradictions: Sequence[str] = (),
) -> Explanation:
    """Put an objective into formulas and words.

    Args:
        objective: the choices; each of a right type and in its range. They may contradict each other.
        run: what else decides what they mean.
        preset: the row of the preset table they started from; "" for none.
        name: what to call it, where that is not the preset.
        translation: how another trainer's settings became it.
        unmatched: which of those cannot be matched.
        contradictions: why training refuses it.

    Returns:
        Its parts in the order in which they are made, and the lists of what is worth knowing.

    Example:
        >>> explain(Objective(kl_coef=0.0), Run(), preset="grpo").loss.plain
        'L = - sum_t w_t f_t'
    """
    found = remarks(objective, updates_per_step=run.updates, group_size=run.group_size, preset=preset)
    texts = {kind: tuple(r.text for r in found if r.kind == kind) for kind in ("no effect", "bias", "paper")}
    return Explanation(
        name=name or preset,
        objective=objective,
        paper=PAPERS.get(preset),
        alike=alike(objective, preset) if preset else "",
        loss=_loss(objective),
        parts=tuple(
            make(objective, run)
            for make in (
                parts.reward,
                parts.advantage,
                parts.weight,
                parts.ratio,
                parts.surrogate,
                parts_of_policies.correction,
                parts_of_policies.kl,
                parts_of_policies.left_out,
            )
        ),
        translation=tuple(translation),
        unmatched=tuple(unmatched),
        no_effect=texts["no effect"],
        biases=texts["bias"],
        differences=texts["paper"],
        contradictions=tuple(contradictions),
    )


def _loss(o: Objective) -> Formula:
    plain, latex = "w_t f_t", "w_t f_t"
    if o.correction != "none":
        plain, latex = "w_t c_t f_t", "w_t c_t f_t"
    plain, latex = f"L = - sum_t {plain}", rf"L = -\sum_t {latex}"
    if o.kl_coef > 0 and o.kl_place == "loss":
        plain, latex = (
            f"{plain} + {number(o.kl_coef)} sum_t w_t k_t",
            (rf"{latex} + {latex_number(o.kl_coef)} \sum_t w_t k_t"),
        )
    return math(plain, latex)
