"""Medians, spreads, ratios, growth and tables."""

import doctest
import importlib
import json

import pytest
from speed.measure import Spread, growth, megabytes, ratio, table


@pytest.mark.parametrize("name", ["measure", "machine", "workload", "vllm_server"])
def test_the_examples_say_what_happens(name: str) -> None:
    done = doctest.testmod(importlib.import_module(f"speed.{name}"))
    assert done.attempted > 0
    assert done.failed == 0


def test_a_spread_is_the_median_and_the_extremes_in_any_order() -> None:
    assert Spread.of([7.0, 1.0, 100.0]) == Spread.of([100.0, 7.0, 1.0])
    assert Spread.of([7.0, 1.0, 100.0]) == Spread(median=7.0, low=1.0, high=100.0, count=3)


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        Spread.of([])


def test_a_spread_comes_back_from_json() -> None:
    spread = Spread.of([1.5, 2.5])
    assert Spread(**json.loads(json.dumps(spread.record()))) == spread


def test_a_ratio_pairs_the_turns_and_is_not_the_ratio_of_the_medians() -> None:
    ours, theirs = [1.0, 10.0, 2.0], [3.0, 20.0, 8.0]
    assert ratio(theirs, ours) == Spread(median=3.0, low=2.0, high=4.0, count=3)
    assert Spread.of(theirs).median / Spread.of(ours).median == 4.0


def test_a_machine_that_slows_down_for_a_while_leaves_the_ratio_alone() -> None:
    ours, slow = [2.0, 2.0, 2.0, 2.0], [1.0, 5.0, 5.0, 1.0]
    stretched = [a * s for a, s in zip(ours, slow, strict=True)]
    assert ratio([3.0 * second for second in stretched], stretched) == Spread(median=3.0, low=3.0, high=3.0, count=4)


def test_turns_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="2 of theirs and 1 of ours"):
        ratio([1.0, 2.0], [1.0])


def test_growth_is_the_exponent_whatever_the_unit() -> None:
    sizes = [1024.0, 2048.0, 8192.0]
    assert growth(sizes, [0.003 * size**1.1 for size in sizes]) == pytest.approx(1.1)
    assert growth(sizes, [5.0, 5.0, 5.0]) == pytest.approx(0.0)


def test_growth_needs_two_sizes() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        growth([3.0, 3.0], [1.0, 2.0])


def test_memory_that_was_not_measured_is_a_dash_and_not_a_zero() -> None:
    assert (megabytes(None), megabytes(0), megabytes(2_500_000)) == ("-", "0", "2")


def test_a_row_that_does_not_fit_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="3 cells does not fit under 2"):
        table(["a", "b"], [[1, 2, 3]])
