"""How the loss is averaged: what each token and each answer of a group weighs."""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from upweight.lab.parameters import WeightsParameters
from upweight.lab.style import figure, grouped_bars, outside_legend
from upweight.lab.table import Report, print_report
from upweight.objective.advantage import group_advantages
from upweight.objective.weights import flat_token_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerRow:
    """One answer of the group."""

    reward: float
    """As given."""

    length: int
    """Tokens."""

    token_weight: dict[str, float]
    """Averaging mode -> advantage times weight of each of its tokens: how hard a token is pushed."""

    answer_weight: dict[str, float]
    """Averaging mode -> the same, summed over its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsResult:
    """Advantages and weights of one group."""

    advantages: tuple[float, ...]
    """Of each answer."""

    rows: tuple[AnswerRow, ...]
    """One per answer, in the order given."""

    modes: tuple[str, ...]
    """Averaging modes, in the order of the table."""


def run(parameters: WeightsParameters) -> WeightsResult:
    """Weigh the tokens of one group: A_i w_t, with w_t from `flat_token_weights`.

    Args:
        parameters: rewards, lengths and how the advantage is scaled.

    Returns:
        For each answer what a token of it and what the whole of it weighs, per averaging mode.

    Example:
        >>> result = run(WeightsParameters(rewards=(1.0, 0.0), lengths=(1, 3)))
        >>> [round(row.answer_weight["token-mean"], 4) for row in result.rows]
        [0.1768, -0.5303]
    """
    advantages = group_advantages(
        torch.tensor(parameters.rewards, dtype=torch.float64), scale=parameters.adv_norm
    ).tolist()
    lengths = torch.tensor(parameters.lengths)
    seq_id = torch.arange(len(lengths)).repeat_interleave(lengths)
    last = lengths.cumsum(0) - 1
    modes = ["seq-mean-token-mean", "token-mean"]
    if parameters.max_length is not None:
        modes.append("seq-mean-token-sum-norm")
    # The tokens of an answer weigh the same under every mode, so its last one stands for them.
    weights = {
        mode: flat_token_weights(seq_id, mode, max_length=parameters.max_length)[last].tolist() for mode in modes
    }
    rows = tuple(
        AnswerRow(
            reward=parameters.rewards[i],
            length=parameters.lengths[i],
            token_weight={mode: advantages[i] * weights[mode][i] for mode in modes},
            answer_weight={mode: advantages[i] * weights[mode][i] * parameters.lengths[i] for mode in modes},
        )
        for i in range(len(lengths))
    )
    return WeightsResult(advantages=tuple(advantages), rows=rows, modes=tuple(modes))


def as_json(result: WeightsResult) -> dict[str, Any]:
    """`{"advantages", "rows": [{"reward", "length", "token_weight", "answer_weight"}]}`."""
    rows = [
        {
            "reward": row.reward,
            "length": row.length,
            "token_weight": row.token_weight,
            "answer_weight": row.answer_weight,
        }
        for row in result.rows
    ]
    return {"advantages": list(result.advantages), "rows": rows}


def show(result: WeightsResult, console: Console) -> None:
    """Print the table and what it shows."""
    columns = ["#", "reward", "tokens", "advantage"]
    columns += [f"per token, {mode}" for mode in result.modes] + [f"answer, {mode}" for mode in result.modes]
    rows = []
    for i, row in enumerate(result.rows):
        cells = [str(i), f"{row.reward:g}", str(row.length), f"{result.advantages[i]:+.2f}"]
        cells += [f"{row.token_weight[mode]:+.2e}" for mode in result.modes]
        cells += [f"{row.answer_weight[mode]:+.3f}" for mode in result.modes]
        rows.append(tuple(cells))
    title = "advantage x weight, of each token and of each whole answer, by how the loss is averaged"
    print_report(Report(title=title, columns=tuple(columns), rows=tuple(rows), sentences=_sentences(result)), console)


def _sentences(result: WeightsResult) -> tuple[str, ...]:
    if len({row.reward for row in result.rows}) == 1:
        return ("All rewards are the same, so every advantage is 0: the group was sampled and scored for nothing.",)
    lengths = [row.length for row in result.rows]
    times = max(lengths) / min(lengths)
    if times == 1:
        return ("All answers are equally long, so averaging per answer and over all tokens come to the same.",)
    return (
        f"Averaged per answer, a token of the longest answer ({max(lengths)} tokens) is pushed {times:.3g} times less "
        f"than one of the shortest ({min(lengths)}) with the same advantage: a long mistake is cheap per token.",
        f"Averaged over all tokens, every token is pushed alike, and the longest answer counts {times:.3g} times as "
        "much as the shortest.",
    )


def draw(result: WeightsResult) -> Figure:
    """Left what a token weighs, right what an answer weighs."""

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        _bars(left, result, per_token=True)
        left.set(ylabel="advantage x weight of one token, in 1/1000", title="one token")
        _bars(right, result, per_token=False)
        right.set(ylabel="advantage x weight of all its tokens", title="the whole answer")
        for axes in (left, right):
            axes.set_xlabel("answer: its reward, its tokens")
        outside_legend(left, columns=len(result.modes))

    return figure(fill, width=min(24.0, max(12.0, 1.5 * len(result.rows) * len(result.modes))), height=4.4)


def panel(axes: Any, result: WeightsResult) -> None:
    """What a token weighs, in small."""
    _bars(axes, result, per_token=True)
    axes.set(xlabel="answer: its reward, its tokens", ylabel="push on one token, in 1/1000")
    axes.legend(loc="lower right")


def _bars(axes: Any, result: WeightsResult, *, per_token: bool) -> None:
    labels = [f"{row.reward:g}\n{row.length}" for row in result.rows]
    series = [
        (mode, [1000 * row.token_weight[mode] if per_token else row.answer_weight[mode] for row in result.rows])
        for mode in result.modes
    ]
    grouped_bars(axes, labels, series, "+.3g", size=7)
