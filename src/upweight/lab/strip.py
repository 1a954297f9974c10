"""The story in one figure of six panels: from PPO to GRPO, averaging, KL, ratio, clipping, mismatch."""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from upweight.lab import kl, mismatch, ratio, weights
from upweight.lab.parameters import (
    KLParameters,
    MismatchParameters,
    RatioParameters,
    StripParameters,
    WeightsParameters,
)
from upweight.lab.style import COLOURS, DASHES, HATCHES, figure
from upweight.lab.table import Report, print_report
from upweight.objective.advantage import group_advantages
from upweight.objective.presets import preset
from upweight.objective.surrogate import clip_surrogate

GROUP = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
"""Rewards of the group in the first panel."""

PANELS = {
    "from PPO to GRPO": "the group's mean replaces the critic: above it an answer is pushed up, below it down",
    "averaging": "per answer, a token of a long answer hardly counts; over all tokens, each counts alike",
    "KL": "k1 may be negative, k2 is biased, k3 is neither",
    "ratio": "the product explodes with the length, the geometric mean stays near 1",
    "clipping": "beyond a bound the objective is flat; Clip-Higher moves the upper one",
    "mismatch": "importance sampling removes the bias and adds noise; tis and mis trade the two",
}
"""Title of each panel, and what it shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StripResult:
    """The experiments behind the panels."""

    advantages: tuple[float, ...]
    """Of the first panel's group."""

    weights: weights.WeightsResult
    """Second panel."""

    kl: kl.KLResult
    """Third panel."""

    ratio: ratio.RatioResult
    """Fourth panel."""

    mismatch: mismatch.MismatchResult
    """Sixth panel."""


def run(parameters: StripParameters) -> StripResult:
    """Run what the panels show, each experiment at its defaults.

    Args:
        parameters: the seed.
    """
    return StripResult(
        advantages=tuple(group_advantages(torch.tensor(GROUP)).tolist()),
        weights=weights.run(WeightsParameters()),
        kl=kl.run(KLParameters(seed=parameters.seed)),
        ratio=ratio.run(RatioParameters(seed=parameters.seed)),
        mismatch=mismatch.run(MismatchParameters(seed=parameters.seed)),
    )


def as_json(result: StripResult) -> dict[str, Any]:
    """`{"panels": [{"title", "shows"}], "advantages", "weights", "kl", "ratio", "mismatch"}`."""
    return {
        "panels": [{"title": title, "shows": shows} for title, shows in PANELS.items()],
        "advantages": list(result.advantages),
        "weights": weights.as_json(result.weights),
        "kl": kl.as_json(result.kl),
        "ratio": ratio.as_json(result.ratio),
        "mismatch": mismatch.as_json(result.mismatch),
    }


def show(result: StripResult, console: Console) -> None:
    """Print what each panel shows."""
    rows = tuple((str(place), title, shows) for place, (title, shows) in enumerate(PANELS.items(), start=1))
    sentences = ("`upweight lab` lists the experiments behind them.",)
    columns = ("panel", "title", "what it shows")
    print_report(Report(title="six panels", columns=columns, rows=rows, sentences=sentences, left=(1, 2)), console)


def draw(result: StripResult) -> Figure:
    """Two rows of three panels."""

    def fill(made: Figure) -> None:
        panels = made.subplots(2, 3).flatten()
        _group(panels[0], result.advantages)
        weights.panel(panels[1], result.weights)
        kl.panel(panels[2], result.kl)
        ratio.panel(panels[3], result.ratio)
        _clipping(panels[4])
        mismatch.panel(panels[5], result.mismatch)
        for place, (axes, title) in enumerate(zip(panels, PANELS, strict=True), start=1):
            axes.set_title(f"{place}  {title}", loc="left", fontweight="bold")

    return figure(fill, width=15.0, height=8.6)


def _group(axes: Any, advantages: tuple[float, ...]) -> None:
    """Rewards around their mean, with the advantage that follows."""
    mean = sum(GROUP) / len(GROUP)
    for place, (reward, advantage) in enumerate(zip(GROUP, advantages, strict=True)):
        style = 0 if advantage > 0 else 1
        axes.bar(
            place, reward - mean, 0.7, bottom=mean, color=COLOURS[style], hatch=HATCHES[style], edgecolor="white",
            label=("pushed up", "pushed down")[style] if place < 2 else None,
        )  # fmt: skip
        above = advantage > 0
        axes.annotate(
            f"{advantage:+.2f}", (place, reward), (0, 3 if above else -3), textcoords="offset points", ha="center",
            va="bottom" if above else "top", size=8,
        )  # fmt: skip
    axes.axhline(mean, color="black", linestyle="--", linewidth=1, label=f"group mean {mean:.3f}: the baseline")
    axes.set_xticks(range(len(GROUP)), [f"{place + 1}" for place in range(len(GROUP))])
    axes.set(xlabel="answer to one prompt", ylabel="reward (number: advantage)", ylim=(-0.2, 1.55))
    axes.legend(loc="upper center", ncols=2)


def _clipping(axes: Any) -> None:
    """The clipped surrogate against the ratio, for both signs of the advantage and two upper bounds."""
    values = torch.linspace(0.4, 1.8, 281)
    for place, (name, sign) in enumerate((("grpo", 1.0), ("dapo", 1.0), ("grpo", -1.0))):
        low, high = preset(name).bounds
        terms = clip_surrogate(values, torch.full_like(values, sign), low=low, high=high)
        bound = f"upper bound {high:g}" if sign > 0 else f"lower bound {low:g}"
        axes.plot(
            values.tolist(), terms.value.tolist(), DASHES[place], color=COLOURS[place], linewidth=2,
            label=f"A = {sign:+.0f}, {bound}",
        )  # fmt: skip
    axes.plot([1, 1], [1, -1], "o", color="black", markersize=5, label="before the update")
    axes.axhline(0, color="black", linewidth=0.7)
    axes.set(xlabel="importance ratio of a token", ylabel="objective (to be maximised)")
    axes.legend(loc="lower left")
