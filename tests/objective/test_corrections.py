"""Corrections for a sampler that is not quite the trainer: is, tis and mis at three levels."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.objective.correction import correction_terms
from upweight.objective.dense import grpo_loss
from upweight.objective.presets import PRESETS, preset

NAN = float("nan")
ONE_ANSWER = torch.zeros(3, dtype=torch.long)


def weights_for(ratios: list[float], seq_id: Tensor | None = None, **options: object) -> tuple[list[float], list[bool]]:
    """Correction weights and rejections where pi_old / mu has these values."""
    old = torch.tensor(ratios, dtype=torch.float64).log()
    seq_id = torch.arange(len(ratios)) if seq_id is None else seq_id
    terms = correction_terms(old, torch.zeros_like(old), seq_id, **options)
    return [round(weight, 12) for weight in terms.weight.tolist()], terms.rejected.tolist()


@pytest.mark.parametrize(
    ("kind", "weights", "rejected"),
    [
        ("none", [1.0, 1.0, 1.0], [False] * 3),
        ("is", [0.5, 1.5, 3.0], [False] * 3),
        ("tis", [0.5, 1.5, 2.0], [False] * 3),
        ("mis", [0.5, 1.5, 0.0], [False, False, True]),
    ],
)
def test_tis_cuts_down_to_the_cap_and_mis_drops_above_it(kind: str, weights: list[float], rejected: list[bool]) -> None:
    assert weights_for([0.5, 1.5, 3.0], kind=kind, cap=2.0) == (weights, rejected)


def test_nothing_is_corrected_unless_it_is_asked_for() -> None:
    """A sampler that is ten nats off is measured, and the loss stays."""
    logprobs = torch.full((1, 2), -1.0)
    loss, metrics = grpo_loss(logprobs, None, torch.ones(1), torch.ones(1, 2), sampler_logprobs=logprobs - 10.0)
    assert (loss.item(), metrics["mismatch"]) == (-1.0, 10.0)
    assert {preset(name).correction for name in PRESETS} == {"none"}


def test_mis_keeps_a_ratio_right_at_the_cap() -> None:
    terms = correction_terms(torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.long), kind="mis", cap=1.0)
    assert (terms.weight.tolist(), terms.rejected.tolist()) == ([1.0], [False])


def test_the_sequence_level_is_the_product_and_the_geometric_level_its_root() -> None:
    ratios, seq_id = [2.0, 4.0, 1.0, 3.0], torch.tensor([5, 5, 5, 1])
    assert weights_for(ratios, seq_id, kind="is", level="sequence")[0] == [8.0, 8.0, 8.0, 3.0]
    assert weights_for(ratios, seq_id, kind="is", level="geometric")[0] == [2.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("level", "rejected"), [("token", [False, True, False]), ("sequence", [True] * 3), ("geometric", [False] * 3)]
)
def test_an_answer_is_dropped_whole_above_the_token_level(level: str, rejected: list[bool]) -> None:
    assert weights_for([1.0, 4.0, 1.0], ONE_ANSWER, kind="mis", level=level, cap=2.0)[1] == rejected


def test_the_product_of_many_ratios_is_clamped_in_log_space() -> None:
    """1000 ratios of 2, and of 1/2, would be 2^1000 and 2^-1000."""
    seq_id = torch.zeros(1000, dtype=torch.long)
    for ratio, bound in ((2.0, 20.0), (0.5, -20.0)):
        old = torch.full((1000,), ratio).log()
        weight = correction_terms(old, torch.zeros(1000), seq_id, kind="is", level="sequence").weight
        assert_close(weight[0].item(), math.exp(bound), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["none", "is", "tis", "mis"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_a_token_the_sampler_could_not_score_has_weight_one(kind: str, level: str) -> None:
    """B33."""
    old, sampler = torch.tensor([-0.2, -1e-6]), torch.tensor([-0.2, NAN])
    terms = correction_terms(old, sampler, torch.tensor([0, 0]), kind=kind, level=level)
    assert (terms.weight.tolist(), terms.rejected.tolist()) == ([1.0, 1.0], [False, False])


def test_a_token_the_sampler_held_impossible_is_not_an_unscored_one() -> None:
    """B33: -inf is a score; the ratio is clamped at e^20, so tis cuts it and mis drops it."""
    old, sampler, seq_id = torch.tensor([-0.2]), torch.tensor([-math.inf]), torch.tensor([0])
    assert_close(correction_terms(old, sampler, seq_id, kind="is").weight.item(), math.exp(20.0), rtol=1e-6, atol=0)
    assert correction_terms(old, sampler, seq_id, kind="tis").weight.item() == 2.0
    assert correction_terms(old, sampler, seq_id, kind="mis").rejected.item()


@pytest.mark.parametrize("correction", ["none", "is", "tis", "mis"])
@pytest.mark.parametrize("sampler", [[-0.2, NAN], [NAN, NAN]])
def test_an_unscored_token_puts_no_nan_into_loss_gradient_or_metrics(correction: str, sampler: list[float]) -> None:
    """B33."""
    logprobs = torch.tensor([[-0.2, -1e-6]], requires_grad=True)
    loss, metrics = grpo_loss(
        logprobs, None, torch.ones(1), torch.ones(1, 2), sampler_logprobs=torch.tensor([sampler]), correction=correction
    )
    loss.backward()
    assert loss.item() == -1.0
    assert logprobs.grad.tolist() == [[-0.5, -0.5]]
    assert all(map(math.isfinite, metrics.values()))
    assert metrics["mismatch"] == 0.0


def test_the_mismatch_is_the_mean_gap_over_the_scored_tokens() -> None:
    _, metrics = grpo_loss(
        torch.full((1, 3), -1.0),
        None,
        torch.ones(1),
        torch.ones(1, 3),
        sampler_logprobs=torch.tensor([[-1.5, NAN, 0.0]]),
    )
    assert metrics["mismatch"] == 0.75


def five_tokens(**options: object) -> tuple[float, dict[str, float]]:
    """Five tokens of loss 1, three of which the sampler thought ten times less likely than the trainer."""
    logprobs = torch.full((1, 5), -1.0)
    sampler = logprobs - torch.tensor([[0.0, 10.0, 0.0, 10.0, 10.0]]).log1p()
    loss, metrics = grpo_loss(
        logprobs, None, -torch.ones(1), torch.ones(1, 5), sampler_logprobs=sampler, correction="mis", **options
    )
    return loss.item(), metrics


def test_rejected_tokens_stay_in_the_denominator_or_leave_it() -> None:
    """B34."""
    assert_close(five_tokens(masked_tokens="valid")[0], 1.0)
    assert_close(five_tokens(masked_tokens="keep")[0], 0.4)
    assert_close(five_tokens()[0], 0.4)
    for mode in ("keep", "valid"):
        assert_close(five_tokens(masked_tokens=mode)[1]["rejected"], 0.6)


def test_rejecting_every_token_leaves_a_loss_of_zero_with_a_gradient_of_zero() -> None:
    """B34."""
    for mode in ("keep", "valid"):
        logprobs = torch.full((1, 2), -1.0, requires_grad=True)
        loss, metrics = grpo_loss(
            logprobs, None, torch.ones(1), torch.ones(1, 2), sampler_logprobs=torch.full((1, 2), -9.0),
            correction="mis", masked_tokens=mode, ref_logprobs=torch.full((1, 2), -3.0), kl_coef=0.1,
        )  # fmt: skip
        loss.backward()
        assert (loss.item(), logprobs.grad.tolist()) == (0.0, [[0.0, 0.0]])
        assert (metrics["rejected"], metrics["clipfrac"], metrics["kl"]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("masked_tokens", ["keep", "valid"])
@pytest.mark.parametrize("loss_agg", ["token-mean", "seq-mean-token-mean"])
def test_an_answer_that_is_dropped_whole_leaves_the_count_of_answers_under_valid(
    masked_tokens: str, loss_agg: str
) -> None:
    """Three tokens and one; the single token's answer is dropped."""
    logprobs, mask = torch.full((2, 3), -1.0), torch.tensor([[1, 1, 1], [1, 0, 0]])
    sampler = torch.tensor([[-1.0] * 3, [-5.0] * 3])
    loss, _ = grpo_loss(
        logprobs, None, -torch.ones(2), mask, sampler_logprobs=sampler, correction="mis", correction_level="sequence",
        masked_tokens=masked_tokens, loss_agg=loss_agg,
    )  # fmt: skip
    kept_share = {"token-mean": 3 / 4, "seq-mean-token-mean": 1 / 2}[loss_agg]
    assert_close(loss.item(), 1.0 if masked_tokens == "valid" else kept_share)


@pytest.mark.parametrize("kl_grad", ["naive", "reverse"])
def test_a_rejected_token_contributes_neither_surrogate_nor_kl_nor_metrics(kl_grad: str) -> None:
    """The second token is far from everything; loss, gradient, kl and clipfrac are those of the first alone."""
    options = {"correction": "mis", "kl_coef": 0.1, "kl_grad": kl_grad}
    logprobs = torch.tensor([[-1.0, -0.1]], requires_grad=True)
    old, reference = torch.tensor([[-1.1, -3.0]]), torch.tensor([[-1.5, -6.0]])
    loss, metrics = grpo_loss(
        logprobs, old, torch.ones(1), torch.ones(1, 2), ref_logprobs=reference,
        sampler_logprobs=torch.tensor([[-1.1, -9.0]]), **options,
    )  # fmt: skip
    loss.backward()
    first = torch.tensor([[-1.0]], requires_grad=True)
    alone, alone_metrics = grpo_loss(
        first, old[:, :1], torch.ones(1), torch.ones(1, 1), ref_logprobs=reference[:, :1], sampler_logprobs=old[:, :1],
        **options,
    )  # fmt: skip
    alone.backward()
    assert_close(loss.item(), alone.item() / 2)  # the rejected one still counts in the denominator
    assert_close(logprobs.grad, torch.cat([first.grad / 2, torch.zeros(1, 1)], dim=1))
    for name in ("kl", "clipfrac", "ratio_mean"):
        assert_close(metrics[name], alone_metrics[name])


def test_the_correction_multiplies_the_surrogate_and_the_reverse_kl_but_not_the_naive_kl() -> None:
    """c = 1.5, rho = 1, A = 1, k2 = 0.125: -c A + c k2 in the reverse form, -c A + k2 in the naive one."""
    logprobs = torch.tensor([[-1.0]]).double()
    for kl_grad, expected in (("naive", -1.5 + 0.125), ("reverse", -1.5 + 1.5 * 0.125)):
        loss, _ = grpo_loss(
            logprobs, None, torch.ones(1).double(), torch.ones(1, 1), ref_logprobs=logprobs - 0.5, kl_coef=1.0,
            kl_estimator="k2", kl_grad=kl_grad, sampler_logprobs=logprobs - math.log(1.5), correction="tis",
        )  # fmt: skip
        assert_close(loss.item(), expected)


def test_importance_sampling_gives_the_exact_policy_gradient_for_one_token_answers() -> None:
    """Enumerated: sum over x of mu(x) times the gradient at x; without a correction it is another one."""
    logits = torch.tensor([0.3, -1.0, 1.2], dtype=torch.float64, requires_grad=True)
    mu = torch.tensor([0.5, 0.4, 0.1]).double()
    advantages = torch.tensor([1.0, -2.0, 0.5]).double()
    policy = logits.softmax(-1)
    (exact,) = torch.autograd.grad(-(policy * advantages).sum(), logits, retain_graph=True)
    gradients = {}
    for correction in ("is", "none"):
        loss, _ = grpo_loss(
            policy.log()[:, None], None, advantages, torch.ones(3, 1), weights=mu[:, None],
            sampler_logprobs=mu.log()[:, None], correction=correction,
        )  # fmt: skip
        (gradients[correction],) = torch.autograd.grad(loss, logits, retain_graph=True)
    assert_close(gradients["is"], exact, rtol=1e-12, atol=1e-14)
    assert (gradients["none"] - exact).abs().max().item() > 0.1


def test_precomputed_weights_override_the_denominator_of_masked_tokens() -> None:
    weights = torch.full((1, 5), 0.3)
    assert_close(five_tokens(masked_tokens="valid", weights=weights)[0], 0.6)
    assert_close(five_tokens(masked_tokens="keep", weights=weights)[0], 0.6)


def test_the_effective_sample_size_falls_with_uneven_weights() -> None:
    """u = (1, 3): (mean u)^2 / mean u^2 = 4 / 5; a rejected token has u = 0, so (1, 0) is a half."""
    logprobs = torch.full((1, 2), -1.0)
    options = {"sampler_logprobs": logprobs - torch.tensor([[1.0, 3.0]]).log()}
    for correction, expected in (("none", 1.0), ("is", 0.8), ("tis", 0.9), ("mis", 0.5)):
        _, metrics = grpo_loss(logprobs, None, torch.ones(1), torch.ones(1, 2), correction=correction, **options)
        assert_close(metrics["ess"], expected)
