"""The sum of the passes' gradients: what it is of, where it lies, and over several processes."""

from collections.abc import Callable

import torch
from torch import Tensor

from upweight.train.gradients import GradientSums


def sums() -> GradientSums:
    """Of three tensors, the second of another dtype."""
    return GradientSums([torch.zeros(2, 3), torch.zeros(4, dtype=torch.float64), torch.zeros(5)])


def with_other(rank: GradientSums) -> Callable[[Tensor], Tensor]:
    """Adds the tensors that another process has at its side, call by call."""
    theirs: list[Tensor] = []
    rank.over_ranks(lambda tensor: theirs.append(tensor.clone()) or tensor)  # type: ignore[func-returns-value]
    given = iter(theirs)
    return lambda tensor: tensor.add_(next(given))


def test_gradients_of_a_dtype_lie_side_by_side() -> None:
    made = sums()
    first, third = made.add(0, torch.ones(2, 3)), made.add(2, torch.ones(5))
    assert first.untyped_storage().data_ptr() == third.untyped_storage().data_ptr()
    assert third.storage_offset() == first.numel()
    assert made.add(1, torch.ones(4)).dtype is torch.float64


def test_what_is_added_first_replaces_what_the_memory_held() -> None:
    made = sums()
    assert made.add(2, torch.full((5,), 2.0)).tolist() == [2.0] * 5
    assert made.add(2, torch.full((5,), 3.0, dtype=torch.bfloat16)).tolist() == [5.0] * 5
    assert made.put(2, torch.ones(5)).tolist() == [1.0] * 5


def test_a_sum_that_is_lent_begins_at_0_and_goes_on_from_what_is_there() -> None:
    made = sums()
    made.add(2, torch.full((5,), torch.nan))
    made.clear()
    assert made.lend(2).add_(1.0).tolist() == [1.0] * 5
    assert made.lend(2).tolist() == [1.0] * 5
    assert made.add(2, torch.ones(5)).tolist() == [2.0] * 5
    assert made.holds(2, made.lend(2))


def test_a_sum_knows_itself_until_it_is_dropped() -> None:
    made = sums()
    total = made.add(0, torch.ones(2, 3))
    assert made.holds(0, total)
    assert not made.holds(0, total.clone())
    assert not made.holds(2, total)
    made.clear()
    assert not made.holds(0, total)


def test_over_processes_a_tensor_that_one_has_counts_and_one_that_none_has_stays_without() -> None:
    ours, theirs = sums(), sums()
    ours.add(0, torch.ones(2, 3))
    theirs.add(0, torch.full((2, 3), 2.0))
    theirs.add(1, torch.full((4,), 3.0))
    first, second, third = ours.over_ranks(with_other(theirs))
    assert first is not None
    assert first.tolist() == [[3.0] * 3] * 2
    assert second is not None
    assert second.tolist() == [3.0] * 4
    assert third is None
    assert ours.holds(1, second)


def test_over_processes_without_a_gradient_nothing_is_summed() -> None:
    calls: list[int] = []
    assert sums().over_ranks(lambda tensor: calls.append(1) or tensor) == [None] * 3  # type: ignore[func-returns-value]
    assert calls == [1]
