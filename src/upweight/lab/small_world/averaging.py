"""The four ways to average the loss: what they do to direction and length. Exact, and sampled."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from upweight.lab.small_world.advantages import right_and_wrong
from upweight.lab.small_world.estimate import (
    PLAIN,
    Interval,
    Source,
    along,
    angle,
    expected_gradient,
    interval,
    sample_steps,
)
from upweight.lab.small_world.world import World, gradient_of_expected
from upweight.lab.table import Report
from upweight.objective.advantage import group_advantages
from upweight.objective.weights import MODES, flat_token_weights

UNBIASED = "seq-mean-token-sum-norm"
"""The mode whose expected gradient is the true one, divided by the budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AveragingRow:
    """One mode at one group size; weights are in units of 1 / (answers of the step * budget)."""

    mode: str
    """As in `flat_token_weights`."""

    group_size: int
    """Answers per prompt."""

    token_weight: tuple[float, ...]
    """Expected weight of a token of an answer of 1, 2, ... tokens, as a multiple of a mean answer's. Exact."""

    angle: float
    """Degrees between the expected gradient and the true one. Exact."""

    longer: float
    """Change of the mean length of answers per reward gained, along the expected gradient. Exact."""

    longer_wrong: float
    """The same of the mean length of wrong answers. Exact."""

    gain: float
    """Reward gained along the expected gradient, as a multiple of what the true one gains. Exact."""

    sampled: Interval
    """The same gain, from sampled steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AveragingResult:
    """All modes at all group sizes."""

    rows: tuple[AveragingRow, ...]
    """Modes within group sizes."""

    longer: float
    """Change of the mean length per reward gained along the true gradient."""

    longer_wrong: float
    """The same of the mean length of wrong answers."""

    samples: int
    """Steps that were sampled for each row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Directions:
    """Exact gradients of what an update is judged by, each [P, S, V]."""

    reward: Tensor
    """Of the expected reward: the true policy gradient."""

    length: Tensor
    """Of the mean length of answers."""

    length_of_wrong: Tensor
    """Of the mean length of wrong answers."""

    def per_reward(self, gradient: Tensor, what: Tensor) -> float:
        """Change of `what` per reward gained, along a gradient."""
        return ((gradient * what).sum() / (gradient * self.reward).sum()).item()


def run(world: World, group_sizes: Sequence[int], samples: int, generator: torch.Generator) -> AveragingResult:
    """Enumerate lengths and rewards of the rest of a step, and sample steps to check it.

    The advantage is the unbiased one (leave-one-out, not divided), so that the averaging alone can bend the gradient.
    A token's weight depends on the step only by its number of tokens (by that of its group, for
    group-mean-token-mean): the joint distribution of that number and of the group's right answers is a convolution,
    the advantage and the weight at each of its points are `group_advantages` and `flat_token_weights`.

    Args:
        world: prompts and policy.
        group_sizes: G to compare.
        samples: steps to sample for each of them.
        generator: of the samples.
    """
    directions = _directions(world)
    rows = []
    for size in group_sizes:
        sampled = _sampled(world, size, samples, directions.reward, generator)
        for mode in MODES:
            push, weight = _expected_push(world, size, mode)
            source = Source(probabilities=world.probabilities(), advantages=push)
            gradient = expected_gradient(world, PLAIN, source)
            rows.append(
                AveragingRow(
                    mode=mode,
                    group_size=size,
                    token_weight=weight,
                    angle=angle(gradient, directions.reward),
                    longer=directions.per_reward(gradient, directions.length),
                    longer_wrong=directions.per_reward(gradient, directions.length_of_wrong),
                    gain=((gradient * directions.reward).sum() / directions.reward.square().sum()).item(),
                    sampled=sampled[mode],
                )
            )
    return AveragingResult(
        rows=tuple(rows),
        longer=directions.per_reward(directions.reward, directions.length),
        longer_wrong=directions.per_reward(directions.reward, directions.length_of_wrong),
        samples=samples,
    )


def _directions(world: World) -> _Directions:
    length, wrong = world.answers.length.double(), 1 - world.reward
    probabilities = world.probabilities()
    share = (probabilities * wrong).sum(1, keepdim=True)
    mean = (probabilities * wrong * length).sum(1, keepdim=True) / share
    # Quotient rule: the gradient of E[length wrong] / E[wrong] is that of E[(length - mean) wrong] / E[wrong].
    return _Directions(
        reward=gradient_of_expected(world, world.reward),
        length=gradient_of_expected(world, length),
        length_of_wrong=gradient_of_expected(world, (length - mean) * wrong / share),
    )


def _classes(world: World) -> Tensor:
    """[P, T + 1, 2] probability that an answer has a length and a reward."""
    prompts, budget = world.prompts, world.answers.token.shape[1]
    place = world.answers.length * 2 + world.answers.reward.long()
    table = torch.zeros(prompts, (budget + 1) * 2, dtype=torch.float64)
    return table.index_add(1, place, world.probabilities()).view(prompts, budget + 1, 2)


def _power(kernel: Tensor, times: int) -> Tensor:
    """Distribution of the sum of `times` independent pairs (length, reward)."""
    total = torch.ones(1, 1, dtype=torch.float64)
    flipped = kernel.flip(0, 1)[None, None]
    for _ in range(times):
        padding = (kernel.shape[0] - 1, kernel.shape[1] - 1)
        total = torch.nn.functional.conv2d(total[None, None], flipped, padding=padding)[0, 0]
    return total


def _expected_push(world: World, size: int, mode: str) -> tuple[Tensor, tuple[float, ...]]:
    """[P, A] E[weight * advantage * answers * budget | answer], and the weight by length as a multiple of the mean."""
    classes, budget = _classes(world), world.answers.token.shape[1]
    answers = world.prompts * size
    weight = _weight_table(mode, world.prompts, size, budget) * (answers * budget)  # [T + 1, tokens of the rest + 1]
    push = torch.zeros_like(classes)
    plain = torch.zeros_like(classes[..., 0])
    steps = [_power(each.sum(1, keepdim=True), size) for each in classes]
    for prompt in range(world.prompts):
        rest = _power(classes[prompt], size - 1)  # [tokens, right answers] of the group's others
        if mode != "group-mean-token-mean":
            for other, tokens in enumerate(steps):
                rest = rest if other == prompt else _convolve(rest, tokens)
        advantage = _advantage_table(size)  # [2, right answers among the others]
        # E over the rest of the step, at each length and reward of the answer itself.
        push[prompt] = torch.einsum("nr,ln,ar->la", rest, weight[:, : len(rest)], advantage)
        plain[prompt] = weight[:, : len(rest)] @ rest.sum(1)
    own, reward = world.answers.length, world.answers.reward.long()
    lengths = classes.sum(2)
    by_length = (plain * lengths).sum(0)[1:] / lengths.sum(0)[1:]
    mean = (plain * lengths).sum() / lengths.sum()
    return push[:, own, reward], tuple((by_length / mean).tolist())


def _convolve(rest: Tensor, tokens: Tensor) -> Tensor:
    """Add [m, 1] tokens of another group to [n, r]."""
    padding = (len(tokens) - 1, 0)
    return torch.nn.functional.conv2d(rest[None, None], tokens.flip(0)[None, None], padding=padding)[0, 0]


def _weight_table(mode: str, prompts: int, size: int, budget: int) -> Tensor:
    """[T + 1, n + 1] weight of a token of an answer of some length, n tokens of the rest of its step (or group).

    A group's share of the step does not depend on the others: one group at a time, then a mean over them.
    """
    alone = mode == "group-mean-token-mean"
    answers = size if alone else prompts * size
    table = torch.zeros(budget + 1, (answers - 1) * budget + 1, dtype=torch.float64)
    for own in range(1, budget + 1):
        for rest in range(answers - 1, (answers - 1) * budget + 1):
            table[own, rest] = _first_weight(mode, own, rest, answers, budget)
            if mode in ("seq-mean-token-mean", UNBIASED):
                # Of the rest of the step these modes count the answers alone.
                table[own] = table[own, rest]
                break
    return table / prompts if alone else table


def _first_weight(mode: str, own: int, rest: int, answers: int, budget: int) -> float:
    """Weight of the first answer's tokens, where it has `own` tokens and the other answers have `rest`."""
    others = torch.arange(rest) % (answers - 1) + 1
    seq_id = torch.cat([torch.zeros(own, dtype=torch.long), others])
    weights = flat_token_weights(seq_id, mode, max_length=budget, group_id=torch.zeros_like(seq_id))
    return weights[0].item()


def _advantage_table(size: int) -> Tensor:
    """[2, G] advantage of a wrong and of a right answer, by how many of the group's others are right."""
    wrong = [right_and_wrong("none", "leave-one-out", size, others)[0] for others in range(size)]
    right = [right_and_wrong("none", "leave-one-out", size, others + 1)[1] for others in range(size)]
    return torch.tensor([wrong, right], dtype=torch.float64)


def _sampled(world: World, size: int, samples: int, true: Tensor, generator: torch.Generator) -> Mapping[str, Interval]:
    """Interval of the gain of each mode, from whole steps by the trainer's functions."""
    steps = sample_steps(world, samples, size, generator)
    groups = steps.reward.reshape(-1, size)
    advantages = group_advantages(groups.flatten(), group_size=size, scale="none", baseline="leave-one-out")
    advantages = advantages.view(steps.reward.shape)
    budget = world.answers.token.shape[1]
    bounds = torch.searchsorted(steps.step, torch.arange(samples + 1)).tolist()
    found = {}
    for mode in MODES:
        weights = torch.cat(
            [
                flat_token_weights(steps.seq_id[start:end], mode, max_length=budget, group_id=steps.group[start:end])
                for start, end in itertools.pairwise(bounds)
            ]
        )
        draws = budget * along(world, steps, advantages, weights, true).sum(1) / true.square().sum()
        found[mode] = interval(draws)
    return found


def coverage(result: AveragingResult) -> tuple[int, int]:
    """How many of the sampled 95% intervals hold the exact gain, and of how many."""
    return sum(row.sampled.holds(row.gain) for row in result.rows), len(result.rows)


def report(result: AveragingResult, *, brief: bool = False) -> Report:
    """The table, at all group sizes with what was sampled, or at the smallest and the largest."""
    sizes = sorted({row.group_size for row in result.rows})
    shown = {sizes[0], sizes[-1]} if brief else set(sizes)
    lengths = len(result.rows[0].token_weight)
    columns = (
        "mode", "G", "angle", *(f"L={length}" for length in range(1, lengths + 1)), "wrong longer", "noise",
        *(() if brief else ("longer", "gain", "sampled gain")),
    )  # fmt: skip
    rows = tuple(
        (
            row.mode, str(row.group_size), f"{row.angle:.2f}", *(f"{weight:.3f}" for weight in row.token_weight),
            f"{row.longer_wrong:+.3f}", f"{row.sampled.std / row.gain:.2f}",
            *(() if brief else (f"{row.longer:+.3f}", f"{row.gain:.3f}", _plus_minus(row.sampled))),
        )
        for row in result.rows
        if row.group_size in shown
    )  # fmt: skip
    truth = ("true gradient", "", "0.00", *("" for _ in range(lengths)))
    more = () if brief else (f"{result.longer:+.3f}", "", "")
    rows = (*rows, (*truth, f"{result.longer_wrong:+.3f}", "", *more))
    title = (
        "averaging: degrees between expected and true gradient; weight of a token of an answer of L tokens, as a "
        "multiple of a mean answer's; tokens by which wrong answers get longer per reward gained; std of a step's gain "
        "/ its expectation (sampled)"
        + ("" if brief else "; tokens by which all answers do; reward gained, exact and sampled with a 95% interval")
    )
    return Report(title=title, columns=columns, rows=rows, sentences=sentences(result), left=(0,))


def _plus_minus(sampled: Interval) -> str:
    return f"{sampled.mean:.3f} +- {sampled.half:.3f}"


def sentences(result: AveragingResult) -> tuple[str, ...]:
    """What the numbers show."""
    largest = max(row.group_size for row in result.rows)
    smallest = min(row.group_size for row in result.rows)
    at = {(row.mode, row.group_size): row for row in result.rows}
    exact = max(row.angle for row in result.rows if row.mode == UNBIASED)
    answer, token = at["seq-mean-token-mean", largest], at["token-mean", largest]
    few, group = at["token-mean", smallest], at["group-mean-token-mean", largest]
    longest = len(answer.token_weight)
    held, count = coverage(result)
    return (
        f"{UNBIASED} points along the true gradient ({exact:.0e} degrees at most). seq-mean-token-mean gives a token "
        f"of an answer of {longest} tokens {answer.token_weight[-1] / answer.token_weight[0]:.2f} times the weight of "
        f"one of a one-token answer and points {answer.angle:.1f} degrees away; wrong answers change by "
        f"{answer.longer_wrong:+.2f} tokens per reward gained, where the true gradient changes them by "
        f"{result.longer_wrong:+.2f}.",
        f"token-mean is {few.angle:.2f} degrees off at G={smallest} and {token.angle:.2f} at "
        f"G={largest}"
        + (": the step's number of tokens, which it divides by, depends on each answer" if few.angle > 1e-9 else "")
        + f". group-mean-token-mean is {group.angle:.2f} degrees off at G={largest}"
        + (
            ": it divides each prompt's gradient by the length of that prompt's answers." if group.angle > 1e-9 else "."
        ),
        f"Of {count} intervals (95%) from {result.samples} sampled steps each, {held} hold the enumerated gain "
        f"({held / count:.1%}).",
    )
