"""The importance ratio of an answer: per token, as a product, as a geometric mean."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from upweight.lab.parameters import RatioParameters
from upweight.lab.style import COLOURS, DASHES, HATCHES, MARKERS, figure
from upweight.lab.table import Report, print_report
from upweight.objective.ratio import LOG_RATIO_LIMIT, ratio_from_log, sequence_log_ratio
from upweight.objective.spec import Objective
from upweight.objective.surrogate import clip_surrogate


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioRow:
    """A batch of answers of one length and one noise."""

    sigma: float
    """Std of a token's log-ratio, nats."""

    length: int
    """Tokens of an answer."""

    clipped: float
    """Share of tokens whose ratio is outside the bounds."""

    log10_product: tuple[float, float]
    """Smallest and largest product of an answer's ratios, as its logarithm to base 10."""

    geometric: tuple[float, float]
    """Smallest and largest geometric mean of an answer's ratios."""

    answers_clipped: float
    """Share of answers whose geometric mean is outside the sequence bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioResult:
    """One row per noise and length."""

    rows: tuple[RatioRow, ...]
    """In the order given: lengths within sigma."""

    bounds: tuple[float, float]
    """Of a token's ratio."""

    sequence_bounds: tuple[float, float]
    """Of an answer's geometric mean."""


def run(parameters: RatioParameters) -> RatioResult:
    """Draw each token's log-ratio from N(0, sigma^2) and look at what becomes of an answer's ratio.

    Args:
        parameters: sigmas, lengths, number of answers, bounds, seed.

    Returns:
        Per sigma and length: the share of tokens outside the bounds (on `clip_surrogate`'s flat side for one of the
        two signs of the advantage), and the range of the product and of the geometric mean (`sequence_log_ratio`).

    Example:
        >>> row = run(RatioParameters(sigma=(0.0,), lengths=(10,), answers=2)).rows[0]
        >>> row.clipped, row.log10_product, row.geometric
        (0.0, (0.0, 0.0), (1.0, 1.0))
    """
    generator = torch.Generator().manual_seed(parameters.seed)
    bounds = Objective(clip=parameters.clip, clip_high=parameters.clip_high).bounds
    sequence_bounds = Objective(clip=parameters.sequence_clip, clip_high=parameters.sequence_clip_high).bounds
    rows = []
    for sigma, length in itertools.product(parameters.sigma, parameters.lengths):
        log_ratio = (torch.randn(parameters.answers, length, generator=generator) * sigma).double().flatten()
        seq_id = torch.arange(parameters.answers).repeat_interleave(length)
        per_answer = sequence_log_ratio(log_ratio, torch.zeros_like(log_ratio), seq_id)[::length]
        geometric = ratio_from_log(per_answer)
        log10_product = per_answer * length / math.log(10)
        rows.append(
            RatioRow(
                sigma=sigma,
                length=length,
                clipped=_outside(ratio_from_log(log_ratio), bounds),
                log10_product=(log10_product.min().item(), log10_product.max().item()),
                geometric=(geometric.min().item(), geometric.max().item()),
                answers_clipped=_outside(geometric, sequence_bounds),
            )
        )
    return RatioResult(rows=tuple(rows), bounds=bounds, sequence_bounds=sequence_bounds)


def _outside(ratio: Tensor, bounds: tuple[float, float]) -> float:
    """Share of ratios at which the clipped surrogate is flat for one of the two signs of the advantage."""
    low, high = bounds
    good = clip_surrogate(ratio, torch.ones_like(ratio), low=low, high=high)
    bad = clip_surrogate(ratio, -torch.ones_like(ratio), low=low, high=high)
    return (good.above | bad.below).double().mean().item()


def as_json(result: RatioResult) -> dict[str, Any]:
    """`{"rows": [{"sigma", "length", "clipped", "product": [min, max], "geometric": [min, max]}]}`.

    A product beyond what a float holds is null.
    """
    rows = [
        {
            "sigma": row.sigma,
            "length": row.length,
            "clipped": row.clipped,
            "product": [_power_of_ten(value) for value in row.log10_product],
            "geometric": list(row.geometric),
        }
        for row in result.rows
    ]
    return {"rows": rows}


def _power_of_ten(exponent: float) -> float | None:
    try:
        return math.pow(10.0, exponent)
    except OverflowError:
        return None


def show(result: RatioResult, console: Console) -> None:
    """Print the table and what it shows."""
    low, high = result.bounds
    seq_low, seq_high = result.sequence_bounds
    columns = ("sigma", "length", "tokens out", "product", "geometric mean", "answers out")
    rows = tuple(
        (
            f"{row.sigma:g}",
            str(row.length),
            f"{row.clipped:.1%}",
            f"[{_scientific(row.log10_product[0])}, {_scientific(row.log10_product[1])}]",
            f"[{row.geometric[0]:.4f}, {row.geometric[1]:.4f}]",
            f"{row.answers_clipped:.1%}",
        )
        for row in result.rows
    )
    title = (
        "importance ratios of tokens whose log-ratio is N(0, sigma^2), and of answers made of them\n"
        f"out: a token's ratio outside [{low:g}, {high:g}], an answer's geometric mean outside "
        f"[{seq_low:g}, {seq_high:g}]"
    )
    print_report(Report(title=title, columns=columns, rows=rows, sentences=_sentences(result)), console)


def _sentences(result: RatioResult) -> tuple[str, ...]:
    widest = max(result.rows, key=lambda row: row.log10_product[1] - row.log10_product[0])
    span = widest.log10_product[1] - widest.log10_product[0]
    least, most = widest.geometric
    return (
        "The share of tokens outside the bounds depends on the noise and not on the length. Training flattens about "
        "half of them: those above for a positive advantage, those below for a negative one.",
        f"At {widest.length} tokens and sigma {widest.sigma:g} the product spans {span:.0f} orders of magnitude (a "
        f"correction per sequence clamps it to e^+-{LOG_RATIO_LIMIT:g}), the geometric mean stays within "
        f"[{least:.4f}, {most:.4f}].",
    )


def _scientific(log10: float) -> str:
    """A number as `5e+22`, also where no float holds it."""
    exponent = math.floor(log10)
    digit = round(10 ** (log10 - exponent))
    if digit == 10:
        digit, exponent = 1, exponent + 1
    return f"{digit}e{exponent:+03d}"


def draw(result: RatioResult) -> Figure:
    """Left the share of tokens outside the bounds, right the ranges of product and geometric mean."""

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        for place, (sigma, rows) in enumerate(_by_sigma(result)):
            left.plot(
                [row.length for row in rows], [100 * row.clipped for row in rows],
                DASHES[place % 4], marker=MARKERS[place % 4], color=COLOURS[place % 3], label=f"sigma {sigma:g}",
            )  # fmt: skip
        low, high = result.bounds
        left.set(
            xlabel="tokens of an answer", ylabel=f"tokens outside [{low:g}, {high:g}] (%)", title="ratio per token"
        )
        left.set_ylim(bottom=-1)
        left.legend()
        noisiest = max(_by_sigma(result), key=lambda item: item[0])
        _ranges(right, noisiest[1])
        right.set(title=f"ratio per answer, sigma {noisiest[0]:g}")

    return figure(fill)


def panel(axes: Any, result: RatioResult) -> None:
    """The ranges of product and geometric mean at the largest sigma."""
    _ranges(axes, max(_by_sigma(result), key=lambda item: item[0])[1])


def _by_sigma(result: RatioResult) -> list[tuple[float, list[RatioRow]]]:
    rows = sorted(result.rows, key=lambda row: (row.sigma, row.length))
    return [(sigma, list(group)) for sigma, group in itertools.groupby(rows, lambda row: row.sigma)]


def _ranges(axes: Any, rows: list[RatioRow]) -> None:
    """Bars from the smallest to the largest ratio of an answer, on a scale of powers of ten."""
    places = range(len(rows))
    products = [row.log10_product for row in rows]
    means = [(math.log10(row.geometric[0]), math.log10(row.geometric[1])) for row in rows]
    for name, ranges, offset, style in (("product", products, -0.2, 1), ("geometric mean", means, 0.2, 0)):
        # A range too small to see keeps the width of a line.
        heights = [max(high - low, 0.4) for low, high in ranges]
        bottoms = [(high + low) / 2 - height / 2 for (low, high), height in zip(ranges, heights, strict=True)]
        axes.bar(
            [place + offset for place in places], heights, 0.36, bottom=bottoms, label=name,
            color=COLOURS[style], hatch=HATCHES[style], edgecolor="white",
        )  # fmt: skip
    for place, row in zip(places, rows, strict=True):
        low, high = row.log10_product
        axes.annotate(_scientific(high), (place - 0.2, high), (0, 3), textcoords="offset points", ha="center", size=8)
        axes.annotate(
            _scientific(low), (place - 0.2, low), (0, -3), textcoords="offset points", ha="center", va="top", size=8
        )
    axes.set_xticks(places, [str(row.length) for row in rows])
    axes.set(xlabel="tokens of an answer", ylabel="log10 of the answer's ratio, min to max")
    lowest, highest = min(low for low, _ in products), max(high for _, high in products)
    room = 0.12 * (highest - lowest) + 0.5
    axes.set_ylim(lowest - room, highest + room)
    axes.legend(loc="upper left")
