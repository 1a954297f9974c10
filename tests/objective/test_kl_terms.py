"""KL to the reference: three estimators, their exact expectations, and where the KL enters."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.objective.dense import grpo_loss
from upweight.objective.kl import kl_estimate
from upweight.objective.loss import policy_loss
from upweight.objective.shaping import kl_in_reward
from upweight.objective.spec import Objective


def bernoulli_gradient(estimator: str, kl_grad: str) -> float:
    """Exact expectation, under the policy sigmoid(0), of the gradient of the KL term by the logit; reference 0.8.

    The two outcomes are two tokens whose weights are their probabilities.
    """
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logprobs = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
    terms = policy_loss(
        Objective(kl_coef=1.0, kl_estimator=estimator, kl_grad=kl_grad),
        logprobs=logprobs,
        old_logprobs=None,
        advantages=torch.zeros(2).double(),
        weights=logprobs.detach().exp(),
        seq_id=torch.tensor([0, 1]),
        ref_logprobs=torch.tensor([0.8, 0.2]).double().log(),
    )
    (gradient,) = torch.autograd.grad(terms.loss, logit)
    return gradient.item()


TRUE_GRADIENT = -0.3465736  # of KL(q || p): q (1 - q) (log-odds of q - log-odds of p) = -log(4) / 4


@pytest.mark.parametrize(
    ("estimator", "kl_grad", "expected"),
    [
        ("k2", "naive", TRUE_GRADIENT),
        ("k3", "naive", -0.30),  # the forward KL's: sigmoid(0) - 0.8
        ("k1", "reverse", TRUE_GRADIENT),
        ("k3", "reverse", TRUE_GRADIENT),
    ],
)
def test_the_expected_gradient_of_each_kl_term_is_the_documented_one(
    estimator: str, kl_grad: str, expected: float
) -> None:
    """B40."""
    assert_close(bernoulli_gradient(estimator, kl_grad), expected, atol=5e-8, rtol=0)


def test_the_expected_gradient_of_a_naive_k1_is_zero() -> None:
    """B40."""
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logprobs = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
    k1 = kl_estimate(logprobs, torch.tensor([0.8, 0.2]).double().log(), "k1")
    (gradient,) = torch.autograd.grad((logprobs.detach().exp() * k1).sum(), logit)
    assert abs(gradient.item()) < 1e-12


def test_k2_in_the_reverse_form_follows_its_own_expectation_not_the_kl() -> None:
    """B40: E[k2] is not the KL, so grad E[k2] has the extra term q (1 - q) (k2(1) - k2(0))."""
    extra = 0.25 * (math.log(0.8 / 0.5) ** 2 - math.log(0.2 / 0.5) ** 2) / 2
    assert_close(bernoulli_gradient("k2", "reverse"), TRUE_GRADIENT + extra, atol=5e-8, rtol=0)


def expectation(estimator: str, policy: Tensor, reference: Tensor) -> float:
    return (policy * kl_estimate(policy.log(), reference.log(), estimator)).sum().item()


def test_k1_and_k3_are_unbiased_and_k2_is_not() -> None:
    """B40: the value at (0.5, 0.5) against (0.8, 0.2) is 0.2231436."""
    policy, reference = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.8, 0.2]).double()
    assert_close(expectation("k1", policy, reference), 0.2231436, atol=1e-7, rtol=0)
    assert_close(expectation("k3", policy, reference), 0.2231436, atol=1e-7, rtol=0)
    k2 = (math.log(1.6) ** 2 + math.log(0.4) ** 2) / 4
    assert_close(expectation("k2", policy, reference), k2)


def test_the_kl_coefficient_reaches_the_loss() -> None:
    """B43: log pi - log pi_ref = 0.5 adds 0.1 * (exp(-0.5) - 1 + 0.5) to the token loss, with a plus sign."""
    logprobs = torch.tensor([[-1.0]], dtype=torch.float64)
    options = {"advantages": torch.ones(1).double(), "mask": torch.ones(1, 1), "ref_logprobs": logprobs - 0.5}
    with_kl, metrics = grpo_loss(logprobs, None, kl_coef=0.1, **options)
    without, _ = grpo_loss(logprobs, None, **options)
    assert_close((with_kl - without).item(), 0.01065307, atol=5e-9, rtol=0)
    assert_close(metrics["kl"], 0.1065307, atol=5e-8, rtol=0)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"), [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", 0.1065307, 0.3934693)]
)
def test_each_estimator_and_its_slope_half_a_nat_above_the_reference(
    estimator: str, value: float, slope: float
) -> None:
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([-1.5]).double(), estimator)
    estimate.backward()
    assert_close((estimate.item(), logprobs.grad.item()), (value, slope), atol=5e-8, rtol=0)


def test_k3_is_never_negative_however_close_policy_and_reference_are() -> None:
    gaps = torch.linspace(-1e-3, 1e-3, 2001)
    assert kl_estimate(torch.zeros_like(gaps), gaps, "k3").min().item() >= 0.0


def test_k3_is_right_for_small_log_ratios_in_float32() -> None:
    """x^2 / 2 at x = 1e-4; exp(x) - 1 - x taken literally is off by more than its own size."""
    assert_close(kl_estimate(torch.tensor([0.0]), torch.tensor([1e-4]), "k3").item(), 5e-9, rtol=0.01, atol=0)


def test_k3_stops_growing_at_twenty_nats_below_the_reference() -> None:
    logprobs = torch.tensor([-20.0, -21.0, -200.0, 200.0], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.zeros(4), "k3")
    estimate.sum().backward()
    top = math.exp(20.0) - 21.0
    assert_close(estimate.detach(), torch.tensor([top, top, top, 199.0]))
    assert logprobs.grad[1:].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(("estimator", "value", "slope"), [("k1", -30.0, 1.0), ("k2", 450.0, -30.0)])
def test_k1_and_k2_are_not_cut_off(estimator: str, value: float, slope: float) -> None:
    logprobs = torch.tensor([-30.0], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.zeros(1), estimator)
    estimate.backward()
    assert (estimate.item(), logprobs.grad.item()) == (value, slope)


def test_the_kl_is_averaged_with_the_weights_of_the_policy_loss() -> None:
    """k2 = 2 in an answer of one token and 0 in one of three: half of it by answers, a quarter by tokens."""
    logprobs, mask = torch.full((2, 3), -1.0), torch.tensor([[1, 0, 0], [1, 1, 1]])
    reference = logprobs - torch.tensor([[2.0], [0.0]])
    for loss_agg, share in (("seq-mean-token-mean", 1 / 2), ("token-mean", 1 / 4)):
        loss, _ = grpo_loss(
            logprobs, None, torch.zeros(2), mask, loss_agg=loss_agg, kl_coef=1.0, kl_estimator="k2",
            ref_logprobs=reference,
        )  # fmt: skip
        assert_close(loss.item(), 2.0 * share)


def test_the_reference_and_the_old_policy_get_no_gradient() -> None:
    others = [torch.tensor([[-2.0]], requires_grad=True) for _ in range(3)]
    old, reference, sampler = others
    logprobs = torch.tensor([[-1.9]], requires_grad=True)
    loss, _ = grpo_loss(
        logprobs, old, torch.ones(1), torch.ones(1, 1), ref_logprobs=reference, kl_coef=0.1, kl_grad="reverse",
        sampler_logprobs=sampler, correction="is",
    )  # fmt: skip
    loss.backward()
    assert [other.grad for other in others] == [None, None, None]
    assert logprobs.grad.item() != 0.0


def test_the_reverse_term_uses_the_unclipped_token_ratio_even_under_a_sequence_ratio() -> None:
    """ratios (4, 1): the KL term is the mean of rho_t k1_t = (4 * log 4 + 1 * 0) / 2, whatever s and the clip are."""
    logprobs = torch.tensor([[4.0, 1.0]]).double().log()
    loss, _ = grpo_loss(
        logprobs, torch.zeros(1, 2).double(), torch.zeros(1).double(), torch.ones(1, 2), ratio_level="sequence",
        ref_logprobs=torch.zeros(1, 2).double(), kl_coef=1.0, kl_estimator="k1", kl_grad="reverse",
    )  # fmt: skip
    assert_close(loss.item(), 2 * math.log(4.0))


def test_the_kl_is_measured_where_it_is_not_in_the_loss() -> None:
    logprobs = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    loss, metrics = grpo_loss(
        logprobs, None, torch.zeros(1).double(), torch.ones(1, 2), ref_logprobs=logprobs - 0.5, kl_estimator="k2"
    )
    assert (loss.item(), metrics["kl"]) == (0.0, 0.125)
    assert grpo_loss(logprobs, None, torch.zeros(1).double(), torch.ones(1, 2))[1]["kl"] == 0.0


def test_the_kl_in_the_reward_stays_out_of_the_loss() -> None:
    terms = policy_loss(
        Objective(kl_coef=1.0, kl_place="reward", kl_estimator="k1"),
        logprobs=torch.tensor([-1.0]),
        old_logprobs=None,
        advantages=torch.zeros(1),
        weights=torch.ones(1),
        seq_id=torch.tensor([0]),
        ref_logprobs=torch.tensor([-3.0]),
    )
    assert terms.loss.item() == 0.0
    assert terms.metrics["kl"] == (2.0, 1.0)


def test_the_kl_in_the_reward_is_the_sum_of_k1_over_the_answer() -> None:
    old = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    penalty = kl_in_reward(old, torch.tensor([-1.5, -2.5, -1.0]), torch.tensor([0, 0, 2]), 3)
    assert penalty.tolist() == [1.0, 0.0, -2.0]
    assert not penalty.requires_grad
