"""Importance ratios: overflow, one per answer, and GSPO's two forms."""

import math

import pytest
import torch
from torch.testing import assert_close

from upweight.objective.dense import grpo_loss
from upweight.objective.ratio import sequence_log_ratio


@pytest.mark.parametrize("lengths", [(1, "token"), (1, "sequence"), (2, "sequence")])
def test_a_huge_ratio_on_the_flat_side_has_the_bound_as_loss_and_no_gradient(lengths: tuple[int, str]) -> None:
    """B27: also with a mean log-ratio of 100 over two tokens (200 and 0)."""
    tokens, level = lengths
    logprobs = torch.tensor([[0.0, 0.0][:tokens]], requires_grad=True)
    old = torch.tensor([[-200.0, 0.0][:tokens]])
    loss, _ = grpo_loss(logprobs, old, torch.ones(1), torch.ones(1, tokens), ratio_level=level)
    loss.backward()
    assert_close(loss.item(), -1.2)
    assert logprobs.grad.tolist() == [[0.0] * tokens]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("surrogate", ["clip", "cispo", "none"])
@pytest.mark.parametrize("gap", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_huge_log_ratio_gives_finite_losses_and_gradients(
    level: str, surrogate: str, gap: float, advantage: float
) -> None:
    """B27."""
    logprobs = torch.tensor([[-1.0]], requires_grad=True)
    loss, metrics = grpo_loss(
        logprobs, logprobs.detach() - gap, torch.tensor([advantage]), torch.ones(1, 1), ratio_level=level,
        surrogate=surrogate, ref_logprobs=logprobs.detach() - gap, kl_coef=0.1, kl_grad="reverse",
    )  # fmt: skip
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logprobs.grad).all()
    assert all(map(math.isfinite, metrics.values()))


def test_a_huge_ratio_of_a_bad_token_is_clamped_at_e_to_the_twenty() -> None:
    """B27."""
    logprobs = torch.zeros(1, 1, requires_grad=True)
    loss, _ = grpo_loss(logprobs, torch.full((1, 1), -200.0), -torch.ones(1), torch.ones(1, 1))
    assert_close(loss.item(), math.exp(20.0), rtol=1e-6, atol=0)


def test_a_huge_ratio_under_the_mask_is_nothing() -> None:
    """B27."""
    logprobs = torch.zeros(1, 1, requires_grad=True)
    loss, _ = grpo_loss(logprobs, torch.full((1, 1), -200.0), torch.ones(1), torch.zeros(1, 1))
    loss.backward()
    assert (loss.item(), logprobs.grad.item()) == (0.0, 0.0)


def test_a_sequence_ratio_counts_answers_where_the_weights_do() -> None:
    """B30: broadcast over tokens with a token mean, the long answer counts three times."""
    logprobs, advantages = torch.full((2, 3), -1.0), torch.tensor([1.0, -1.0])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    options = {"ratio_level": "sequence"}
    by_answer, _ = grpo_loss(logprobs, None, advantages, mask, loss_agg="seq-mean-token-mean", **options)
    by_token, _ = grpo_loss(logprobs, None, advantages, mask, loss_agg="token-mean", **options)
    assert_close((by_answer.item(), by_token.item()), (0.0, 0.5))


def test_the_sequence_ratio_is_the_geometric_mean_over_trainable_tokens() -> None:
    """sqrt(2 * 8) = 4 over the two tokens that are masked in; the third would make it the cube root."""
    logprobs = torch.tensor([[2.0, 1e9, 8.0]]).log()
    loss, metrics = grpo_loss(
        logprobs, torch.zeros(1, 3), torch.ones(1), torch.tensor([[1, 0, 1]]), ratio_level="sequence", surrogate="none"
    )
    assert_close((loss.item(), metrics["ratio_mean"]), (-4.0, 4.0))


def test_a_token_that_a_correction_rejects_still_counts_in_the_sequence_ratio() -> None:
    """sqrt(2 * 8) = 4, where the token that is kept alone has 2; the other one is out of the loss."""
    old = torch.zeros(1, 2)
    loss, metrics = grpo_loss(
        torch.tensor([[2.0, 8.0]]).log(), old, torch.ones(1), torch.ones(1, 2), ratio_level="sequence",
        surrogate="none", sampler_logprobs=old - torch.tensor([[1.0, 9.0]]).log(), correction="mis",
    )  # fmt: skip
    assert_close((loss.item(), metrics["ratio_mean"], metrics["rejected"]), (-2.0, 4.0, 0.5))


@pytest.mark.parametrize(("advantages", "own"), [([1.0], (2.0, 2.0)), ([[1.0, 1.0]], (1.0, 3.0))])
def test_under_a_sequence_ratio_a_token_follows_the_mean_of_its_answers_corrections(
    advantages: list[float], own: tuple[float, float]
) -> None:
    """c = (1, 3): each token's slope has their mean, 2; in the GSPO-token form each has its own."""
    logprobs = torch.zeros(1, 2, requires_grad=True)
    loss, _ = grpo_loss(
        logprobs, None, torch.tensor(advantages), torch.ones(1, 2), ratio_level="sequence", surrogate="none",
        sampler_logprobs=-torch.tensor([[1.0, 3.0]]).log(), correction="is",
    )  # fmt: skip
    loss.backward()
    assert_close(logprobs.grad, -torch.tensor([own]) / 2)


def test_on_policy_every_ratio_is_exactly_one() -> None:
    logprobs = -torch.rand(3, 50, generator=torch.Generator().manual_seed(0)) * 20
    for level, advantages in (("token", torch.ones(3)), ("sequence", torch.ones(3)), ("sequence", torch.ones(3, 50))):
        _, metrics = grpo_loss(logprobs, logprobs, advantages, torch.ones(3, 50), ratio_level=level)
        assert (metrics["ratio_mean"], metrics["ratio_max"], metrics["ess"]) == (1.0, 1.0, 1.0)


def test_clipfrac_counts_answers_under_a_sequence_ratio_and_tokens_under_a_token_ratio() -> None:
    logprobs = torch.tensor([[1.5, 1.0, 1.0], [1.0, 1.0, 1.0]]).log()
    mask, advantages = torch.tensor([[1, 0, 0], [1, 1, 1]]), torch.ones(2)
    by_answer = grpo_loss(logprobs, torch.zeros(2, 3), advantages, mask, ratio_level="sequence")[1]
    by_token = grpo_loss(logprobs, torch.zeros(2, 3), advantages, mask)[1]
    assert (by_answer["clipfrac"], by_token["clipfrac"]) == (0.5, 0.25)
    assert_close((by_answer["ratio_mean"], by_token["ratio_mean"]), (1.25, 1.125))


@pytest.mark.parametrize("surrogate", ["clip", "cispo", "none"])
def test_the_gspo_token_form_is_the_sequence_form_where_advantages_agree(surrogate: str) -> None:
    """Same value and same gradient; one of the answers is clipped, one has a hole."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 0]])
    logprobs = -1 - torch.arange(12, dtype=torch.float64).view(3, 4).cos()
    old = logprobs - torch.arange(12, dtype=torch.float64).view(3, 4).sin()
    advantages = torch.tensor([1.0, 1.0, -0.5]).double()
    results = []
    for per_answer_or_token in (advantages, advantages[:, None].expand(3, 4).contiguous()):
        leaf = logprobs.clone().requires_grad_()
        loss, metrics = grpo_loss(
            leaf, old, per_answer_or_token, mask, ratio_level="sequence", surrogate=surrogate,
            loss_agg="seq-mean-token-mean",
        )  # fmt: skip
        loss.backward()
        results.append((loss.detach(), leaf.grad, metrics))
    assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_in_the_gspo_token_form_each_token_follows_its_own_advantage() -> None:
    """s = sqrt(4) = 2; d loss / d logprob_t = -w s A_t, where the sequence form would share the mean."""
    logprobs = torch.tensor([[4.0, 1.0]]).log().requires_grad_()
    loss, _ = grpo_loss(
        logprobs, torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]), torch.ones(1, 2), ratio_level="sequence",
        surrogate="none",
    )  # fmt: skip
    loss.backward()
    assert_close(loss.item(), -0.5 * 2 * (1.0 - 3.0))
    assert_close(logprobs.grad, torch.tensor([[-1.0, 3.0]]))


def test_the_gspo_token_form_has_the_same_ratio_to_the_last_bit() -> None:
    """A clip range of 3e-4 leaves no room for what float32 loses beside a log-prob of -15."""
    logprobs = torch.tensor([-15.3, -0.2, -7.1, -11.9])
    old, seq_id = logprobs - torch.tensor([3e-4, 1e-4, -2e-4, 5e-4]), torch.zeros(4, dtype=torch.long)
    plain = sequence_log_ratio(logprobs, old, seq_id)
    assert sequence_log_ratio(logprobs, old, seq_id, per_token=True).tolist() == plain.tolist()


def test_the_ratio_of_a_long_answer_is_right_in_bfloat16() -> None:
    """Log-ratios 0 for 500 tokens and 0.25 for 500: the mean is 0.125. A bfloat16 counter stops at 256."""
    old = torch.full((1, 1000), -1.0, dtype=torch.bfloat16)
    logprobs = old.clone()
    logprobs[:, 500:] = -0.75
    _, metrics = grpo_loss(logprobs, old, torch.ones(1), torch.ones(1, 1000), ratio_level="sequence")
    assert metrics["ratio_mean"] == pytest.approx(math.exp(0.125), rel=0.01)
