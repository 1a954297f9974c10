"""From groups to a flat batch: masks, shaping, advantages."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rollout.completion import FinishReason
from upweight.train.batch import make_batch, with_advantages
from upweight.train.records import Batch, Group
from upweight.train.step import Learner, training_step

PLAIN = Objective(kl_coef=0.0, adv_norm="none")


def shaped(groups: list[Group], objective: Objective, budget: int = 100) -> Batch:
    return with_advantages(make_batch(groups, objective), objective, budget)


def rewards_of(batch: Batch) -> list[float]:
    assert batch.rewards is not None
    return [round(reward, 6) for reward in batch.rewards.tolist()]


def advantages_of(batch: Batch) -> list[float]:
    assert batch.advantages is not None
    return [round(advantage, 6) for advantage in batch.advantages.tolist()]


def test_tokens_lie_answer_after_answer_with_their_sampler_log_probs(
    group: Callable[..., Group], completion: Any
) -> None:
    """B50: the sampled ids and log-probs are trained on as they came."""
    answers = [completion([1, 2], [-0.5, -0.25]), completion([3], [math.nan]), completion([4, 5], [-2.0, -4.0])]
    batch = make_batch([group([1.0, math.nan, 0.0], completions=answers)], PLAIN)
    assert batch.seq_id.tolist() == [0, 0, 2, 2]
    assert batch.sampler_logprobs.tolist() == [-0.5, -0.25, -2.0, -4.0]
    assert batch.group_of.tolist() == [0, 0, 0]


def test_equal_groups_side_by_side_have_no_advantage(group: Callable[..., Group]) -> None:
    """B18: rewards (1, 1) and (0, 0): all 0, where mixed-up groups would give +-0.5."""
    batch = shaped([group([1.0, 1.0], row=0), group([0.0, 0.0], row=1)], PLAIN)
    assert set(advantages_of(batch)) == {0.0}


def test_the_advantage_of_every_preset_default_is_divided_by_the_std(group: Callable[..., Group]) -> None:
    """B14: rewards 1, 0, 0, 0 with ddof 1 and eps 1e-6: 1.5 / (1 + 2e-6)."""
    batch = shaped([group([1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1])], Objective(kl_coef=0.0))
    assert advantages_of(batch) == [1.499997, -0.499999, -0.499999, -0.499999]


def test_a_masked_truncated_answer_is_out_of_the_loss(group: Callable[..., Group], completion: Any) -> None:
    """--truncated mask; the sampler's finish reason decides, never the length."""
    answers = [
        completion([97] * 4, reason=FinishReason.STOP),
        completion([97] * 4, reason=FinishReason.LENGTH),
    ]
    groups = [group([1.0, 0.0], completions=answers)]
    masked = shaped(groups, dataclasses.replace(PLAIN, truncated="mask"), 4)
    kept = shaped(groups, PLAIN, 4)
    assert (masked.trained.tolist(), masked.seq_id.tolist()) == ([True, False], [0] * 4)
    assert (kept.trained.tolist(), kept.seq_id.tolist()) == ([True, True], [0] * 4 + [1] * 4)


def test_a_masked_truncated_answer_still_counts_in_its_groups_baseline(
    group: Callable[..., Group], completion: Any
) -> None:
    """Rewards (1, 0, 0), the last one masked: the mean is 1/3; over the two that are trained on it would be 1/2."""
    answers = [completion([97]), completion([97]), completion([97], reason=FinishReason.LENGTH)]
    groups = [group([1.0, 0.0, 0.0], completions=answers)]
    assert advantages_of(shaped(groups, dataclasses.replace(PLAIN, truncated="mask"))) == [0.666667, -0.333333]


def test_the_batchs_std_is_over_filtered_groups_too(group: Callable[..., Group]) -> None:
    """Rewards (1, 0, 1, 1): std 0.5; over the informative group alone it would be the root of a half."""
    objective = dataclasses.replace(PLAIN, adv_norm="batch", adv_eps=0.0, filter_groups=True)
    batch = shaped([group([1.0, 0.0], [1, 1], row=0), group([1.0, 1.0], [1, 1], row=1)], objective)
    assert advantages_of(batch) == [1.0, -1.0]


@pytest.mark.parametrize(("length", "penalty"), [(80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0)])
def test_the_overlong_penalty_is_added_to_the_task_reward(
    group: Callable[..., Group], length: int, penalty: float
) -> None:
    """B68, B70: on is on: a right answer of 90 tokens is worth 0.5 with a budget of 100 and a buffer of 20."""
    batch = shaped([group([1.0, 0.0], [length, 1])], dataclasses.replace(PLAIN, overlong_buffer=20))
    assert rewards_of(batch) == pytest.approx([1.0 + penalty, 0.0])
    assert batch.task_rewards.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("off", [0, None])
def test_without_a_buffer_the_reward_is_the_task_reward(group: Callable[..., Group], off: int | None) -> None:
    """B70: off is off."""
    batch = shaped([group([1.0, 0.0], [100, 1])], dataclasses.replace(PLAIN, overlong_buffer=off))
    assert rewards_of(batch) == [1.0, 0.0]


def test_the_penalty_reaches_the_report(group: Callable[..., Group], learner: Callable[..., Learner]) -> None:
    """B70: the same on the way through a whole step; reward stays the task's, reward_shaped is after shaping."""
    work = learner([group([1.0, 0.0], [7, 1])], objective=dataclasses.replace(PLAIN, overlong_buffer=2))
    report, _ = training_step(work, 1)
    assert (report.reward, report.reward_shaped) == (0.5, 0.25)


def test_a_masked_answer_is_not_punished_for_its_length(group: Callable[..., Group], completion: Any) -> None:
    """Masked for its length and punished for it would be twice; an answer inside the buffer still is."""
    answers = [completion([97] * 9), completion([97] * 10, reason=FinishReason.LENGTH)]
    objective = dataclasses.replace(PLAIN, overlong_buffer=2)
    groups = [group([1.0, 0.0], completions=answers)]
    assert rewards_of(shaped(groups, objective, 10)) == [0.5, -1.0]
    assert rewards_of(shaped(groups, dataclasses.replace(objective, truncated="mask"), 10)) == [0.5, 0.0]


def test_the_length_that_is_punished_counts_trainable_tokens(group: Callable[..., Group], completion: Any) -> None:
    """Length means masked-in tokens: two of the four are tool output."""
    answers = [completion([97] * 4, mask=[True, False, False, True]), completion([97] * 4)]
    batch = shaped([group([0.0, 0.0], completions=answers)], dataclasses.replace(PLAIN, overlong_buffer=2), 4)
    assert rewards_of(batch) == [0.0, -1.0]


def test_a_kl_in_the_reward_comes_off_before_the_group_statistics(group: Callable[..., Group]) -> None:
    """beta * sum_t k1_t: lengths 2 and 4, 0.1 nats a token, beta 0.5: rewards 0.9 and -0.2, advantages +-0.55."""
    objective = dataclasses.replace(PLAIN, kl_coef=0.5, kl_place="reward")
    batch = make_batch([group([1.0, 0.0], [2, 4])], objective)
    batch = dataclasses.replace(batch, old_logprobs=torch.full((6,), -1.0), ref_logprobs=torch.full((6,), -1.1))
    batch = with_advantages(batch, objective, 100)
    assert rewards_of(batch) == [0.9, -0.2]
    assert advantages_of(batch) == [0.55] * 2 + [-0.55] * 4


def test_a_kl_in_the_reward_makes_equal_rewards_differ(
    group: Callable[..., Group], learner: Callable[..., Learner], policy_of: Any, nudged: Any
) -> None:
    """It comes after filtering and before the advantage, so an all-right group trains on its KL."""
    reference: Policy = nudged(policy_of(), seed=9, scale=0.1)
    objective = Objective(kl_coef=0.5, kl_place="reward")
    work = learner([group([1.0, 1.0], [2, 5])], reference=reference, objective=objective)
    report, batch = training_step(work, 1)
    assert batch.advantages is not None
    assert report.updates == 1
    assert batch.advantages.abs().min() > 0.1
    assert report.reward == 1.0
    assert report.reward_shaped != 1.0


def test_an_unscored_answer_stays_unscored_through_shaping(group: Callable[..., Group]) -> None:
    """B22: a penalty added to NaN is no reward, and the mean leaves it out."""
    batch = shaped([group([1.0, math.nan, 0.0], [90, 90, 1])], dataclasses.replace(PLAIN, overlong_buffer=20))
    assert [reward == reward for reward in batch.rewards.tolist()] == [True, False, True]  # type: ignore[union-attr]
    assert advantages_of(batch) == [0.25] * 90 + [-0.25]


def test_a_group_without_any_score_is_out(group: Callable[..., Group]) -> None:
    """B22: all none: advantages 0, excluded."""
    batch = shaped([group([math.nan] * 2, row=0), group([1.0, 0.0], [1, 1], row=1)], PLAIN)
    assert batch.trained.tolist() == [False, False, True, True]
    assert advantages_of(batch) == [0.5, -0.5]


def test_an_answer_without_trainable_tokens_contributes_its_reward_only(
    group: Callable[..., Group], completion: Any, learner: Callable[..., Learner]
) -> None:
    """All of it is tool output: it counts in the baseline, and is in no pass."""
    answers = [completion([97, 98]), completion([97, 98], mask=[False, False])]
    report, batch = training_step(learner([group([1.0, 0.0], completions=answers)], objective=PLAIN), 1)
    assert advantages_of(batch) == [0.5, 0.5]
    assert (report.updates, report.trained_tokens) == (1, 2)
