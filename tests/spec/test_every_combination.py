"""Loss, gradient and metrics against the specification, for every combination of choices."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from batches import CORRECTIONS, EDGES, KLS, RATIOS, SURROGATES, WEIGHTS, Choices, all_combinations
from both import FLOAT32, FLOAT64, Tolerance, case, compare
from whole import derivative, fix, flat_sides, near_a_kink

Record = Callable[[str, object], None]

COMBINATIONS = list(enumerate(all_combinations()))
PER_TOKEN = list(enumerate(all_combinations(per_token=True), start=len(COMBINATIONS)))


def check(cases: Sequence[tuple[int, Choices]], tolerance: Tolerance, record: Record) -> None:
    counts = [compare(case(choices, index, tolerance), choices, index, tolerance) for index, choices in cases]
    if tolerance is FLOAT32:
        record("in_float32", len(counts))
        return
    record("combinations", len(counts))
    record("derivatives", sum(compared for compared, _ in counts))
    record("left_out", sum(left_out for _, left_out in counts))


def with_axes(cases: Sequence[tuple[int, Choices]], **axes: str) -> list[tuple[int, Choices]]:
    return [(index, choices) for index, choices in cases if axes.items() <= choices.axes.items()]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_loss_gradient_and_metrics_are_the_specified_ones(
    weights: str, ratio: str, surrogate: str, record_property: Record
) -> None:
    cases = with_axes(COMBINATIONS, weights=weights, ratio=ratio, surrogate=surrogate)
    assert len(cases) == 91
    check(cases, FLOAT64, record_property)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_advantages_that_differ_within_an_answer_are_the_specified_ones(
    ratio: str, surrogate: str, record_property: Record
) -> None:
    cases = with_axes(PER_TOKEN, ratio=ratio, surrogate=surrogate)
    assert len(cases) == 78
    check(cases, FLOAT64, record_property)


@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(1, 10))])
def test_float32_stays_within_its_tolerance(start: int, record_property: Record) -> None:
    check((COMBINATIONS + PER_TOKEN)[start::10], FLOAT32, record_property)


def test_every_choice_meets_every_edge() -> None:
    """Pairwise, and so do the choices among each other: every combination is there once."""
    wanted = {
        *itertools.product(["weights"], WEIGHTS, EDGES),
        *itertools.product(["ratio"], RATIOS, EDGES),
        *itertools.product(["surrogate"], SURROGATES, EDGES),
        *itertools.product(["kl"], KLS, EDGES),
        *itertools.product(["correction"], CORRECTIONS, EDGES),
    }
    met = {
        (axis, choice, case(choices, index).edge)
        for index, choices in COMBINATIONS
        for axis, choice in choices.axes.items()
    }
    assert met == wanted
    assert len({tuple(choices.axes.values()) for _, choices in COMBINATIONS}) == 4 * 2 * 5 * 7 * 13


def test_the_losses_are_not_trivial() -> None:
    """Most combinations have a gradient, and tokens of every kind occur; hardly any derivative is left out."""
    seen: Counter[str] = Counter()
    for index, choices in COMBINATIONS:
        batch = case(choices, index)
        fixed = fix(batch, choices)
        slopes = [derivative(batch, choices, fixed, t)[0] for t in range(len(batch.answer))]
        seen["with a gradient"] += any(abs(slope) > 1e-6 for slope in slopes)
        seen["derivatives"] += len(slopes)
        seen["near a kink"] += sum(near_a_kink(batch, choices, fixed, t) for t in range(len(batch.answer)))
        seen["rejected"] += fixed.corrections.count(None)
        seen["truncated"] += fixed.corrections.count(choices.cap) if choices.correction == "tis" else 0
        seen.update(f"{choices.surrogate} {side}" for side in flat_sides(batch, choices, fixed) if side)
    assert seen["with a gradient"] > 0.85 * len(COMBINATIONS)
    assert seen["derivatives"] > 30_000
    assert seen["near a kink"] < 0.01 * seen["derivatives"]
    sides = ("clip low", "clip high", "clip-high low", "clip-high high", "dual-clip dual", "cispo low", "cispo high")
    assert min(seen[kind] for kind in ("rejected", "truncated", *sides)) > 100, seen
