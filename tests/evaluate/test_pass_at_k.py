"""pass@k against all sets of k answers, and what its interval covers."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from upweight.evaluate.accuracy import wilson_interval
from upweight.evaluate.answers import Answer
from upweight.evaluate.pass_at_k import mean_interval, pass_at_k, pass_rate
from upweight.objective.errors import UsageError
from upweight.rewards.score import Score, Status
from upweight.tasks.prompt import Prompt


def answer(correct: bool | None, row: int = 0) -> Answer:
    score = Score(value=math.nan, status=Status.ERROR) if correct is None else Score(value=float(correct))
    return Answer(prompt=Prompt(row=row, text="?"), sample=0, text="", tokens=1, truncated=False, score=score)


def group(marks: str) -> list[Answer]:
    """One prompt's answers: + right, - wrong, ? not judged."""
    return [answer({"+": True, "-": False, "?": None}[mark]) for mark in marks]


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_the_estimate_is_the_share_of_sets_that_hold_a_right_answer(n: int) -> None:
    for c in range(n + 1):
        right = [place < c for place in range(n)]
        for k in range(1, n + 1):
            sets = list(itertools.combinations(right, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, sets)) / len(sets), abs=1e-15)


def test_the_estimate_is_unbiased() -> None:
    """Over all outcomes of n answers, its mean is 1 - (1 - p)^k."""
    n, p = 6, 0.3
    for k in range(1, n + 1):
        mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_many_answers_do_not_overflow() -> None:
    assert pass_at_k(5000, 1, 1) == pytest.approx(1 / 5000)
    assert pass_at_k(5000, 2500, 2500) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(UsageError, match="pass_at_k"):
        pass_at_k(n, c, k)


def test_with_one_answer_a_prompt_the_interval_is_wilsons() -> None:
    for right in range(21):
        assert mean_interval([1.0] * right + [0.0] * (20 - right)) == pytest.approx(wilson_interval(right, 20))


def test_several_answers_a_prompt_narrow_the_interval() -> None:
    low, high = mean_interval([0.25, 0.5, 0.5, 0.75] * 5)
    single_low, single_high = wilson_interval(10, 20)
    assert single_low < low < 0.5 < high < single_high


def test_no_prompts_say_nothing() -> None:
    assert mean_interval([]) == (0.0, 1.0)


def test_equal_values_keep_a_width() -> None:
    low, high = mean_interval([0.5] * 20)
    assert (low, high) == wilson_interval(10, 20)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_value_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="mean_interval"):
        mean_interval([0.5, value])


def always(_: np.random.Generator, n: int) -> np.ndarray:
    return np.full(n, 0.5)


def mixed(random: np.random.Generator, n: int) -> np.ndarray:
    return random.beta(0.2, 0.2, n)


def hard(random: np.random.Generator, n: int) -> np.ndarray:
    return random.beta(0.3, 3.0, n)


def easy(random: np.random.Generator, n: int) -> np.ndarray:
    return random.beta(20.0, 2.0, n)


@pytest.mark.parametrize("prompts", [30, 200])
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("difficulty", [always, mixed, hard, easy], ids=lambda f: f.__name__)
def test_the_interval_covers_the_truth_in_19_of_20_evaluations(
    difficulty: Callable[[np.random.Generator, int], np.ndarray], k: int, prompts: int
) -> None:
    """Prompts are drawn, then 8 answers to each; the truth is pass@k over all prompts there could be."""
    random = np.random.default_rng(1)
    table = np.array([pass_at_k(8, c, k) for c in range(9)])
    truth = float(np.mean(1 - (1 - difficulty(random, 400_000)) ** k))
    rounds = 1500
    hits = 0
    for _ in range(rounds):
        values = table[random.binomial(8, difficulty(random, prompts))]
        low, high = mean_interval(values.tolist())
        hits += low <= truth <= high
    # 30 prompts near 0 or 1 hold few that differ: Wilson's own interval falls to 0.88 there.
    assert hits / rounds >= (0.93 if prompts == 200 else 0.87)


def test_the_plain_normal_interval_covers_far_less_where_nearly_all_is_solved() -> None:
    """Why Wilson's: where nearly every prompt is solved by one of 4 answers, m -+ 1.96 s / sqrt(n) is often a point."""
    random = np.random.default_rng(2)
    truth = float(np.mean(1 - (1 - easy(random, 400_000)) ** 4))
    table = np.array([pass_at_k(8, c, 4) for c in range(9)])
    hits = [0, 0]
    for _ in range(500):
        values = table[random.binomial(8, easy(random, 30))]
        half = 1.96 * values.std(ddof=1) / math.sqrt(30)
        hits[0] += values.mean() - half <= truth <= values.mean() + half
        low, high = mean_interval(values.tolist())
        hits[1] += low <= truth <= high
    assert hits[0] / 500 < 0.6
    assert hits[1] / 500 >= 0.9


def rate_of(*prompts: str, k: int = 1) -> tuple[float, int, int]:
    found = pass_rate([[group(marks) for marks in prompts]], k)
    return found.value, found.prompts, found.left_out


def test_answers_that_could_not_be_judged_are_left_out_of_the_count() -> None:
    assert rate_of("+?", "-?") == (0.5, 2, 0)
    assert rate_of("++-?", k=2) == (1.0, 1, 0)
    assert rate_of("+---", k=2) == (0.5, 1, 0)


def test_a_prompt_with_too_few_judged_answers_is_left_out_and_counted() -> None:
    assert rate_of("+?", "++", k=2) == (1.0, 1, 1)
    value, prompts, left_out = rate_of("??")
    assert math.isnan(value)
    assert (prompts, left_out) == (0, 1)


def test_seeds_are_put_together_and_shown_apart() -> None:
    by_seed: Sequence[Sequence[Sequence[Answer]]] = [[group("+-"), group("--")], [group("--"), group("-+")]]
    found = pass_rate(by_seed, 2)
    assert found.by_seed == (0.5, 0.5)
    assert found.estimates == (0.5, 0.5)  # one of four answers is right: 3 of 6 pairs hold it
    assert found.value == 0.5


@pytest.mark.parametrize("k", [0, 3])
def test_a_k_that_a_seed_has_no_answers_for_is_refused(k: int) -> None:
    with pytest.raises(UsageError, match="n=2 answers"):
        pass_rate([[group("+-")], [group("+-")]], k)
