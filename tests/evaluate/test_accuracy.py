"""The Wilson interval against numbers worked out by hand; greedy accuracy on an engine that repeats its prompt."""

import math
from collections.abc import Sequence

import pytest

from upweight.evaluate.accuracy import greedy_accuracy, wilson_interval
from upweight.objective.errors import UsageError
from upweight.rewards.runner import RewardRunner, make_runner
from upweight.rollout.completion import Completion, FinishReason, Sampling
from upweight.tasks.prompt import Prompt


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # z = 2: 5 of 10: (0.5 + 0.2 -+ 2 sqrt(0.025 + 0.01)) / 1.4
        (5, 10, (0.7 - 2 * math.sqrt(0.035)) / 1.4, (0.7 + 2 * math.sqrt(0.035)) / 1.4),
        # 0 of n: the upper end is z^2 / (n + z^2); n of n mirrors it
        (0, 12, 0.0, 0.25),
        (12, 12, 0.75, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_interval_is_wilsons(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n, z=2.0) == pytest.approx((low, high), abs=1e-15)


def test_the_interval_stays_inside_and_around_the_share() -> None:
    for n in range(1, 40):
        for successes in range(n + 1):
            low, high = wilson_interval(successes, n)
            assert 0 <= low <= successes / n <= high <= 1


@pytest.mark.parametrize(("successes", "n", "z"), [(3, 2, 1.96), (-1, 2, 1.96), (1, 2, -1.0), (1, 2, math.nan)])
def test_impossible_counts_are_refused(successes: int, n: int, z: float) -> None:
    with pytest.raises(UsageError, match="wilson_interval"):
        wilson_interval(successes, n, z)


class Parrot:
    """An engine that answers a prompt with the prompt's own ids, and notes how it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Sampling, list[tuple[int, int]]]] = []

    def generate(
        self,
        prompt_token_ids: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        *,
        keys: Sequence[tuple[int, int]] | None = None,
    ) -> list[list[Completion]]:
        self.asked.append((n, sampling, list(keys or ())))
        return [[self.echo(ids)] for ids in prompt_token_ids]

    def echo(self, ids: Sequence[int]) -> Completion:
        return Completion(
            token_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            loss_mask=(True,) * len(ids),
            weights_versions=(0,) * len(ids),
            finish_reason=FinishReason.LENGTH if len(ids) > 2 else FinishReason.STOP,
        )


def encode(prompt: Prompt) -> list[int]:
    return [ord(letter) for letter in str(prompt.text)]


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def test_greedy_accuracy_counts_the_correct_and_keeps_the_unjudged_apart() -> None:
    engine = Parrot()
    texts_and_golds = [("1", "1"), ("22", "2"), ("3", "3"), ("444", None)]
    rows = [Prompt(row=7 + i, text=text, answer=gold) for i, (text, gold) in enumerate(texts_and_golds)]
    result = greedy_accuracy(engine, encode, decode, rows, make_runner("exact"), max_new_tokens=3)
    assert engine.asked == [(1, Sampling(max_new_tokens=3, temperature=0.0), [(7, 0), (8, 0), (9, 0), (10, 0)])]
    assert (result.correct, result.n, result.unscored, result.truncated) == (2, 3, 1, 1)
    assert result.value == pytest.approx(2 / 3)
    assert (result.low, result.high) == wilson_interval(2, 3)
    assert result.mean_length == 7 / 4
    assert result.answers == ("1", "22", "3", "444")
    assert [score.value for score in result.scores[:3]] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(("reward", "correct"), [(0.5, 0), (0.51, 1), (1.0, 1), (-1.0, 0)])
def test_correct_means_a_reward_above_one_half(reward: float, correct: int) -> None:
    runner = RewardRunner([("fixed", lambda **_: [reward], 1.0)])
    rows = [Prompt(row=0, text="a")]
    assert greedy_accuracy(Parrot(), encode, decode, rows, runner, max_new_tokens=3).correct == correct


def test_nothing_judged_is_no_accuracy_of_zero() -> None:
    result = greedy_accuracy(
        Parrot(), encode, decode, [Prompt(row=0, text="a")], make_runner("exact"), max_new_tokens=3
    )
    assert math.isnan(result.value)
    assert (result.n, result.unscored, result.low, result.high) == (0, 1, 0.0, 1.0)


def test_an_evaluation_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one prompt"):
        greedy_accuracy(Parrot(), encode, decode, [], make_runner("exact"), max_new_tokens=3)
