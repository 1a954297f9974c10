"""Clip-Higher: how far one update may raise a rare token and a likely one."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from upweight.lab.parameters import ClipHigherParameters
from upweight.lab.style import COLOURS, DASHES, MARKERS, figure
from upweight.lab.table import Report, print_report
from upweight.objective.spec import Objective
from upweight.objective.surrogate import clip_surrogate


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipHigherRow:
    """A token with a positive advantage under one upper bound."""

    probability: float
    """Under the old policy."""

    clip_high: float
    """The bound: ratios above 1 + clip_high are on the flat side."""

    after_one_update: float
    """Where the push ends: probability x (1 + clip_high), and never above 1."""

    limited: bool
    """Whether the bound, and not certainty, is what ends it."""

    updates_to_half: int | None
    """Updates, each up to the bound, until the token has probability 0.5; None where it never gets there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipHigherResult:
    """One row per probability and bound."""

    rows: tuple[ClipHigherRow, ...]
    """In the order given: bounds within probabilities."""

    updates: int
    """Updates that the figure follows."""


def run(parameters: ClipHigherParameters) -> ClipHigherResult:
    """Ask `clip_surrogate` until which probability a token with a positive advantage is pushed.

    The bound ends the push, it does not forbid the step: a large step may overshoot it.

    Args:
        parameters: old probabilities and upper bounds.

    Returns:
        Per probability and bound: where the push ends, and whether the bound is what ends it.

    Example:
        >>> row = run(ClipHigherParameters(probabilities=(0.01,), clip_high=(0.28,))).rows[0]
        >>> row.after_one_update, row.limited
        (0.0128, True)
    """
    rows = []
    for probability, clip_high in itertools.product(parameters.probabilities, parameters.clip_high):
        low, high = Objective(clip_high=clip_high).bounds
        certain = torch.tensor([1 / probability], dtype=torch.float64)
        # Were the token certain, its ratio would be 1 / p: is the surrogate flat there already?
        limited = bool(clip_surrogate(certain, torch.ones_like(certain), low=low, high=high).above)
        rows.append(
            ClipHigherRow(
                probability=probability,
                clip_high=clip_high,
                after_one_update=_after(probability, high, 1),
                limited=limited,
                updates_to_half=_updates_to(0.5, probability, high),
            )
        )
    return ClipHigherResult(rows=tuple(rows), updates=parameters.updates)


def _after(probability: float, high: float, updates: int) -> float:
    """The probability after some updates up to the bound."""
    # In logarithms: a thousand updates would overflow.
    return min(1.0, probability * high) if updates == 1 else math.exp(min(0.0, _log_after(probability, high, updates)))


def _log_after(probability: float, high: float, updates: int) -> float:
    return math.log(probability) + updates * math.log(high)


def _updates_to(target: float, probability: float, high: float) -> int | None:
    if probability >= target:
        return 0
    if high == 1:
        return None
    return math.ceil(math.log(target / probability) / math.log(high))


def as_json(result: ClipHigherResult) -> dict[str, Any]:
    """`{"rows": [{"probability", "clip_high", "after_one_update", "limited"}]}`."""
    rows = [
        {
            "probability": row.probability,
            "clip_high": row.clip_high,
            "after_one_update": row.after_one_update,
            "limited": row.limited,
        }
        for row in result.rows
    ]
    return {"rows": rows}


def show(result: ClipHigherResult, console: Console) -> None:
    """Print the table and what it shows."""
    rows = tuple(
        (
            f"{row.probability:g}",
            f"{row.clip_high:g}",
            f"{row.probability * Objective(clip_high=row.clip_high).bounds[1]:.4g}",
            f"{row.after_one_update:.4g}",
            "yes" if row.limited else "no",
            "never" if row.updates_to_half is None else str(row.updates_to_half),
        )
        for row in result.rows
    )
    sentences = (
        "The bound limits the relative change: a rare token gains little in absolute terms however good it was, a "
        "likely one reaches certainty unhindered. So the policy sharpens and its entropy falls; a wider upper bound "
        "lets rare good tokens rise faster.",
    )
    title = "how far one update pushes a token with a positive advantage"
    columns = ("old probability", "clip_high", "bound", "after one update", "limited", "updates to 0.5")
    print_report(Report(title=title, columns=columns, rows=rows, sentences=sentences), console)


def draw(result: ClipHigherResult) -> Figure:
    """Probability against updates, each of them up to the bound."""

    def fill(made: Figure) -> None:
        axes = made.subplots()
        bounds = sorted({row.clip_high for row in result.rows})
        tokens = sorted({row.probability for row in result.rows})
        step = max(1, result.updates // 10)
        for row in result.rows:
            token, bound = tokens.index(row.probability), bounds.index(row.clip_high)
            high = Objective(clip_high=row.clip_high).bounds[1]
            axes.plot(
                range(result.updates + 1),
                [_after(row.probability, high, updates) for updates in range(result.updates + 1)],
                DASHES[bound % 4], color=COLOURS[token % 3], marker=MARKERS[token % 4], markevery=step,
                label=f"from {row.probability:g}, clip_high {row.clip_high:g}",
            )  # fmt: skip
        axes.set(xlabel="updates, each up to the bound", ylabel="probability (log scale)", yscale="log")
        axes.set(title="the fastest that a token with a positive advantage can rise")
        axes.legend(loc="lower right")

    return figure(fill, width=7.5)
