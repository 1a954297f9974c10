"""How every figure of the laboratory looks: labels, hatches and dashes that survive a print in grey."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

COLOURS = ("#0b3c5d", "#d1741c", "#7fae93", "#555555")
"""Colour of each series; dashes, hatches and markers tell them apart where colours do not."""

HATCHES = ("", "//", "..", "xx")
"""Pattern of the bars of each series."""

DASHES = ("-", "--", ":", "-.")
"""Pattern of the line of each series."""

MARKERS = ("o", "s", "^", "D")
"""Marker of each series."""

MOST_NUMBERS = 24
"""Bars of an axes that get their numbers; more would run into each other."""

_RC = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "upweight",
}


def figure(draw: Callable[[Figure], None], *, width: float = 10.0, height: float = 4.0) -> Figure:
    """A figure in the laboratory's style.

    Args:
        draw: fills it.
        width: inches.
        height: inches.
    """
    with matplotlib.rc_context(_RC):
        made = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
        draw(made)
    return made


def save(made: Figure, target: Path) -> None:
    """Write a figure as .svg or .png; the same figure gives the same file."""
    with matplotlib.rc_context(_RC):
        metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
        made.savefig(target, dpi=150, metadata=metadata)


def grouped_bars(
    axes: Any, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], number: str, *, size: float = 8.0
) -> None:
    """Bars side by side, each with its number where there is room, with a pattern of its own per series.

    Args:
        axes: where.
        groups: label of each group of bars.
        series: (name, a value per group).
        number: format of the numbers, such as "+.2f".
        size: points of the numbers.
    """
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series):
        left = [index + (place - (len(series) - 1) / 2) * width for index in range(len(groups))]
        bars = axes.bar(
            left, values, width, label=name, color=COLOURS[place % 4], hatch=HATCHES[place % 4], edgecolor="white"
        )
        if len(groups) * len(series) <= MOST_NUMBERS:
            axes.bar_label(bars, labels=[format(value, number) for value in values], padding=2, fontsize=size)
    axes.set_xticks(range(len(groups)), groups, fontsize=10 if len(groups) <= MOST_NUMBERS else 6)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(y=0.15)


def outside_legend(axes: Any, *, columns: int = 2) -> None:
    """The legend below the axes, where it covers nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns)
