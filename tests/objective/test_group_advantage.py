"""Advantages, by numbers worked out by hand: groups, spread, missing scores, and a critic's."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.objective.advantage import (
    gae,
    group_advantages,
    informative_groups,
    terminal_rewards,
    uninformative_share,
)

NAN = float("nan")


def values(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_a_group_of_one_has_advantage_zero(scale: str, baseline: str) -> None:
    """B13."""
    assert group_advantages(values(0.7), group_size=1, scale=scale, baseline=baseline).tolist() == [0.0]


@pytest.mark.parametrize(
    ("ddof", "eps", "expected"),
    [
        (1, 0.0, (1.5, -0.5, -0.5, -0.5)),
        (0, 0.0, (1.7320508, -0.5773503, -0.5773503, -0.5773503)),
        (1, 1e-4, (1.4997001, -0.4999000, -0.4999000, -0.4999000)),
    ],
)
def test_the_std_has_one_degree_of_freedom_less_and_eps_is_added_to_it(
    ddof: int, eps: float, expected: tuple[float, ...]
) -> None:
    """B14."""
    advantages = group_advantages(values(1, 0, 0, 0), ddof=ddof, eps=eps)
    assert_close(advantages, values(*expected), atol=5e-8, rtol=0)


def test_by_default_ddof_is_one_and_eps_is_a_millionth() -> None:
    """B14."""
    assert_close(group_advantages(values(1, 0, 0, 0))[0].item(), 0.75 / (0.5 + 1e-6), atol=1e-14, rtol=0)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_rewards_far_from_1_have_a_std_too(size: float) -> None:
    """Their squares leave the range of a float."""
    assert_close(group_advantages(values(size, -size), eps=0.0), values(0.5**0.5, -(0.5**0.5)), atol=1e-15, rtol=0)


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
@pytest.mark.parametrize("power", [900, 3, -1, -900])
def test_rewards_scaled_by_a_power_of_two_have_the_same_advantages_to_the_last_bit(baseline: str, power: int) -> None:
    rewards = values(0.3, -1.7, 0.25, 0.1, 12.5)
    scaled = values(*[reward * 2.0**power for reward in rewards.tolist()])
    expected = group_advantages(rewards, baseline=baseline, eps=0.0)
    assert torch.equal(group_advantages(scaled, baseline=baseline, eps=0.0), expected)


def test_leave_one_out_stays_unscaled_where_the_others_have_no_spread() -> None:
    """B15."""
    rewards = values(0.0, *[0.7] * 7, dtype=torch.float32)
    advantages = group_advantages(rewards, baseline="leave-one-out")
    # For each 0.7 the others are (0, six times 0.7): mean 0.6, variance (0.36 + 6 * 0.01) / 6 = 0.07.
    assert_close(advantages, values(-0.7, *[0.1 / 0.07**0.5] * 7, dtype=torch.float32), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rewards", [(0.1,) * 3, (0.2,) * 6, (0.7,) * 7])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_equal_decimal_rewards_have_advantage_exactly_zero_and_no_spread(
    rewards: tuple[float, ...], dtype: torch.dtype, baseline: str
) -> None:
    """B16."""
    rows = values(*rewards, dtype=dtype)
    for scale in ("std", "none", "batch"):
        advantages = group_advantages(rows, scale=scale, baseline=baseline, eps=0.0)
        assert advantages.tolist() == [0.0] * len(rewards)
        assert advantages.dtype == dtype
    assert not informative_groups(rows).any()


def test_two_groups_without_spread_give_zero_in_any_order() -> None:
    """B18."""
    for order in set(itertools.permutations([(1.0, 5), (1.0, 5), (0.0, 2), (0.0, 2)])):
        rewards, ids = zip(*order, strict=True)
        assert group_advantages(values(*rewards), list(ids)).tolist() == [0.0] * 4


def test_statistics_of_float32_rewards_are_made_in_float64() -> None:
    """2^24, + 2, + 2: in float32 their mean is rounded to the larger one, and two advantages would be 0."""
    advantages = group_advantages(values(2.0**24, 2.0**24 + 2, 2.0**24 + 2, dtype=torch.float32), scale="none")
    assert_close(advantages, values(-4 / 3, 2 / 3, 2 / 3, dtype=torch.float32))


def test_large_advantages_are_neither_clamped_nor_whitened() -> None:
    assert group_advantages(values(100, 0, 60, 20), [0, 0, 1, 1], scale="none").tolist() == [50.0, -50.0, 20.0, -20.0]


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_permuted_answers_have_permuted_advantages_that_sum_to_zero_in_their_group(scale: str, baseline: str) -> None:
    """B18."""
    rewards = values(1, 0, 0.25, 0.5, 0.5, 1, 0, NAN, 1)
    ids = torch.tensor([40, -3, 40, 7, 7, -3, 40, 40, -3])
    advantages = group_advantages(rewards, ids, scale=scale, baseline=baseline)
    for seed in range(5):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
        permuted = group_advantages(rewards[order], ids[order], scale=scale, baseline=baseline)
        assert_close(permuted, advantages[order], atol=1e-12, rtol=0)
    if (scale, baseline) != ("std", "leave-one-out"):  # scaled by another std for every answer
        for group in (40, -3, 7):
            assert abs(advantages[ids == group].sum().item()) < 1e-12


def test_equal_prompts_in_two_rows_are_two_groups() -> None:
    """B20."""
    rewards = values(1, 0, 1, 1)
    assert group_advantages(rewards, [7, 7, 9, 9], scale="none").tolist() == [0.5, -0.5, 0.0, 0.0]


def test_an_answer_without_a_score_is_left_out_of_its_group() -> None:
    """B22."""
    assert group_advantages(values(1, NAN, 0), scale="none").tolist() == [0.5, 0.0, -0.5]
    assert_close(group_advantages(values(1, NAN, 0), eps=0.0), values(0.5**0.5, 0, -(0.5**0.5)))
    assert group_advantages(values(1, NAN, 0), scale="none", baseline="leave-one-out").tolist() == [1.0, 0.0, -1.0]


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize("rewards", [(NAN, NAN), (1.0, NAN)])
def test_a_group_with_fewer_than_two_scores_has_advantage_zero(rewards: tuple[float, ...], scale: str) -> None:
    """B22."""
    assert group_advantages(values(*rewards), scale=scale).tolist() == [0.0, 0.0]
    assert informative_groups(values(*rewards)).tolist() == [False, False]


@pytest.mark.parametrize(("size", "share"), [(2, 0.68), (4, 0.4112), (8, 0.16777), (16, 0.02815)])
def test_the_share_of_groups_without_signal_falls_with_the_group_size(size: int, share: float) -> None:
    """B26."""
    assert uninformative_share(0.2, size) == pytest.approx(share, abs=5e-6)
    assert uninformative_share(0.8, size) == pytest.approx(share, abs=5e-6)


def test_uneven_groups_are_centred_each_on_their_own() -> None:
    advantages = group_advantages(values(1, 1, 0, 1, 0), [0, 1, 0, 1, 1], scale="none")
    assert_close(advantages, values(1 / 2, 1 / 3, -1 / 2, 1 / 3, -2 / 3))


def test_group_size_means_consecutive_blocks() -> None:
    rewards = values(1, 0, 1, 1, 0, 0)
    assert group_advantages(rewards, group_size=2, scale="none").tolist() == [0.5, -0.5, 0, 0, 0, 0]
    assert group_advantages(rewards, scale="none").tolist() == [0.5, -0.5, 0.5, 0.5, -0.5, -0.5]


def test_batch_scale_divides_by_the_std_of_the_raw_scored_rewards() -> None:
    """std(1, 0, 1, 1) = 0.5, over groups and without the row that has no score."""
    advantages = group_advantages(values(1, 0, NAN, 1, 1), [0, 0, 0, 1, 1], scale="batch", eps=0.0)
    assert_close(advantages, values(1, -1, 0, 0, 0))
    with_eps = group_advantages(values(1, 0, 1, 1), [0, 0, 1, 1], scale="batch", eps=0.5)
    assert_close(with_eps, values(0.5, -0.5, 0, 0))


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    rewards = values(1, 0, 0, 0)
    assert_close(group_advantages(rewards, scale="none", baseline="leave-one-out"), values(1, *[-1 / 3] * 3))
    scaled = group_advantages(rewards, baseline="leave-one-out", eps=0.0)
    assert_close(scaled, values(1, *[-1 / 3 / (1 / 3) ** 0.5] * 3))  # std(1, 0, 0) = sqrt(1/3); std(0, 0, 0) = 0


def test_integer_rewards_give_floating_advantages() -> None:
    advantages = group_advantages(torch.tensor([1, 0]), scale="none")
    assert advantages.dtype == torch.get_default_dtype()
    assert advantages.tolist() == [0.5, -0.5]


def test_advantages_of_no_answers_are_none() -> None:
    for scale in ("std", "none", "batch"):
        assert group_advantages(torch.zeros(0), scale=scale).shape == (0,)
    assert informative_groups(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [((0.5, 0.5), False), ((1, 0), True), ((0, 0), False), ((1, 1), False), ((0.2, 0.8), True), ((NAN, 1, 0), True)],
)
def test_groups_are_filtered_by_their_spread_not_by_their_mean(rewards: tuple[float, ...], kept: bool) -> None:
    """B63."""
    assert informative_groups(values(*rewards)).tolist() == [kept] * len(rewards)


def test_the_filter_looks_at_every_group_on_its_own() -> None:
    """B63."""
    kept = informative_groups(values(1, 0.5, 0, 0.5), [3, -1, 3, -1])
    assert kept.tolist() == [True, False, True, False]


def test_the_terminal_reward_sits_on_the_end_token_not_on_the_padding() -> None:
    """B54."""
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    rewards = terminal_rewards(torch.tensor([1.0, 2.0, 3.0, NAN]), mask)
    assert rewards.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 2], [0, 0, 3, 0, 0], [0, 0, 0, 0, 0]]
    assert terminal_rewards(torch.tensor([1.0]), torch.ones(1, 3)).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("masked", [0.0, 5.0, -1e30, float("inf"), NAN])
def test_a_critic_value_under_the_mask_does_not_leak_into_gae(masked: float) -> None:
    """B25."""
    advantages, returns = gae(
        torch.tensor([[0.0, 1.0, masked]]), torch.tensor([[0.2, 0.4, masked]]), torch.tensor([[1, 1, 0]]), lam=0.9
    )
    assert_close(advantages, torch.tensor([[0.74, 0.60, 0.0]]))
    assert_close(returns, torch.tensor([[0.94, 1.00, 0.0]]))


def test_gae_steps_over_a_masked_slot_inside_an_answer() -> None:
    """B25: the tokens of a tool's output cost no discount and no lambda."""
    advantages, _ = gae(
        torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[0.2, NAN, 0.4]]), torch.tensor([[1, 0, 1]]), lam=0.9
    )
    assert_close(advantages, torch.tensor([[0.74, 0.0, 0.60]]))


def test_gae_discounts_by_gamma_and_by_gamma_lambda() -> None:
    """delta = (0.9 * 0.4 - 0.2, 1 - 0.4) = (0.16, 0.6); the first advantage is 0.16 + 0.9 * 0.5 * 0.6."""
    advantages, returns = gae(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.2, 0.4]]), torch.ones(1, 2), gamma=0.9, lam=0.5
    )
    assert_close(advantages, torch.tensor([[0.43, 0.60]]))
    assert_close(returns, torch.tensor([[0.63, 1.00]]))


def test_gae_with_lambda_one_returns_the_reward_to_go_whatever_the_critic() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0], [0.0, 8.0, 0.0]])
    _, returns = gae(rewards, torch.tensor([[5.0, -3.0, 2.0], [1.0, 1.0, 1.0]]), torch.ones(2, 3), lam=1.0)
    assert_close(returns, torch.tensor([[7.0, 6.0, 4.0], [8.0, 8.0, 0.0]]))


def test_gae_of_empty_batches_is_empty() -> None:
    for shape in ((0, 3), (2, 0)):
        advantages, returns = gae(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool))
        assert advantages.shape == returns.shape == shape


def test_gae_hands_no_gradient_back_to_the_critic() -> None:
    critic = torch.tensor([[0.2, 0.4]], requires_grad=True)
    advantages, returns = gae(torch.tensor([[0.0, 1.0]]), critic, torch.ones(1, 2))
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_rewards_may_be_a_plain_list() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 0.0], eps=0.0).tolist() == [1.5, -0.5, -0.5, -0.5]
