"""The picture of a run: reward, held-out accuracy and the policy's state over the steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from upweight.train.saving.folder import read_rows


def draw_curve(folder: Path) -> Path:
    """Draw RUN/curve.png from metrics.jsonl and evaluations.jsonl.

    Left: mean reward of the sampled answers, informative groups, held-out greedy accuracy with its 95% interval.
    Right: entropy, and the KL to the reference where there is one.
    """
    from matplotlib.figure import Figure

    metrics = read_rows(folder / "metrics.jsonl")
    evaluations = [row for row in read_rows(folder / "evaluations.jsonl") if row["accuracy"] is not None]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _line(left, metrics, "reward", "reward (sampled)", "-")
    _line(left, metrics, "informative", "informative groups", ":")
    if evaluations:
        steps = [row["step"] for row in evaluations]
        values = [row["accuracy"] for row in evaluations]
        below = [max(0.0, row["accuracy"] - _or(row.get("low"), row["accuracy"])) for row in evaluations]
        above = [max(0.0, _or(row.get("high"), row["accuracy"]) - row["accuracy"]) for row in evaluations]
        left.errorbar(
            steps, values, yerr=[below, above], fmt="o", capsize=3, label="held-out accuracy (greedy)", color="black"
        )
    left.set(xlabel="step", ylim=(-0.02, 1.02), title="reward and accuracy")
    _line(right, metrics, "entropy", "entropy (nats per token)", "-")
    _line(right, metrics, "kl", "KL to the reference (nats per token)", "--")
    right.set(xlabel="step", title="the policy")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False)
    target = folder / "curve.png"
    figure.savefig(target, dpi=120)
    return target


def _line(axes: Any, rows: Sequence[Mapping[str, Any]], key: str, label: str, style: str) -> None:
    points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), style, label=label)


def _or(value: float | None, default: float) -> float:
    """A bound that a row may lack, where somebody has edited it."""
    return default if value is None else value
