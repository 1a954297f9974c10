"""The overlong penalty: where it starts, where it ends, and that filtering does not see it."""

import pytest
import torch
from torch.testing import assert_close

from upweight.objective.advantage import group_advantages, informative_groups
from upweight.objective.presets import preset
from upweight.objective.shaping import overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0)]
)
def test_the_penalty_ramps_from_the_buffer_to_the_budget(length: int, penalty: float) -> None:
    """B68."""
    assert_close(overlong_penalty(torch.tensor([length]), 100, 20).item(), penalty)


def test_a_buffer_of_zero_divides_by_nothing() -> None:
    """B68."""
    assert overlong_penalty(torch.tensor([0, 99, 100]), 100, 0).tolist() == [0.0, 0.0, 0.0]


def test_a_buffer_as_long_as_the_budget_ramps_from_the_first_token() -> None:
    """B68."""
    assert overlong_penalty(torch.tensor([0, 1, 4]), 4, 4).tolist() == [0.0, -0.25, -1.0]


def test_an_answer_without_penalty_has_a_positive_zero() -> None:
    """B68: "-0.0" in a table of rewards looks like a fault."""
    assert str(overlong_penalty(torch.tensor([10]), 100, 20).item()) == "0.0"


def test_the_penalty_is_off_when_off_and_on_when_on() -> None:
    """B70."""
    rewards, lengths = torch.tensor([1.0, 1.0]), torch.tensor([90, 10])
    assert (rewards + overlong_penalty(lengths, 100, 20)).tolist() == [0.5, 1.0]
    assert (rewards + overlong_penalty(lengths, 100, 0)).tolist() == [1.0, 1.0]


def test_the_filter_drops_an_all_wrong_group_whose_shaped_rewards_differ() -> None:
    """B64: kept, the short wrong answer would get a positive advantage."""
    task_rewards, lengths = torch.tensor([0.0, 0.0]), torch.tensor([50, 100])
    assert informative_groups(task_rewards).tolist() == [False, False]
    shaped = task_rewards + overlong_penalty(lengths, 100, 20)
    assert shaped.tolist() == [0.0, -1.0]
    assert group_advantages(shaped, scale="none").tolist() == [0.5, -0.5]


@pytest.mark.parametrize(("budget", "buffer"), [(20480, 4096), (64, 12)])
def test_dapo_takes_a_fifth_of_the_budget_as_its_buffer(budget: int, buffer: int) -> None:
    assert preset("dapo", max_new_tokens=budget).overlong_buffer == buffer
