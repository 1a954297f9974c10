"""Rewards for form and length."""

import pytest

from upweight.objective.shaping import overlong_penalty
from upweight.rewards.formats import make_length, make_overlong, think_format


@pytest.mark.parametrize(
    ("prompt", "completion", "reward"),
    [
        pytest.param("2+2? <think>\n", "2+2\n</think>\n4", 1.0, id="B52 the opening tag is in the prompt"),
        pytest.param("2+2? <think>\n", "2+2 = 4", 0.0, id="B52 never closed"),
        pytest.param("2+2? <think>\n", "</think>4", 0.0, id="B52 nothing thought"),
        pytest.param("2+2?", "<think></think>4", 0.0, id="B52 an empty block"),
        pytest.param("2+2?", "<think> \n </think>4", 0.0, id="a blank block"),
        pytest.param("2+2?", "<think>2+2</think>4", 1.0, id="both tags written"),
        pytest.param("2+2?", "\n<think>2+2</think>4", 1.0, id="a line before"),
        pytest.param("2+2?", "2+2</think>4", 0.0, id="no opening tag anywhere"),
        pytest.param("2+2?", "Well. <think>2+2</think>4", 0.0, id="text before the block"),
        pytest.param("2+2?", "<think>2+2</think>", 0.0, id="no answer"),
        pytest.param("2+2?", "<think>2+2</think> \n", 0.0, id="a blank answer"),
        pytest.param("2+2?", "<think>a</think><think>b</think>4", 0.0, id="two blocks"),
        pytest.param("2+2?", "<think>a</think></think>4", 0.0, id="closed twice"),
        pytest.param("2+2? <think>\n", "<think>2+2</think>4", 0.0, id="opened twice"),
        pytest.param([{"role": "user", "content": "2+2?"}], "2+2</think>4", 1.0, id="a template may have opened it"),
        pytest.param([{"role": "user", "content": "2+2?"}], "<think>2+2</think>4", 1.0, id="or not"),
    ],
)
def test_one_thinking_block_with_something_in_it_is_rewarded(prompt: object, completion: str, reward: float) -> None:
    assert think_format([completion], prompts=[prompt]) == [reward]
    assert think_format([[{"role": "assistant", "content": completion}]], prompts=[prompt]) == [reward]


def test_without_prompts_the_opening_tag_may_be_missing() -> None:
    assert think_format(["2+2</think>4", "2+2"]) == [1.0, 0.0]


@pytest.mark.parametrize("buffer", [0, 7, 20])
def test_overlong_is_the_penalty_of_the_objective(buffer: int) -> None:
    import torch

    lengths = list(range(30))
    expected = overlong_penalty(torch.tensor(lengths), 20, buffer).tolist()
    given = make_overlong(max_length=20, buffer=buffer)(completion_ids=[[0] * n for n in lengths])
    assert given == pytest.approx(expected, abs=1e-6)


def test_length_is_the_share_of_the_budget_that_is_left() -> None:
    assert make_length(max_length=4)(completion_ids=[[], [1], [1] * 4, [1] * 9]) == [1.0, 0.75, 0.0, 0.0]
