"""One to eight updates on the same answers: ratios against the truth. Exact."""

from dataclasses import dataclass

from torch import Tensor

from upweight.lab.small_world.estimate import (
    PLAIN,
    Source,
    angle,
    answer_gradients,
    distance,
    expected_gradient,
    noise,
)
from upweight.lab.small_world.world import World, expected, gradient_of_expected, kl_of_answers
from upweight.lab.table import Report
from upweight.objective.spec import Objective

RATIOS = ("none", "token", "geometric", "product")
"""No ratio at all, one per token, an answer's geometric mean, an answer's product."""

_LEVELS = {
    "none": PLAIN,
    "token": PLAIN,
    "geometric": Objective(surrogate="none", kl_coef=0.0, ratio_level="sequence"),
    # The product of an answer's ratios exists as a correction: the old policy in the sampler's place.
    "product": Objective(surrogate="none", kl_coef=0.0, correction="is", correction_level="sequence"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleRow:
    """One ratio after some updates."""

    updates: int
    """Updates since the answers were sampled."""

    ratio: str
    """"none", "token", "geometric" or "product"."""

    bias: float
    """Distance of the expected gradient from the true one at the current policy, as a multiple of its length."""

    angle: float
    """Degrees between the two."""

    noise: float
    """Std of the estimate from one answer per prompt, as a multiple of the true gradient's length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleResult:
    """All ratios after 0, 1, 2, ... updates."""

    rows: tuple[StaleRow, ...]
    """Ratios within updates."""

    kl: tuple[float, ...]
    """KL of answers, current policy to the one that sampled them, after 0, 1, 2, ... updates, nats."""

    reward: tuple[float, ...]
    """Expected reward, mean over prompts."""


def run(world: World, updates: int, step: float) -> StaleResult:
    """Move the policy along the exact gradient, and estimate the gradient from answers of the first policy.

    The advantage is the reward minus the prompt's expected reward when the answers were sampled: what leave-one-out
    gives in expectation. It is right at any later policy, under the exact ratio.

    Args:
        world: prompts, and the policy that samples.
        updates: updates to follow.
        step: how far an update moves the logits.
    """
    sampled, old = world.probabilities(), world.logprobs()
    advantages = world.reward - expected(world, world.reward)[:, None]
    logits = world.logits
    rows, kl, reward = [], [], []
    for done in range(updates + 1):
        true = gradient_of_expected(world, world.reward, logits)
        kl.append(kl_of_answers(world, world.logits, logits).mean().item())
        reward.append(expected(world, world.reward, logits).mean().item())
        for name in RATIOS:
            source = Source(
                probabilities=sampled,
                advantages=advantages,
                old=old if name in ("token", "geometric") else None,
                sampler=old if name == "product" else None,
            )
            rows.append(_row(done, name, world, source, logits, true))
        logits = logits + step * true / true.norm()
    return StaleResult(rows=tuple(rows), kl=tuple(kl), reward=tuple(reward))


def _row(done: int, name: str, world: World, source: Source, logits: Tensor, true: Tensor) -> StaleRow:
    mean = expected_gradient(world, _LEVELS[name], source, logits)
    each = answer_gradients(world, _LEVELS[name], source, logits)
    return StaleRow(
        updates=done,
        ratio=name,
        bias=distance(mean, true),
        angle=angle(mean, true),
        noise=noise(each, source.probabilities) / true.norm().item(),
    )


def report(result: StaleResult) -> Report:
    """The table: a line per number of updates."""
    by = {(row.updates, row.ratio): row for row in result.rows}
    noisy = ("token", "product")
    columns = ("updates", "KL", *RATIOS, *(f"noise, {name}" for name in noisy))
    rows = tuple(
        (
            str(done), f"{result.kl[done]:.4f}", *(_share(by[done, name].bias) for name in RATIOS),
            *(f"{by[done, name].noise:.2f}" for name in noisy),
        )
        for done in range(len(result.kl))
    )  # fmt: skip
    title = (
        "staleness: bias without a ratio, with one per token, an answer's geometric mean, its product; std from one "
        "answer per prompt (noise); as a share of the true gradient's length"
    )
    return Report(title=title, columns=columns, rows=rows, sentences=sentences(result))


def _share(value: float) -> str:
    return "0" if value < 1e-10 else f"{value:.2%}"


def sentences(result: StaleResult) -> tuple[str, ...]:
    """What the numbers show."""
    last = len(result.kl) - 1
    at = {row.ratio: row for row in result.rows if row.updates == last}
    first = {row.ratio: row for row in result.rows if row.updates == min(1, last)}
    exact = max(row.bias for row in result.rows if row.ratio == "product")
    biased = sorted(("none", "token", "geometric"), key=lambda name: at[name].bias)
    return (
        f"The product of an answer's ratios is within {exact:.0e} of the true gradient at every update; after {last} "
        f"of them its noise is {at['product'].noise:.2f}, that of the token ratio {at['token'].noise:.2f}.",
        f"After {last} updates (KL {result.kl[last]:.3f} nats) the others are off by "
        + ", ".join(f"{at[name].bias:.1%} ({name})" for name in biased)
        + f"; after one by {', '.join(f'{first[name].bias:.1%} ({name})' for name in biased)}.",
    )
