"""Two models on the same prompts: tests and intervals against numbers worked out by hand, and by simulation."""

import math

import numpy as np
import pytest

from upweight.evaluate.compare import compare, difference_interval, mcnemar_exact, prompts_needed
from upweight.objective.errors import UsageError


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [
        (0, 0, 1.0),
        (0, 5, 2 / 32),
        (5, 0, 2 / 32),
        (1, 5, 2 * (1 + 6) / 64),
        (3, 3, 1.0),
        (2, 8, 2 * (1 + 10 + 45) / 1024),
    ],
)
def test_the_p_value_is_the_binomials_tail_twice(b: int, c: int, p: float) -> None:
    assert mcnemar_exact(b, c) == pytest.approx(p, abs=1e-15)


def test_thousands_of_prompts_that_differ_do_not_overflow() -> None:
    assert 0 < mcnemar_exact(2400, 2600) < 0.01


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(UsageError, match="only_second"):
        mcnemar_exact(1, -1)


def test_the_interval_is_bonett_and_prices() -> None:
    # n = 10: 4 against 1. With one more on each side: m = 3/12, v = 7/12 - 1/16
    low, high = difference_interval([1.0] * 4 + [-1.0] + [0.0] * 5)
    half = 1.96 * math.sqrt((7 / 12 - 1 / 16) / 12)
    assert (low, high) == pytest.approx((0.25 - half, 0.25 + half))


def test_the_interval_has_a_width_where_no_prompt_differs() -> None:
    low, high = difference_interval([0.0] * 98)
    assert (low, high) == pytest.approx((-1.96 * math.sqrt(0.02 / 100), 1.96 * math.sqrt(0.02 / 100)))


def test_the_interval_stays_within_what_a_difference_can_be() -> None:
    assert difference_interval([1.0, 1.0]) == pytest.approx((-0.3487, 1.0), abs=1e-4)
    assert difference_interval([]) == (-1.0, 1.0)


@pytest.mark.parametrize("value", [1.1, -1.1, math.nan])
def test_a_difference_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="difference_interval"):
        difference_interval([value])


@pytest.mark.parametrize("prompts", [30, 200])
@pytest.mark.parametrize(("first", "second", "answers"), [(0.8, 0.7, 1), (0.5, 0.5, 1), (0.1, 0.05, 1), (0.6, 0.5, 4)])
def test_the_interval_covers_the_true_difference_in_19_of_20_evaluations(
    first: float, second: float, answers: int, prompts: int
) -> None:
    """Prompts are easy or hard for both models, and each answers `answers` times."""
    random = np.random.default_rng(3)
    rounds, hits = 1500, 0
    for _ in range(rounds):
        shift = random.choice([-0.05, 0.05], prompts)
        a = random.binomial(answers, np.clip(first + shift, 0, 1)) / answers
        b = random.binomial(answers, np.clip(second + shift, 0, 1)) / answers
        low, high = difference_interval((a - b).tolist())
        hits += low <= first - second <= high
    assert hits / rounds >= 0.93


def test_equal_models_are_told_apart_in_fewer_than_one_of_20_evaluations() -> None:
    random = np.random.default_rng(4)
    rounds, wrong = 1000, 0
    for _ in range(rounds):
        p = random.beta(0.5, 0.5, 100)
        a, b = (random.binomial(1, p).astype(float).tolist() for _ in range(2))
        wrong += compare("accuracy", a, b, binary=True).told_apart
    assert wrong / rounds <= 0.05


@pytest.mark.parametrize("n", [6, 20, 60])
def test_where_the_exact_test_tells_them_apart_the_interval_leaves_out_zero(n: int) -> None:
    for b in range(n + 1):
        for c in range(n - b + 1):
            if mcnemar_exact(b, c) < 0.05:
                low, high = difference_interval([1.0] * b + [-1.0] * c + [0.0] * (n - b - c))
                assert low > 0 or high < 0


def test_the_number_of_prompts_needed_tells_them_apart_four_times_in_five() -> None:
    """The formula's promise, kept: at N prompts and the difference that was seen, power is about 80%."""
    seen = [1.0] * 12 + [-1.0] * 6 + [0.0] * 82
    needed = prompts_needed(seen)
    assert needed == math.ceil((1.96 + 0.8416) ** 2 * (0.18 - 0.0036) / 0.0036)
    random = np.random.default_rng(5)
    told = 0
    for _ in range(1000):
        b, c, _rest = random.multinomial(needed, [0.12, 0.06, 0.82])
        told += mcnemar_exact(int(b), int(c)) < 0.05
    assert 0.74 <= told / 1000 <= 0.86


def test_the_number_needed_is_above_the_number_at_hand_and_above_six_that_differ() -> None:
    assert prompts_needed([1.0] * 5) == 6
    assert prompts_needed([1.0] + [0.0] * 9) == 71  # 7.85 * (0.1 - 0.01) / 0.01 = 70.6, and 6 / 0.1 = 60
    assert prompts_needed([1.0, -1.0]) is None
    assert prompts_needed([]) is None


def test_a_prompt_that_one_model_has_no_verdict_on_is_left_out_of_both() -> None:
    found = compare("accuracy", [1.0, None, 0.0, 1.0], [0.0, 1.0, None, 1.0], binary=True)
    assert (found.prompts, found.difference, found.only_first, found.only_second) == (2, 0.5, 1, 0)


def test_a_clear_difference_is_said_whichever_way_it_goes() -> None:
    for first, second in (([1.0] * 10, [0.0] * 10), ([0.0] * 10, [1.0] * 10)):
        found = compare("accuracy", first, second, binary=True)
        assert found.p_value == pytest.approx(2 / 1024)
        assert found.needed is None
        assert found.verdict("A", "B").startswith("A is better than B" if first[0] else "B is better than A")


def test_a_small_difference_is_said_to_be_too_small_with_the_number_it_would_take() -> None:
    values = [1.0] * 12 + [0.0] * 88
    found = compare("accuracy", values, [0.0] * 6 + values[:-6], binary=True)
    assert found.prompts == 100
    assert found.verdict("A", "B").startswith("A and B cannot be told apart with 100 prompts")
    lead = compare("accuracy", [1.0] * 104 + [0.0] * 96, [1.0] * 100 + [0.0] * 100, binary=True)
    assert lead.verdict("new", "old") == (
        "new and old cannot be told apart with 200 prompts; about 390 would be needed if the difference is as large "
        "as it looks."
    )


def test_no_difference_names_no_number() -> None:
    found = compare("accuracy", [1.0, 0.0], [1.0, 0.0], binary=True)
    assert "the difference seen is 0" in found.verdict("A", "B")


def test_shares_are_told_apart_by_the_interval() -> None:
    clear = compare("pass@4", [0.75] * 40, [0.25] * 40, binary=False)
    assert clear.told_apart
    assert (clear.p_value, clear.only_first) == (None, None)
    assert not compare("pass@4", [0.75, 0.25] * 20, [0.25, 0.75] * 20, binary=False).told_apart


def test_nothing_in_common_is_no_comparison() -> None:
    found = compare("accuracy", [None, 1.0], [1.0, None], binary=True)
    assert found.prompts == 0
    assert math.isnan(found.difference)
    assert found.verdict("A", "B") == "A and B cannot be compared: no prompt has a judged answer of both."


def test_different_numbers_of_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match="Got 1 and 2"):
        compare("accuracy", [1.0], [1.0, 0.0], binary=True)
