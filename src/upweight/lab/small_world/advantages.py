"""Every advantage and group size: the weight each prompt gets, the direction, the noise. Exact, and sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from upweight.lab.small_world.estimate import (
    PLAIN,
    Interval,
    Source,
    along,
    angle,
    answer_gradients,
    interval,
    sample_steps,
)
from upweight.lab.small_world.world import World, gradient_of_expected
from upweight.lab.table import Report
from upweight.objective.advantage import group_advantages
from upweight.objective.weights import flat_token_weights

KINDS = tuple((scale, baseline) for scale in ("none", "std", "batch") for baseline in ("mean", "leave-one-out"))
"""Scale and baseline of each advantage."""

NEGLIGIBLE = 1e-13
"""Probability of a combination of right and wrong answers below which it is left out of a sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageRow:
    """One advantage at one group size."""

    scale: str
    """"none", "std" or "batch"."""

    baseline: str
    """"mean" or "leave-one-out"."""

    group_size: int
    """Answers per prompt."""

    weight: tuple[float, ...]
    """Per prompt: length of the expected gradient as a multiple of the true one's; 1 = unbiased. Exact."""

    angle: float
    """Degrees between the expected gradient of all prompts together and the true one. Exact."""

    noise: float
    """Std of one step's gradient, as a multiple of the length of its expectation. Exact."""

    sampled: tuple[Interval, ...]
    """Per prompt: the same weight, from sampled steps."""

    @property
    def bias(self) -> float:
        """The weight that is furthest from 1."""
        return max(self.weight, key=lambda weight: abs(weight - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageResult:
    """All advantages at all group sizes."""

    difficulties: tuple[float, ...]
    """Probability that each prompt is answered right."""

    rows: tuple[AdvantageRow, ...]
    """Kinds within group sizes."""

    samples: int
    """Steps that were sampled for each row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Moments:
    """Moments of the score grad log pi(o) of the answers with one reward."""

    mean: Tensor
    """[P, S, V]."""

    square: Tensor
    """[P] mean squared length."""


def run(world: World, group_sizes: Sequence[int], samples: int, generator: torch.Generator) -> AdvantageResult:
    """Enumerate how many of a group's answers are right, and sample steps to check it.

    Given how many are right, the answers are independent: so k ~ Binomial(G, p), the advantages of k right and G - k
    wrong answers by `group_advantages`, and the first two moments of right and of wrong answers' scores give the
    exact mean and variance of the gradient. With scale "batch" the right answers of the other prompts are
    enumerated as well.

    Args:
        world: prompts and policy.
        group_sizes: G to compare.
        samples: steps to sample for each of them.
        generator: of the samples.
    """
    true = gradient_of_expected(world, world.reward)
    share = (world.probabilities() * world.reward).sum(1)
    moments = {reward: _moments(world, reward) for reward in (0, 1)}
    rows = []
    for size in group_sizes:
        exact = {kind: _exact(kind, size, share, moments, true) for kind in KINDS}
        sampled = _sampled(world, size, samples, true, generator)
        for kind in KINDS:
            weight, degrees, noise = exact[kind]
            rows.append(
                AdvantageRow(
                    scale=kind[0], baseline=kind[1], group_size=size, weight=weight, angle=degrees, noise=noise,
                    sampled=sampled[kind],
                )
            )  # fmt: skip
    return AdvantageResult(difficulties=tuple(share.tolist()), rows=tuple(rows), samples=samples)


def _moments(world: World, reward: int) -> _Moments:
    probabilities = world.probabilities()
    source = Source(probabilities=probabilities, advantages=torch.ones_like(probabilities))
    scores = answer_gradients(world, PLAIN, source)
    given = probabilities * (world.reward == reward)
    given = given / given.sum(1, keepdim=True)
    return _Moments(
        mean=torch.einsum("pa,pasv->psv", given, scores),
        square=(given * scores.square().sum((2, 3))).sum(1),
    )


def _exact(
    kind: tuple[str, str], size: int, share: Tensor, moments: Mapping[int, _Moments], true: Tensor
) -> tuple[tuple[float, ...], float, float]:
    """Weight of each prompt, angle and noise."""
    prompts = len(share)
    right, wrong = _coefficients(kind, size, share)
    count = torch.arange(size + 1, dtype=torch.float64)
    first = {1: (right.mean * count).sum(1), 0: (wrong.mean * (size - count)).sum(1)}
    mean = sum(first[r][:, None, None] * moments[r].mean for r in (0, 1)) / size
    assert isinstance(mean, Tensor)
    dot = {
        (1, 1): moments[1].mean.square().sum((1, 2)),
        (0, 0): moments[0].mean.square().sum((1, 2)),
        (1, 0): (moments[1].mean * moments[0].mean).sum((1, 2)),
    }
    others = size - count
    square = (right.square * count).sum(1) * moments[1].square + (wrong.square * others).sum(1) * moments[0].square
    square = square + (right.square * count * (count - 1)).sum(1) * dot[1, 1]
    square = square + (wrong.square * others * (others - 1)).sum(1) * dot[0, 0]
    square = square + 2 * (right.cross * count * others).sum(1) * dot[1, 0]
    variance = (square / size**2 - mean.square().sum((1, 2))).clamp(min=0).sum()
    weight = (mean * true * prompts).sum((1, 2)) / (true * prompts).square().sum((1, 2))
    noise = (variance.sqrt() / mean.norm()).item()
    return tuple(weight.tolist()), angle(mean, true), noise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Coefficients:
    """Advantages of a group's right (or wrong) answers, weighted with the probability that k answers are right."""

    mean: Tensor
    """[P, G + 1] P(k) E[A | k]."""

    square: Tensor
    """[P, G + 1] P(k) E[A^2 | k]."""

    cross: Tensor
    """[P, G + 1] P(k) E[A_right A_wrong | k]."""


def _coefficients(kind: tuple[str, str], size: int, share: Tensor) -> tuple[_Coefficients, _Coefficients]:
    own = binomial(size, share)  # [P, G + 1]
    if kind[0] == "batch":
        elsewhere = torch.stack([_right_elsewhere(own, prompt) for prompt in range(len(share))])
    else:
        elsewhere = torch.ones(len(share), 1, dtype=torch.float64)
    joint = own[:, :, None] * elsewhere[:, None, :]  # [P, G + 1, K]
    others = (len(share) - 1) * size if kind[0] == "batch" else 0
    table = torch.zeros(2, *joint.shape[1:], dtype=torch.float64)
    for k, more in (joint.amax(0) > NEGLIGIBLE).nonzero().tolist():
        table[:, k, more] = torch.tensor(right_and_wrong(*kind, size, k, others, more), dtype=torch.float64)
    made = [
        _Coefficients(
            mean=(joint * table[r]).sum(2),
            square=(joint * table[r].square()).sum(2),
            cross=(joint * table[0] * table[1]).sum(2),
        )
        for r in (1, 0)
    ]
    return made[0], made[1]


@cache
def right_and_wrong(
    scale: str, baseline: str, size: int, right: int, others: int = 0, others_right: int = 0
) -> tuple[float, float]:
    """Advantage of a wrong and of a right answer in a group, by `group_advantages`.

    Args:
        scale: "none", "std" or "batch".
        baseline: "mean" or "leave-one-out".
        size: G.
        right: right answers of the group.
        others: answers to the other prompts of the step; only scale "batch" looks at them.
        others_right: right ones among those.

    Returns:
        The advantage of the wrong ones and of the right ones; 0 where there are none.

    Example:
        >>> right_and_wrong("none", "mean", 4, 1)
        (-0.25, 0.75)
    """
    rewards = torch.zeros(size + others, dtype=torch.float64)
    rewards[:right] = 1
    rewards[size : size + others_right] = 1
    ids = (torch.arange(size + others) >= size).long()
    advantages = group_advantages(rewards, ids, scale=scale, baseline=baseline)
    return (advantages[size - 1].item() if right < size else 0.0, advantages[0].item() if right else 0.0)


def binomial(trials: int, share: Tensor) -> Tensor:
    """[P, trials + 1] probability of each number of successes, for [P] chances of one.

    Example:
        >>> binomial(2, torch.tensor([0.5], dtype=torch.float64)).tolist()
        [[0.25, 0.5, 0.25]]
    """
    table = torch.zeros(len(share), trials + 1, dtype=torch.float64)
    table[:, 0] = 1
    for _ in range(trials):
        table = table * (1 - share)[:, None] + table.roll(1, 1) * share[:, None]
    return table


def _right_elsewhere(own: Tensor, prompt: int) -> Tensor:
    """[(P - 1) G + 1] probability of each number of right answers to the other prompts."""
    total = torch.ones(1, dtype=torch.float64)
    for other in range(len(own)):
        if other != prompt:
            total = torch.nn.functional.conv1d(
                total[None, None], own[other].flip(0)[None, None], padding=own.shape[1] - 1
            ).flatten()
    return total


def _sampled(
    world: World, size: int, samples: int, true: Tensor, generator: torch.Generator
) -> dict[tuple[str, str], tuple[Interval, ...]]:
    """Interval of each prompt's weight, from whole steps by `group_advantages`, `flat_token_weights`, `policy_loss`."""
    steps = sample_steps(world, samples, size, generator)
    # The steps have equally many answers, so that each one's weights are the mean's over all, times their number.
    weights = samples * flat_token_weights(steps.seq_id, "seq-mean-token-sum-norm", max_length=1)
    own = true.square().sum((1, 2))
    found = {}
    for kind in KINDS:
        advantages = torch.stack([_step_advantages(rewards, kind) for rewards in steps.reward])
        draws = along(world, steps, advantages, weights, true) / own
        found[kind] = tuple(interval(draws[:, prompt]) for prompt in range(world.prompts))
    return found


def _step_advantages(rewards: Tensor, kind: tuple[str, str]) -> Tensor:
    """[P, G] advantages of one step."""
    scale, baseline = kind
    flat = group_advantages(rewards.flatten(), group_size=rewards.shape[1], scale=scale, baseline=baseline)
    return flat.view(rewards.shape)


def coverage(result: AdvantageResult) -> tuple[int, int]:
    """How many of the sampled 95% intervals hold the exact weight, and of how many."""
    held = [
        sampled.holds(weight) for row in result.rows for sampled, weight in zip(row.sampled, row.weight, strict=True)
    ]
    return sum(held), len(held)


def report(result: AdvantageResult, *, brief: bool = False) -> Report:
    """The table, at all group sizes with what was sampled, or at the smallest and the largest."""
    sizes = sorted({row.group_size for row in result.rows})
    shown = {sizes[0], sizes[-1]} if brief else set(sizes)
    columns = (
        "scale", "baseline", "G", *(f"p={share:g}" for share in map(_rounded, result.difficulties)), "angle", "noise",
    )  # fmt: skip
    rows = tuple(
        (
            row.scale, row.baseline, str(row.group_size), *_weights(row, brief), f"{row.angle:.2f}", f"{row.noise:.2f}",
        )
        for row in result.rows
        if row.group_size in shown
    )  # fmt: skip
    title = (
        "advantages: weight of each prompt (expected gradient / true gradient; p = how often it is answered right), "
        "degrees between all prompts' expected and true gradient, noise of a step / length of its expectation"
        + ("" if brief else "; in brackets the sampled weight with its 95% interval")
    )
    return Report(title=title, columns=columns, rows=rows, sentences=sentences(result), left=(0, 1))


def _weights(row: AdvantageRow, brief: bool) -> list[str]:
    if brief:
        return [f"{weight:.3f}" for weight in row.weight]
    return [
        f"{weight:.3f} ({sampled.mean:.2f} +- {sampled.half:.2f})"
        for weight, sampled in zip(row.weight, row.sampled, strict=True)
    ]


def _rounded(value: float) -> float:
    return round(value, 6)


def sentences(result: AdvantageResult) -> tuple[str, ...]:
    """What the numbers show."""
    largest = max(row.group_size for row in result.rows)
    at = {(row.scale, row.baseline): row for row in result.rows if row.group_size == largest}
    exact = max(abs(row.bias - 1) for row in result.rows if (row.scale, row.baseline) == ("none", "leave-one-out"))
    plain = [row for row in result.rows if (row.scale, row.baseline) == ("none", "mean")]
    shrunk = max(abs(w - (1 - 1 / row.group_size)) for row in plain for w in row.weight)
    lines = [
        f"leave-one-out without a scale has weights within {exact:.0e} of 1 at every group size: "
        f"{'unbiased' if exact < 1e-9 else 'biased'}. The group's mean without a scale has (G-1)/G to within "
        f"{shrunk:.0e}: {plain[0].weight[0]:.3f} at G={plain[0].group_size}, "
        f"{plain[-1].weight[0]:.3f} at G={plain[-1].group_size}.",
    ]
    std = at["std", "mean"]
    pairs = sorted(zip(std.weight, map(_rounded, result.difficulties), strict=True))
    (least, at_least), (most, at_most) = pairs[0], pairs[-1]
    lines.append(
        f"Divided by the std at G={largest}, a prompt answered right with p={at_most:g} weighs {most / least:.2f} "
        f"times what one with p={at_least:g} does ({most:.2f} against {least:.2f} times its true gradient); the "
        f"gradient of all prompts points {std.angle:.1f} degrees away from the true one. With the batch's std they "
        f"all weigh alike to {_spread(at['batch', 'mean']):.1%}, and the angle is "
        f"{at['batch', 'mean'].angle:.1f} degrees."
    )
    held, count = coverage(result)
    lines.append(
        f"Of {count} intervals (95%) from {result.samples} sampled steps each, {held} hold the enumerated weight "
        f"({held / count:.1%}); the six advantages of a group size share their draws."
    )
    return tuple(lines)


def _spread(row: AdvantageRow) -> float:
    return max(row.weight) / min(row.weight) - 1
