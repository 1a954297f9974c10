"""What every side is given: the same prompts, rewards by place, and how much work a step is at least."""

import pytest
from speed.workload import Model, Reward, forward_flops, prompt_texts, random_ids, rows, step_flops

from upweight.rewards.runner import make_runner
from upweight.tasks.prompt import Prompt

MODEL = Model(body=100, head=10, vocabulary=5)


def judged(informative: list[bool], answers: int) -> list[float]:
    """Values of a step's answers, through our runner."""
    prompts = [
        Prompt(row=row, text="?", columns={"informative": flag})
        for row, flag in enumerate(informative)
        for _ in range(answers)
    ]
    scores = make_runner(Reward()).score(prompts, ["!"] * len(prompts), completion_ids=[[1, 2, 3]] * len(prompts))
    return [score.value for score in scores]


def test_prompts_are_the_same_for_every_side_and_eight_in_a_row_differ() -> None:
    texts = prompt_texts(40)
    assert texts == prompt_texts(64)[:40]
    assert all(len(set(texts[first : first + 8])) == 8 for first in range(32))


def test_random_ids_are_words_and_depend_on_the_seed_alone() -> None:
    ids = random_ids(200, 7, seed=3)
    assert set(ids) == set(range(7))
    assert ids == random_ids(200, 7, seed=3) != random_ids(200, 7, seed=4)


@pytest.mark.parametrize(("informative", "flags"), [("all", [True] * 8), ("quarter", [True, False, False, False] * 2)])
def test_every_step_has_as_many_groups_with_a_signal_as_asked_for(informative: str, flags: list[bool]) -> None:
    data = rows(8, 3, informative)
    assert [[row["informative"] for row in data[start : start + 8]] for start in (0, 8, 16)] == [flags] * 3
    assert [row["prompt"] for row in data] == prompt_texts(24)


def test_a_group_with_a_signal_is_half_right_and_another_is_all_wrong() -> None:
    assert judged([True, False], answers=4) == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_the_reward_counts_what_it_was_handed_once() -> None:
    reward = Reward()
    reward(completions=["a", "b"], completion_ids=[[1, 2], [3]], informative=[True, True])
    assert reward.counted() == {"tokens": 3, "answers": 2}
    assert reward.counted() == {"tokens": 0, "answers": 0}


def test_a_forward_pass_multiplies_and_adds_each_weight_once_a_token() -> None:
    assert forward_flops(MODEL, fed=7, scored=3) == 2 * (100 * 7 + 10 * 3)


def test_a_step_samples_once_trains_three_times_and_scores_the_reference_once() -> None:
    shape = {"prompts": 8, "prompt_tokens": 80, "answers": 8, "new_tokens": 64}
    forward = 2 * (100 * (80 + 64 * 63) + 10 * 64 * 64)
    assert step_flops(MODEL, **shape, informative="all", reference=False) == 4 * forward
    assert step_flops(MODEL, **shape, informative="all", reference=True) == 5 * forward
    assert step_flops(MODEL, **shape, informative="quarter", reference=False) == 1.75 * forward


def test_with_a_kl_every_answer_is_trained_on_whatever_it_earned() -> None:
    shape = {"prompts": 8, "prompt_tokens": 80, "answers": 8, "new_tokens": 64, "reference": True}
    assert step_flops(MODEL, **shape, informative="quarter") == step_flops(MODEL, **shape, informative="all")
