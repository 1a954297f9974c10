"""Greedy accuracy on held-out prompts, with the interval that the number of prompts allows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from upweight.evaluate.answers import Answer, collect
from upweight.objective.errors import bad_parameter
from upweight.rewards.runner import RewardRunner
from upweight.rewards.score import Score
from upweight.rollout.completion import Engine, Sampling
from upweight.tasks.prompt import Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """The result of an evaluation. Answers that could not be judged are counted apart, never as wrong."""

    correct: int
    """Answers whose reward is above 0.5."""

    n: int
    """Answers that were judged: the denominator."""

    value: float
    """correct / n; NaN where nothing could be judged."""

    low: float
    """Lower end of the 95% Wilson interval."""

    high: float
    """Upper end of the 95% Wilson interval."""

    unscored: int
    """Answers without a score: the reward raised, did not apply, or could not read the gold answer."""

    truncated: int
    """Answers that used up the budget, unscored ones included."""

    mean_length: float
    """Mean length of all answers in tokens, the end token included."""

    answers: tuple[str, ...]
    """What was answered, in the order of the prompts."""

    scores: tuple[Score, ...]
    """The verdicts, in the order of the prompts."""


def wilson_interval(successes: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson 1927).

    With p = successes / n:

        (p + z^2 / 2n  -+  z * sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Unlike p -+ z * sqrt(p (1 - p) / n) it stays in [0, 1] and keeps its width at 0 and n successes.

    Args:
        successes: 0 to n; a share of n that is no whole number is one of an effective number of trials.
        n: trials, >= 0.
        z: quantile of the normal distribution, >= 0; 1.96 for 95%.

    Returns:
        (low, high); (0, 1) where there were no trials.

    Raises:
        UsageError: successes outside 0..n, or z negative or not finite.

    Example:
        >>> low, high = wilson_interval(8, 10)
        >>> round(low, 4), round(high, 4)
        (0.4902, 0.9433)
    """
    if not 0 <= successes <= n:
        raise bad_parameter("successes", "wilson_interval", f"in 0..n with n={n}", successes)
    if not 0 <= z < math.inf:
        raise bad_parameter("z", "wilson_interval", "at least 0 and finite", z)
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and n successes one end is 0 or 1 exactly; rounding would leave it a hair outside.
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == n else (centre + spread) / scale
    return low, high


def greedy_accuracy(
    engine: Engine,
    encode: Callable[[Prompt], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    prompts: Sequence[Prompt],
    runner: RewardRunner,
    max_new_tokens: int,
) -> Accuracy:
    """Answer every prompt once, greedily, and count what is correct.

    Args:
        engine: samples the answers, at temperature 0.
        encode: the prompt's token ids, chat template applied.
        decode: an answer's text from its ids, without the end token.
        prompts: what to ask, at least one.
        runner: judges the answers; correct means a reward above 0.5.
        max_new_tokens: budget of one answer.

    Returns:
        The accuracy over the answers that could be judged, with its 95% interval.

    Raises:
        UsageError: no prompts.
    """
    if not prompts:
        raise bad_parameter("prompts", "greedy_accuracy", "at least one prompt", prompts)
    groups = collect(engine, encode, decode, prompts, runner, greedy(max_new_tokens))
    return accuracy_of([group[0] for group in groups])


def greedy(max_new_tokens: int) -> Sampling:
    """The most likely token, again and again: what an accuracy is measured with."""
    return Sampling(max_new_tokens=max_new_tokens, temperature=0.0)


def accuracy_of(answers: Sequence[Answer]) -> Accuracy:
    """Count what is correct among one answer to each prompt, at least one; see `greedy_accuracy`."""
    judged = [answer.correct for answer in answers if answer.correct is not None]
    low, high = wilson_interval(sum(judged), len(judged))
    return Accuracy(
        correct=sum(judged),
        n=len(judged),
        value=sum(judged) / len(judged) if judged else math.nan,
        low=low,
        high=high,
        unscored=len(answers) - len(judged),
        truncated=sum(answer.truncated for answer in answers),
        mean_length=sum(answer.tokens for answer in answers) / len(answers),
        answers=tuple(answer.text for answer in answers),
        scores=tuple(answer.score for answer in answers),
    )
