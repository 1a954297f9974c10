"""A sampler that is not quite the trainer: IS, TIS and MIS at every level and cap. Exact."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from upweight.lab.small_world.estimate import Source, answer_gradients, distance, expected_gradient, noise
from upweight.lab.small_world.world import World, expected, gradient_of_expected
from upweight.lab.table import Report
from upweight.objective.correction import correction_terms
from upweight.objective.spec import Correction, CorrectionLevel, Objective

LEVELS: tuple[CorrectionLevel, ...] = get_args(CorrectionLevel)
"""Per token, the product over an answer, its geometric mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerRow:
    """One correction at one level and cap."""

    kind: str
    """"none", "is", "tis" or "mis"."""

    level: str | None
    """"token", "sequence" or "geometric"; None without a correction."""

    cap: float | None
    """Of tis and mis."""

    bias: float
    """Distance of the expected gradient from the true one, as a multiple of its length."""

    noise: float
    """Std of the estimate from one answer per prompt, as a multiple of the true gradient's length."""

    touched: float
    """Probability that the cap changes a token: cut down by tis, dropped by mis."""

    def error(self, answers: int) -> float:
        """Root of the mean squared error of a batch with this many answers per prompt."""
        return math.sqrt(self.bias**2 + self.noise**2 / answers)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerResult:
    """Every correction."""

    rows: tuple[SamplerRow, ...]
    """None and is first, then caps within levels within kinds."""

    answers: int
    """Answers per prompt of the batch whose error is shown."""

    ratio: tuple[float, float]
    """Smallest and largest pi / mu of a token."""

    product: tuple[float, float]
    """Smallest and largest pi / mu of an answer."""

    length: int
    """Tokens of the longest answer."""


def run(world: World, sampler: Tensor, caps: Sequence[float], answers: int) -> SamplerResult:
    """Compare each correction's expected gradient under the sampler's answers with the true gradient.

    The advantage is the reward minus the prompt's expected reward under the sampler: what leave-one-out gives in
    expectation.

    Args:
        world: prompts and the trainer's policy.
        sampler: [P, S, V] logits of the sampler.
        caps: of tis and mis.
        answers: per prompt, of the batch whose error is computed.
    """
    true = gradient_of_expected(world, world.reward)
    source = Source(
        probabilities=world.probabilities(sampler),
        advantages=world.reward - expected(world, world.reward, sampler)[:, None],
        sampler=world.logprobs(sampler),
    )
    choices: list[tuple[Correction, CorrectionLevel | None, float | None]] = [("none", None, None)]
    choices += [("is", level, None) for level in LEVELS]
    kinds: tuple[Correction, ...] = ("tis", "mis")
    choices += [(kind, level, cap) for kind in kinds for level in LEVELS for cap in caps]
    rows = tuple(_row(world, source, true, *choice) for choice in choices)
    token = (world.logprobs() - world.logprobs(sampler)).exp()
    product = world.probabilities() / source.probabilities
    return SamplerResult(
        rows=rows,
        answers=answers,
        ratio=(token.min().item(), token.max().item()),
        product=(product.min().item(), product.max().item()),
        length=int(world.answers.length.max()),
    )


def _row(
    world: World, source: Source, true: Tensor, kind: Correction, level: CorrectionLevel | None, cap: float | None
) -> SamplerRow:
    objective = Objective(
        surrogate="none",
        kl_coef=0.0,
        correction=kind,
        correction_level=level or "token",
        correction_cap=2.0 if cap is None else cap,
    )
    mean = expected_gradient(world, objective, source)
    each = answer_gradients(world, objective, source)
    return SamplerRow(
        kind=kind,
        level=level,
        cap=cap,
        bias=distance(mean, true),
        noise=noise(each, source.probabilities) / true.norm().item(),
        touched=0.0 if cap is None else _touched(world, source, objective),
    )


def _touched(world: World, source: Source, objective: Objective) -> float:
    weights = [
        correction_terms(
            world.logprobs(), source.sampler, world.seq_id,
            kind=kind, level=objective.correction_level, cap=objective.correction_cap,
        ).weight
        for kind in ("is", objective.correction)
    ]  # fmt: skip
    share = source.probabilities.flatten()[world.seq_id]
    return (share[weights[0] != weights[1]].sum() / share.sum()).item()


def report(result: SamplerResult) -> Report:
    """The table of all corrections."""
    columns = ("correction", "level", "cap", "bias", "noise", f"error at {result.answers} answers", "tokens touched")
    rows = tuple(
        (
            row.kind, row.level or "", "" if row.cap is None else f"{row.cap:g}",
            "0" if row.bias < 1e-10 else f"{row.bias:.2%}", f"{row.noise:.3f}", f"{row.error(result.answers):.2%}",
            "" if row.cap is None else f"{row.touched:.1%}",
        )
        for row in result.rows
    )  # fmt: skip
    title = (
        f"sampler against trainer: pi / mu of a token in [{result.ratio[0]:.2f}, {result.ratio[1]:.2f}], of an answer "
        f"in [{result.product[0]:.2f}, {result.product[1]:.2f}]; bias, std from one answer per prompt, and error of a "
        f"batch of {result.answers} answers per prompt, as a share of the true gradient's length"
    )
    return Report(title=title, columns=columns, rows=rows, sentences=sentences(result), left=(0, 1))


def sentences(result: SamplerResult) -> tuple[str, ...]:
    """What the numbers show."""
    none = result.rows[0]
    exact = [row for row in result.rows if row.kind == "is"]
    unbiased = " and ".join(_NAMES[row.level] for row in exact if row.bias < 1e-10)
    biased = ", ".join(f"by {row.bias:.1%} {_NAMES[row.level]}" for row in exact if row.bias >= 1e-10)
    best = min(result.rows, key=lambda row: row.error(result.answers))
    product = next(row for row in exact if row.level == "sequence")
    return (
        f"Without a correction the gradient is off by {none.bias:.1%}. Importance sampling is unbiased "
        f"{unbiased or 'at no level'}" + (f", and off {biased}" if biased else "") + f"; the longest answer has "
        f"{result.length} token{'s' if result.length > 1 else ''}.",
        f"With {result.answers} answers per prompt the smallest error is {best.error(result.answers):.1%}, of "
        f"{_name(best)}; without a correction it is {none.error(result.answers):.1%}, with the exact weight of a whole "
        f"answer {product.error(result.answers):.1%}.",
    )


_NAMES = {"token": "per token", "sequence": "per sequence", "geometric": "by geometric mean", None: ""}


def _name(row: SamplerRow) -> str:
    if row.level is None:
        return "no correction"
    return f"{row.kind} {_NAMES[row.level]}" + ("" if row.cap is None else f" at cap {row.cap:g}")
