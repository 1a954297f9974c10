"""The five figures of the small world."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from upweight.lab.small_world.advantages import AdvantageResult
from upweight.lab.small_world.averaging import AveragingResult
from upweight.lab.small_world.divergence import KLTruth
from upweight.lab.small_world.sampler import SamplerResult
from upweight.lab.small_world.staleness import RATIOS, StaleResult
from upweight.lab.style import COLOURS, DASHES, MARKERS, figure, grouped_bars
from upweight.objective.weights import MODES

SHOWN = (("std", "mean"), ("std", "leave-one-out"), ("batch", "mean"), ("none", "mean"))
"""Advantages in the figure; the two left out have the shape of the last two."""


def draw_all(
    advantages: AdvantageResult, averaging: AveragingResult, kl: KLTruth, stale: StaleResult, sampler: SamplerResult
) -> Mapping[str, Figure]:
    """Name -> figure."""
    return {
        "advantages": draw_advantages(advantages),
        "averaging": draw_averaging(averaging),
        "kl": draw_kl(kl),
        "staleness": draw_staleness(stale),
        "sampler": draw_sampler(sampler),
    }


def _line(axes: Any, place: int, x: Sequence[float], y: Sequence[float], label: str) -> None:
    axes.plot(
        x, y, DASHES[place], marker=MARKERS[place], color=COLOURS[place], linewidth=1.8, markersize=5, label=label
    )  # fmt: skip


def _sizes(axes: Any, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="group size G (log scale)", ylabel="degrees from the true gradient", title="direction")


def draw_advantages(result: AdvantageResult) -> Figure:
    """Left the weight of each prompt with what was sampled, right the direction by group size."""
    largest = max(row.group_size for row in result.rows)
    sizes = sorted({row.group_size for row in result.rows})
    by = {(row.scale, row.baseline, row.group_size): row for row in result.rows}
    order = sorted(range(len(result.difficulties)), key=lambda prompt: result.difficulties[prompt])
    share = [result.difficulties[prompt] for prompt in order]

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        for place, (scale, baseline) in enumerate(SHOWN):
            name = f"{scale}, {baseline}"
            row = by[scale, baseline, largest]
            _line(left, place, share, [row.weight[prompt] for prompt in order], name)
            sampled = [row.sampled[prompt] for prompt in order]
            left.errorbar(share, [item.mean for item in sampled], [item.half for item in sampled], fmt="none",
                          ecolor=COLOURS[place], capsize=3, linewidth=1)  # fmt: skip
            _line(right, place, sizes, [by[scale, baseline, size].angle for size in sizes], name)
        left.set(xlabel="probability that the prompt is answered right", ylabel="expected / true gradient")
        left.set(title=f"weight of a prompt at G={largest} (bars: sampled, 95%)", xlim=(-0.03, 1.03), ylim=(0, None))
        left.legend(title="scale, baseline", loc="upper center")
        _sizes(right, sizes)
        right.legend(title="scale, baseline", loc="upper left")

    return figure(fill)


def draw_averaging(result: AveragingResult) -> Figure:
    """Left a token's weight by the length of its answer, right the direction by group size."""
    sizes = sorted({row.group_size for row in result.rows})
    by = {(row.mode, row.group_size): row for row in result.rows}
    lengths = list(range(1, len(result.rows[0].token_weight) + 1))

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        for place, mode in enumerate(MODES):
            _line(left, place, lengths, by[mode, sizes[0]].token_weight, mode)
            _line(right, place, sizes, [by[mode, size].angle for size in sizes], mode)
        left.set_xticks(lengths)
        left.set(xlabel="tokens of an answer", ylabel="weight of a token / that of a mean answer")
        left.set(title=f"length, G={sizes[0]}")
        left.legend(loc="upper right")
        _sizes(right, sizes)
        right.set_ylim(top=1.45 * max(row.angle for row in result.rows) + 1e-3)
        right.legend(loc="upper right", ncols=2, fontsize=8)

    return figure(fill)


def draw_kl(result: KLTruth) -> Figure:
    """Left mean and std of the estimators, right how far each one's gradient is from three true ones."""

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2, width_ratios=(1, 2.2))
        names = [row.estimator for row in result.values]
        series = [("mean", [row.mean for row in result.values]), ("std", [row.std for row in result.values])]
        grouped_bars(left, names, series, ".3f")
        left.axhline(result.exact, color="black", linestyle="--", linewidth=1, label=f"exact {result.exact:.3f}")
        left.set(xlabel="estimator", ylabel="nats per answer", title="value")
        left.legend(loc="upper right")
        groups = [f"{row.estimator}\n{row.use}" for row in result.gradients]
        targets = (
            ("KL(pi || ref), prefix fixed", "reverse"), ("KL(ref || pi), prefix fixed", "forward"),
            ("KL(pi || ref) of answers", "answers"),
        )  # fmt: skip
        bars = [(label, [row.distance[target] for row in result.gradients]) for label, target in targets]
        grouped_bars(right, groups, bars, ".2f", size=7)
        right.set(ylabel="distance / length of the true gradient", title="whose gradient it is: no bar = the same")
        right.set(xlabel="estimator and use", ylim=(0, 1.45 * max(max(values) for _, values in bars)))
        right.legend(loc="upper right", title="distance to the gradient of")

    return figure(fill, width=12.0)


def draw_staleness(result: StaleResult) -> Figure:
    """Left bias, right noise, by the number of updates since the answers were sampled."""
    names = {"none": "no ratio", "token": "per token", "geometric": "geometric mean", "product": "product (exact)"}

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        for place, name in enumerate(RATIOS):
            rows = [row for row in result.rows if row.ratio == name]
            done = [row.updates for row in rows]
            _line(left, place, done, [100 * row.bias for row in rows], names[name])
            _line(right, place, done, [row.noise for row in rows], names[name])
        for axes in (left, right):
            axes.set(xlabel="updates since the answers were sampled")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend(loc="upper left")
        left.set(ylabel="% of the true gradient's length", title="bias")
        right.set(ylabel="std / true gradient's length", title="noise of one answer per prompt", ylim=(0, None))

    return figure(fill)


def draw_sampler(result: SamplerResult) -> Figure:
    """Left bias, right error of a batch, by the cap; without a cap tis and mis are is."""
    caps = sorted({row.cap for row in result.rows if row.cap is not None})
    by = {(row.kind, row.level, row.cap): row for row in result.rows}
    labels = [*(f"{cap:g}" for cap in caps), "no cap"]

    def fill(made: Figure) -> None:
        panels = made.subplots(1, 2)
        for place, (kind, level) in enumerate(
            (("tis", "token"), ("mis", "token"), ("tis", "sequence"), ("mis", "sequence"))
        ):
            rows = [*(by[kind, level, cap] for cap in caps), by["is", level, None]]
            name = f"{kind} per {level}"
            _line(panels[0], place, range(len(rows)), [100 * row.bias for row in rows], name)
            _line(panels[1], place, range(len(rows)), [100 * row.error(result.answers) for row in rows], name)
        none = result.rows[0]
        for axes, value in zip(panels, (none.bias, none.error(result.answers)), strict=True):
            axes.axhline(100 * value, color="black", linestyle=(0, (1, 4)), linewidth=1.2, label="no correction")
            axes.set_xticks(range(len(labels)), labels)
            axes.set(xlabel="cap on pi / mu (no cap: is)", ylabel="% of the true gradient's length")
            axes.set_ylim(0, 1.5 * axes.get_ylim()[1])
            axes.legend(loc="upper right", ncols=2)
        panels[0].set(title="bias")
        panels[1].set(title=f"error of {result.answers} answers per prompt")

    return figure(fill)
