"""Surrogates: clip, dual clip, CISPO and none, by their values, their gradients and what counts as clipped."""

import math

import pytest
import torch
from torch.testing import assert_close

from upweight.objective.dense import grpo_loss
from upweight.objective.presets import PRESETS, preset
from upweight.objective.surrogate import clip_surrogate


def one_token(ratio: float, advantage: float, *, logprob: float = -1.0, **options: object) -> tuple[float, float, dict]:
    """Loss of a single token, its derivative by the log-prob, and the metrics."""
    logprobs = torch.tensor([[logprob]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[logprob - math.log(ratio)]], dtype=torch.float64)
    loss, metrics = grpo_loss(logprobs, old, torch.tensor([advantage]).double(), torch.ones(1, 1), **options)
    loss.backward()
    return loss.item(), logprobs.grad.item(), metrics


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective", "slope", "side"),
    [
        (1, 1.1, 1.1, 1.1, None),
        (1, 1.5, 1.2, 0.0, "high"),
        (1, 0.5, 0.5, 0.5, None),
        (-1, 1.5, -1.5, -1.5, None),
        (-1, 0.5, -0.8, 0.0, "low"),
        (-1, 0.9, -0.9, -0.9, None),
        (0, 5.0, 0.0, 0.0, None),
        (0, 0.1, 0.0, 0.0, None),
    ],
)
def test_clip_is_flat_on_one_side_for_each_sign_of_the_advantage(
    advantage: float, ratio: float, objective: float, slope: float, side: str | None
) -> None:
    loss, gradient, metrics = one_token(ratio, advantage)
    assert_close((loss, gradient), (-objective, -slope))
    assert metrics["clipfrac"] == float(side is not None)
    assert (metrics["clipfrac_low"], metrics["clipfrac_high"]) == (float(side == "low"), float(side == "high"))


def test_clip_high_widens_the_upper_bound_alone() -> None:
    assert_close(one_token(1.5, 1.0, clip_high=0.28)[0], -1.28)
    assert_close(one_token(0.5, -1.0, clip_high=0.28)[0], 0.8)


def test_a_ratio_right_at_the_bound_keeps_its_whole_gradient() -> None:
    logprobs = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    loss, metrics = grpo_loss(logprobs, torch.zeros(1, 1).double(), torch.ones(1).double(), torch.ones(1, 1), clip=0.0)
    loss.backward()
    assert logprobs.grad.item() == -1.0
    assert metrics["clipfrac"] == 0.0


def test_a_ratio_just_above_the_bound_has_no_gradient_where_rounding_makes_a_tie() -> None:
    """The next float above 1.2 gives 1.2 A again for some A; the minimum of the two would pass half a gradient."""
    bound = torch.tensor(1.2)
    advantages = torch.arange(1, 1001) / 1000
    ratio = torch.nextafter(bound, torch.tensor(2.0)).repeat(1000).requires_grad_()
    assert (ratio * advantages == bound * advantages).any()
    clip_surrogate(ratio, advantages, low=0.8, high=float(bound)).value.sum().backward()
    assert ratio.grad is None or not ratio.grad.any()


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective"), [(-1, 5, -3), (1, 5, 1.2), (-1, 0.5, -0.8), (1, 0.5, 0.5), (-2, 2, -4)]
)
def test_dual_clip_bounds_the_objective_for_negative_advantages_alone(
    advantage: float, ratio: float, objective: float
) -> None:
    """B37."""
    assert one_token(ratio, advantage, dual_clip=3.0)[0] == pytest.approx(-objective)


def test_the_flat_side_of_dual_clip_has_no_gradient_and_is_counted() -> None:
    """B37."""
    _, gradient, metrics = one_token(5.0, -1.0, dual_clip=3.0)
    assert gradient == 0.0
    assert (metrics["clipfrac"], metrics["clipfrac_dual"]) == (1.0, 1.0)
    assert (metrics["clipfrac_low"], metrics["clipfrac_high"]) == (0.0, 0.0)
    _, gradient, metrics = one_token(2.0, -2.0, dual_clip=3.0)
    assert_close(gradient, 4.0)
    assert metrics["clipfrac"] == 0.0


def test_cispo_keeps_the_gradient_of_a_token_above_the_cap() -> None:
    """B35."""
    loss, gradient, _ = one_token(3.0, 2.0, logprob=-1.5, surrogate="cispo", clip_high=0.28)
    assert_close((loss, gradient), (3.84, -2.56))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize(("ratio", "weight"), [(3.0, 1.28), (1.1, 1.1), (0.5, 0.8)])
def test_the_cispo_weight_carries_no_gradient_of_its_own(ratio: float, weight: float, advantage: float) -> None:
    """B35."""
    _, gradient, metrics = one_token(ratio, advantage, logprob=-1.5, surrogate="cispo", clip_high=0.28)
    assert_close(gradient, -weight * advantage)
    assert metrics["clipfrac"] == float(weight != ratio)  # weights changed, whatever the sign of the advantage


def test_the_cap_of_cispo_is_one_plus_clip_high() -> None:
    """B36."""
    assert_close(one_token(3.0, 1.0, logprob=-1.0, surrogate="cispo", clip_high=0.28)[0], 1.28)


def test_the_preset_cispo_has_a_ceiling_of_five_and_no_floor() -> None:
    assert preset("cispo").bounds == (0.0, 5.0)


def test_dual_clip_is_off_unless_it_is_asked_for() -> None:
    assert one_token(50.0, -1.0)[0] == pytest.approx(50.0)
    assert all(preset(name).dual_clip is None for name in PRESETS)


def test_cispo_counts_the_weights_it_changes() -> None:
    """B36: with clip=1 the bounds are 0 and 2, so of the ratios (3, 0.5) only the first is changed."""
    logprobs = torch.tensor([[3.0, 0.5]]).log()
    _, metrics = grpo_loss(logprobs, torch.zeros(1, 2), torch.ones(1), torch.ones(1, 2), surrogate="cispo", clip=1.0)
    assert (metrics["clipfrac"], metrics["clipfrac_high"], metrics["clipfrac_low"]) == (0.5, 0.5, 0.0)


def test_cispo_does_not_count_a_token_without_advantage() -> None:
    assert one_token(3.0, 0.0, surrogate="cispo")[2]["clipfrac"] == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_without_a_surrogate_bound_the_ratio_counts_in_full(advantage: float) -> None:
    loss, gradient, metrics = one_token(7.0, advantage, surrogate="none")
    assert_close((loss, gradient), (-7.0 * advantage, -7.0 * advantage))
    assert metrics["clipfrac"] == 0.0


def test_a_positive_advantage_has_a_negative_loss_and_a_negative_slope() -> None:
    """B38."""
    loss, gradient, _ = one_token(1.1, 1.0)
    assert_close((loss, gradient), (-1.1, -1.1))


@pytest.mark.parametrize("surrogate", ["clip", "cispo", "none"])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_one_small_step_raises_a_good_answer_and_lowers_a_bad_one(surrogate: str, ratio_level: str) -> None:
    """B38."""
    logits = torch.zeros(2, 5, requires_grad=True)
    sampled = torch.tensor([[3], [3]])
    before = logits.log_softmax(-1).gather(1, sampled)
    loss, _ = grpo_loss(
        before, None, torch.tensor([1.0, -1.0]), torch.ones(2, 1), surrogate=surrogate, ratio_level=ratio_level
    )
    loss.backward()
    after = (logits.detach() - 0.1 * logits.grad).log_softmax(-1).gather(1, sampled)
    assert after[0].item() > before[0].item()
    assert after[1].item() < before[1].item()
