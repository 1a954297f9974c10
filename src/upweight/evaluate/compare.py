"""Two models on the same prompts: how far apart they are, and whether that can be told."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from upweight.objective.errors import UsageError, bad_parameter

SIGNIFICANT = 0.05
"""Two models count as told apart below this p-value, or where the 95% interval leaves out 0."""

POWER_Z = 0.8416
"""Normal quantile of 80%: the chance of telling the models apart that `prompts_needed` asks for."""


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test (McNemar 1947; a binomial test on the prompts that differ).

    If both models were equally good, a prompt that only one of them solves would be as likely to be either's:

        p = min(1, 2 P[X <= min(b, c)]),    X ~ Binomial(b + c, 1/2)

    Args:
        only_first: b, prompts that only the first model solves.
        only_second: c, prompts that only the second solves.

    Returns:
        The p-value; 1 where no prompt differs.

    Raises:
        UsageError: a negative count.

    Example:
        >>> mcnemar_exact(0, 6)
        0.03125
    """
    for name, count in (("only_first", only_first), ("only_second", only_second)):
        if count < 0:
            raise bad_parameter(name, "mcnemar_exact", "at least 0", count)
    n, least = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(n, count) for count in range(least + 1))
    # Whole numbers up to here: 2^n is beyond any float from n = 1024 on.
    return min(1.0, 2 * tail / (1 << n))


def difference_interval(differences: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """An interval for the mean difference of two models over all prompts, from paired differences in [-1, 1].

    Bonett and Price's adjustment of the normal interval (2012, for paired proportions): two more prompts, one that
    only the first model solves and one that only the second does, then

        m -+ z * sqrt(v / n),    m the mean, v the variance (divided by n), over the n = P + 2 differences

    With differences of -1, 0 and 1 it is their interval for paired proportions; it takes fractions, such as
    differences of pass@k, as well. Unlike the plain interval it has a width where no prompt differs.

    Args:
        differences: first model's value minus the second's, one per prompt.
        z: quantile of the normal distribution; 1.96 for 95%.

    Returns:
        (low, high), within [-1, 1]; (-1, 1) for no prompts.

    Raises:
        UsageError: a difference outside [-1, 1].

    Example:
        >>> low, high = difference_interval([1.0] * 9 + [-1.0] * 3 + [0.0] * 86)
        >>> round(low, 4), round(high, 4)
        (-0.0124, 0.1324)
    """
    for value in differences:
        if not -1 <= value <= 1:
            raise bad_parameter("differences", "difference_interval", "in [-1, 1]", value)
    if not differences:
        return -1.0, 1.0
    padded = [*differences, 1.0, -1.0]
    mean = math.fsum(padded) / len(padded)
    variance = math.fsum((value - mean) ** 2 for value in padded) / len(padded)
    half = z * math.sqrt(variance / len(padded))
    return max(-1.0, mean - half), min(1.0, mean + half)


def prompts_needed(differences: Sequence[float]) -> int | None:
    """About how many prompts would tell the models apart in four of five evaluations, if the difference is as seen.

        N = (1.96 + 0.84)^2 v / m^2,    m the mean difference, v its variance over prompts

    (for proportions, Connor 1987). It is as uncertain as the difference itself.

    Args:
        differences: first model's value minus the second's, one per prompt.

    Returns:
        N, above the number of prompts at hand; None where the mean difference is 0, which no number would settle.

    Example:
        >>> prompts_needed([1.0] * 9 + [-1.0] * 3 + [0.0] * 88)
        254
    """
    n = len(differences)
    mean = math.fsum(differences) / n if n else 0.0
    if abs(mean) < 1e-12:
        return None
    variance = math.fsum((value - mean) ** 2 for value in differences) / n
    needed = (1.96 + POWER_Z) ** 2 * variance / mean**2
    differing = sum(value != 0 for value in differences) / n
    # The exact test needs six prompts that differ, whatever the formula for large numbers says.
    return max(n + 1, math.ceil(needed), math.ceil(6 / differing))


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two models on the same prompts, by one measure."""

    measure: str
    """What is compared: greedy accuracy, or pass@k."""

    prompts: int
    """Prompts on which both have a value; the others are left out."""

    difference: float
    """Mean of first minus second; NaN without prompts."""

    low: float
    """Lower end of its 95% interval."""

    high: float
    """Upper end of it."""

    only_first: int | None
    """Greedy accuracy: prompts that only the first model solves; None for pass@k."""

    only_second: int | None
    """Likewise for the second."""

    p_value: float | None
    """Greedy accuracy: McNemar's exact test; None for pass@k, where the interval decides."""

    needed: int | None
    """About how many prompts would tell them apart; None where they are told apart, or the difference is 0."""

    @property
    def told_apart(self) -> bool:
        """Whether one is better: by the exact test where there is one, otherwise by the interval."""
        if self.p_value is not None:
            return self.p_value < SIGNIFICANT
        return self.low > 0 or self.high < 0

    def verdict(self, first: str, second: str) -> str:
        """The same in words, for two names."""
        if self.prompts == 0:
            return f"{first} and {second} cannot be compared: no prompt has a judged answer of both."
        if self.told_apart:
            better, worse = (first, second) if self.difference > 0 else (second, first)
            return f"{better} is better than {worse} on prompts like these."
        told = f"{first} and {second} cannot be told apart with {self.prompts:,} prompts"
        if self.needed is None:
            return f"{told}: the difference seen is 0, and how many would be needed depends on the true one."
        return f"{told}; about {_rounded(self.needed):,} would be needed if the difference is as large as it looks."


def compare(measure: str, first: Sequence[float | None], second: Sequence[float | None], *, binary: bool) -> Comparison:
    """Compare two models prompt by prompt.

    Args:
        measure: what the values are.
        first: one model's value on each prompt, in [0, 1]; None = not judged, which leaves the prompt out.
        second: the other's, on the same prompts in the same order.
        binary: whether every value is 0 or 1, so that the exact test applies.

    Raises:
        UsageError: different numbers of prompts.

    Example:
        >>> told = compare("greedy accuracy", [1, 1, 0, 1, None], [1, 0, 0, 0, 1], binary=True)
        >>> told.prompts, told.only_first, told.only_second, told.p_value
        (4, 2, 0, 0.5)
        >>> print(told.verdict("A", "B"))
        A and B cannot be told apart with 4 prompts; about 12 would be needed if the difference is as large as it looks.
    """
    if len(first) != len(second):
        raise UsageError(f"Two models are compared on the same prompts. Got {len(first)} and {len(second)} of them.")
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    differences = [a - b for a, b in pairs]
    low, high = difference_interval(differences)
    only_first = sum(d > 0 for d in differences) if binary else None
    only_second = sum(d < 0 for d in differences) if binary else None
    found = Comparison(
        measure=measure,
        prompts=len(pairs),
        difference=math.fsum(differences) / len(pairs) if pairs else math.nan,
        low=low,
        high=high,
        only_first=only_first,
        only_second=only_second,
        p_value=None if only_first is None or only_second is None else mcnemar_exact(only_first, only_second),
        needed=prompts_needed(differences),
    )
    return dataclasses.replace(found, needed=None) if found.told_apart else found


def _rounded(count: int) -> int:
    """Upwards to two significant digits: more would claim a precision that is not there."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return math.ceil(count / unit) * unit
