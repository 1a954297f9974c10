"""pass@k: how often at least one of k answers is right, with an interval over prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from upweight.evaluate.accuracy import wilson_interval
from upweight.evaluate.answers import Answer
from upweight.objective.errors import bad_parameter


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate of pass@k from one prompt's answers (arXiv 2107.03374, equation 1).

        pass@k = 1 - C(n - c, k) / C(n, k)

    the share of the sets of k out of the n answers that hold a right one. Raising the share of right answers to the
    k-th power, 1 - (1 - c/n)^k, is biased downwards.

    Args:
        n: answers that were judged.
        c: right ones among them, 0 to n.
        k: answers that may be tried, 1 to n.

    Returns:
        A number in [0, 1]; 1 where fewer than k answers are wrong. Computed in whole numbers, rounded once.

    Raises:
        UsageError: c outside 0..n, or k outside 1..n.

    Example:
        >>> pass_at_k(4, 2, 2)  # of the 6 pairs one has two wrong answers
        0.8333333333333334
    """
    if not 0 <= c <= n:
        raise bad_parameter("c", "pass_at_k", f"in 0..n with n={n}", c)
    if not 1 <= k <= n:
        raise bad_parameter("k", "pass_at_k", f"in 1..n with n={n}", k)
    sets = math.comb(n, k)
    return (sets - math.comb(n - c, k)) / sets


def mean_interval(values: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """An interval for the mean over all prompts of a number in [0, 1], from the prompts at hand.

    Wilson's interval with the effective number of prompts

        n_eff = n m (1 - m) / v,    m the mean, v the variance (divided by n) of the n values,

    which is how many yes-or-no trials would leave the same uncertainty. Where every value is 0 or 1 it is Wilson's
    interval itself; where several answers stand behind each value, n_eff is larger than n. Prompts are what varies, so
    the noise of sampling is inside, and the prompts need not be equally hard. In simulations with 8 answers to each of
    200 prompts it covers the truth in 93% of the evaluations or more; in 85% in the worst case found, where all but a
    few prompts are nearly always solved. A bootstrap, or m -+ z s / sqrt(n), is often a point there.

    Args:
        values: one per prompt, in [0, 1].
        z: quantile of the normal distribution; 1.96 for 95%.

    Returns:
        (low, high); (0, 1) for no values. Where all values agree at neither 0 nor 1, n_eff is taken as n.

    Raises:
        UsageError: a value outside [0, 1].

    Example:
        >>> low, high = mean_interval([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
        >>> round(low, 4), round(high, 4)
        (0.4902, 0.9433)
    """
    for value in values:
        if not 0 <= value <= 1:
            raise bad_parameter("values", "mean_interval", "in [0, 1]", value)
    n = len(values)
    if n == 0:
        return 0.0, 1.0
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / n
    effective = n * mean * (1 - mean) / variance if variance > 1e-12 else float(n)
    return wilson_interval(mean * effective, effective, z)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRate:
    """pass@k of a model over prompts."""

    k: int
    """Answers that may be tried."""

    value: float
    """Mean over the prompts of the unbiased estimates; NaN where no prompt has k judged answers."""

    low: float
    """Lower end of the 95% interval over prompts."""

    high: float
    """Upper end of it."""

    prompts: int
    """Prompts in the mean."""

    left_out: int
    """Prompts of which fewer than k answers could be judged."""

    by_seed: tuple[float, ...]
    """The same mean from each seed's answers alone."""

    estimates: tuple[float | None, ...]
    """The estimate of each prompt, in order; None where it is left out."""


def pass_rate(by_seed: Sequence[Sequence[Sequence[Answer]]], k: int) -> PassRate:
    """pass@k over prompts, from the answers of one or several seeds taken together.

    Answers that could not be judged are left out of n and of c, never counted as wrong.

    Args:
        by_seed: per seed, per prompt, the answers.
        k: answers that may be tried; at most as many as a seed gives each prompt.

    Raises:
        UsageError: k outside 1..n.
    """
    answers = min((len(group) for groups in by_seed for group in groups), default=0)
    if not 1 <= k <= answers:
        raise bad_parameter("k", "pass_rate", f"in 1..n with n={answers} answers to a prompt", k)
    together = [[answer for group in groups for answer in group] for groups in zip(*by_seed, strict=True)]
    estimates = tuple(_estimate(group, k) for group in together)
    values = [value for value in estimates if value is not None]
    low, high = mean_interval(values)
    return PassRate(
        k=k,
        value=_mean(values),
        low=low,
        high=high,
        prompts=len(values),
        left_out=len(estimates) - len(values),
        by_seed=tuple(_mean([v for group in groups if (v := _estimate(group, k)) is not None]) for groups in by_seed),
        estimates=estimates,
    )


def _estimate(group: Sequence[Answer], k: int) -> float | None:
    judged = [answer.correct for answer in group if answer.correct is not None]
    return pass_at_k(len(judged), sum(judged), k) if len(judged) >= k else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
