"""What the papers print, choice by choice, and where an objective leaves its own. Imports no torch."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from upweight.objective.presets import PRESETS
from upweight.objective.presets import preset as preset_of
from upweight.objective.spec import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The paper a preset is named after."""

    title: str
    """As it is cited."""

    arxiv: str
    """Its number on arXiv."""

    where: str
    """Equations and sections that hold the objective."""

    choices: Mapping[str, object]
    """Fields of `Objective` whose value the paper prints. `overlong_buffer` is 0 for none, None for some."""

    leaves_open: tuple[str, ...] = ()
    """What it does not print, or does otherwise in a way that no field expresses; a sentence each, with fields of the
    objective in braces."""


_GROUP_RELATIVE: Mapping[str, object] = {
    "adv_norm": "std",
    "baseline": "mean",
    "surrogate": "clip",
    "dual_clip": None,
    "ratio_level": "token",
    "correction": "none",
    "filter_groups": False,
    "resample": False,
    "truncated": "keep",
    "overlong_buffer": 0,
    "old_logprobs": "recompute",
}
_STD = (
    "The paper prints neither the std's degrees of freedom nor an eps: here ddof={adv_ddof}, and eps={adv_eps:g} is "
    "added to the std."
)

_GRPO = Paper(
    title="Shao et al. 2024, DeepSeekMath",
    arxiv="2402.03300",
    where="equations 3 and 4, section 4.1.2",
    choices={
        **_GROUP_RELATIVE,
        "loss_agg": "seq-mean-token-mean",
        "clip_high": None,
        "kl_coef": 0.04,
        "kl_estimator": "k3",
        "kl_grad": "naive",
        "kl_place": "loss",
    },
    leaves_open=(
        _STD,
        "The paper does not print clip's value; 0.2 is PPO's, and here it is {clip:g}.",
        "The paper's algorithm 1 moves the reference to the current policy between its iterations. Here it stays the "
        "policy that the run started from.",
    ),
)

PAPERS: Mapping[str, Paper] = {
    "grpo": _GRPO,
    "grpo-paper": _GRPO,
    "dr-grpo": Paper(
        title="Liu et al. 2025, Understanding R1-Zero-Like Training (Dr. GRPO)",
        arxiv="2503.20783",
        where="section 3.2",
        choices={
            **_GROUP_RELATIVE,
            "adv_norm": "none",
            "loss_agg": "seq-mean-token-sum-norm",
            "clip_high": None,
            "kl_coef": 0.0,
        },
        leaves_open=(
            "The paper's formula has no constant under the sum over tokens; its listing divides by the generation "
            "budget, as here. The two differ by a factor on the loss, which max_grad_norm sees and AdamW's step "
            "hardly does.",
        ),
    ),
    "dapo": Paper(
        title="Yu et al. 2025, DAPO",
        arxiv="2503.14476",
        where="equations 8 to 13",
        choices={
            **_GROUP_RELATIVE,
            "loss_agg": "group-mean-token-mean",
            "clip": 0.2,
            "clip_high": 0.28,
            "kl_coef": 0.0,
            "filter_groups": True,
            "resample": True,
            "overlong_buffer": None,
        },
        leaves_open=(
            _STD,
            "The paper's rewards are 1 and -1. With rewards of 1 and 0 the advantages are the same, and the overlong "
            "penalty of up to -1 weighs twice as much against them.",
            "The paper keeps a group by its number of right answers. Here any spread of the task reward keeps it, "
            "which is the same for two values.",
        ),
    ),
    "gspo": Paper(
        title="Zheng et al. 2025, Group Sequence Policy Optimization",
        arxiv="2507.18071",
        where="equations 5 to 7, section 5.1",
        choices={
            **_GROUP_RELATIVE,
            "ratio_level": "sequence",
            "loss_agg": "seq-mean-token-mean",
            "clip": 0.0003,
            "clip_high": 0.0004,
            "kl_coef": 0.0,
        },
        leaves_open=(
            _STD,
            "The paper splits each batch into four minibatches, as --minibatches 4 does. Its bounds were made for "
            "long answers.",
        ),
    ),
    "cispo": Paper(
        title="MiniMax 2025, MiniMax-M1 (CISPO)",
        arxiv="2506.13585",
        where="equations 4 and 5",
        choices={
            **_GROUP_RELATIVE,
            "surrogate": "cispo",
            "loss_agg": "group-mean-token-mean",
            "clip": 1.0,
            "kl_coef": 0.0,
            "filter_groups": True,
            "resample": True,
            "overlong_buffer": None,
        },
        leaves_open=(
            _STD,
            "The paper sets no lower bound in effect, which clip=1 is, and does not print the upper one: clip_high=4 "
            "is a choice made here.",
        ),
    ),
    "ppo": Paper(
        title="Schulman et al. 2017, Proximal Policy Optimization",
        arxiv="1707.06347",
        where="equations 7 and 11",
        choices={
            **_GROUP_RELATIVE,
            "baseline": "critic",
            "loss_agg": "token-mean",
            "clip": 0.2,
            "clip_high": None,
            "kl_coef": 0.0,
        },
        leaves_open=(
            "The paper trains the critic along with the policy and adds an entropy bonus (equation 9); here the "
            "value loss is the caller's, and there is no bonus.",
            "The paper takes gamma and lambda below 1; here gamma is 1 and gae_lambda={gae_lambda:g}.",
        ),
    ),
}
"""Preset -> its paper."""

_OF_THE_KL = ("kl_estimator", "kl_grad", "kl_place")


def differences(objective: Objective, preset: str) -> list[tuple[str, str]]:
    """Where an objective is not what the paper prints that its preset is named after.

    Args:
        objective: the choices.
        preset: a row of the preset table.

    Returns:
        A field and a sentence for each choice that differs, then "" and a sentence for each that the paper leaves open;
        empty for an unknown preset.

    Example:
        >>> differences(Objective(), "grpo")[0]
        ('loss_agg', 'loss_agg is token-mean; the paper has seq-mean-token-mean.')
    """
    paper = PAPERS.get(preset)
    if paper is None:
        return []
    chosen = {**dataclasses.asdict(objective), "clip_high": objective.bounds[1] - 1}
    open_choices = [text for text in paper.leaves_open if text is not _STD or objective.adv_norm != "none"]
    return [
        *_other_choices(objective, paper, punishes_length(objective, preset)),
        *(("", text.format(**chosen)) for text in open_choices),
    ]


def punishes_length(objective: Objective, preset: str) -> bool:
    """Whether there is an overlong penalty; without a number, dapo's follows the budget."""
    return preset == "dapo" if objective.overlong_buffer is None else objective.overlong_buffer > 0


def alike(objective: Objective, preset: str) -> str:
    """Which other row of the preset table somebody has typed, nearly or wholly; "" where there is none.

    Example:
        >>> alike(Objective(adv_norm="none", loss_agg="seq-mean-token-sum-norm"), "grpo")
        "These are dr-grpo's flags but for kl_coef=0.04 (dr-grpo: 0)."
    """
    distance = {name: _apart(objective, name) for name in PRESETS}
    nearest = min(distance, key=lambda name: len(distance[name]))
    apart = distance[nearest]
    if len(apart) > 2 or len(apart) >= len(distance.get(preset, PRESETS)):
        return ""
    row = preset_of(nearest)
    but = ", ".join(f"{f}={_shown(getattr(objective, f))} ({nearest}: {_shown(getattr(row, f))})" for f in apart)
    return f"These are {nearest}'s flags" + (f" but for {but}." if apart else ".")


def _apart(objective: Objective, name: str) -> list[str]:
    """Fields in which an objective differs from a row; no buffer and a buffer of 0 are the same."""
    row = preset_of(name)
    values = ((f.name, getattr(objective, f.name), getattr(row, f.name)) for f in dataclasses.fields(Objective))
    return [
        f for f, ours, theirs in values if ours != theirs and not (f == "overlong_buffer" and not ours and not theirs)
    ]


def _other_choices(objective: Objective, paper: Paper, punishes: bool) -> Iterator[tuple[str, str]]:
    unread = {*(_OF_THE_KL if objective.kl_coef == 0 else ()), *(("adv_norm",) * (objective.baseline == "critic"))}
    for name, theirs in paper.choices.items():
        ours = getattr(objective, name)
        if name == "overlong_buffer":
            if theirs is None and not punishes:
                yield name, "overlong_buffer is off; the paper punishes answers that come near the budget."
            elif theirs == 0 and punishes:
                yield name, f"overlong_buffer is {ours}; the paper has no such penalty."
        elif name == "clip_high":
            if (objective.clip if ours is None else ours) != (objective.clip if theirs is None else theirs):
                wanted = "the same bound on both sides" if theirs is None else f"{theirs:g}"
                yield name, f"clip_high is {_shown(ours)}; the paper has {wanted}."
        elif name not in unread and ours != theirs:
            yield name, f"{name} is {_shown(ours)}; the paper has {_shown(theirs)}."


def _shown(value: object) -> str:
    """As the flag takes it."""
    if value is None:
        return "off"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
