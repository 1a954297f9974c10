"""The loss as a whole: zero losses that train, masks, empty batches, dtypes, and gradients against a specification."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.objective.dense import grpo_loss, token_weights

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("surrogate", ["clip", "cispo", "none"])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize(
    "loss_agg", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean"]
)
def test_a_batch_with_every_token_masked_has_no_loss_no_gradient_and_says_so(
    surrogate: str, ratio_level: str, loss_agg: str
) -> None:
    """B10."""
    logprobs = torch.full((2, 3), NAN, requires_grad=True)
    loss, metrics = grpo_loss(
        logprobs, torch.full((2, 3), INF), torch.full((2,), NAN), torch.zeros(2, 3), surrogate=surrogate,
        ratio_level=ratio_level, loss_agg=loss_agg, max_length=3, group_ids=torch.tensor([0, 1]), kl_coef=0.1,
        ref_logprobs=torch.zeros(2, 3), sampler_logprobs=torch.zeros(2, 3), correction="mis", masked_tokens="valid",
    )  # fmt: skip
    loss.backward()
    assert loss.item() == 0.0
    assert not logprobs.grad.any()
    assert set(metrics.values()) == {0.0}
    assert metrics["tokens"] == 0.0


def test_a_rank_without_tokens_adds_nothing_to_the_others() -> None:
    """B10."""
    mask = torch.tensor([[1, 1], [0, 0]])
    weights, advantages = token_weights(mask), torch.tensor([2.0, 5.0])
    logprobs = torch.full((2, 2), -1.0, requires_grad=True)
    ranks = [
        grpo_loss(logprobs[i : i + 1], None, advantages[i : i + 1], mask[i : i + 1], weights=weights[i : i + 1])[0]
        for i in (0, 1)
    ]
    assert [rank.item() for rank in ranks] == [-2.0, 0.0]
    for rank in ranks:
        rank.backward()
    assert logprobs.grad.tolist() == [[-1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("per_token", [False, True])
def test_an_empty_batch_has_a_loss_of_zero_with_a_graph(
    shape: tuple[int, int], ratio_level: str, per_token: bool
) -> None:
    logprobs = torch.zeros(shape, requires_grad=True)
    loss, metrics = grpo_loss(
        logprobs, torch.zeros(shape), torch.zeros(shape if per_token else shape[:1]),
        torch.zeros(shape, dtype=torch.bool), ratio_level=ratio_level, loss_agg="seq-mean-token-mean", kl_coef=0.1,
        ref_logprobs=torch.zeros(shape), sampler_logprobs=torch.zeros(shape), correction="mis",
        correction_level="sequence", masked_tokens="valid",
    )  # fmt: skip
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad.shape == shape
    assert metrics["tokens"] == 0.0


def test_a_loss_of_zero_still_trains() -> None:
    """B11."""
    logprobs = torch.full((2, 4), -1.0, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    loss, _ = grpo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask, loss_agg="seq-mean-token-mean")
    loss.backward()
    assert loss.item() == 0.0
    assert_close(logprobs.grad, torch.tensor([[-0.25, -0.25, 0.0, 0.0], [0.125] * 4]))


@pytest.mark.parametrize(("x", "y"), list(itertools.product([0.0, -200.0, -INF, NAN], repeat=2)))
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("surrogate", ["clip", "none"])
def test_nothing_under_the_mask_is_multiplied_by_zero(x: float, y: float, ratio_level: str, surrogate: str) -> None:
    """B28: in the log-probs of policy, old policy, reference and sampler."""
    logprobs = torch.tensor([[-0.5, x]], requires_grad=True)
    other = torch.tensor([[-0.5, y]])
    loss, metrics = grpo_loss(
        logprobs, other, torch.ones(1), torch.tensor([[1, 0]]), ratio_level=ratio_level, surrogate=surrogate,
        ref_logprobs=other, kl_coef=0.1, sampler_logprobs=other, correction="tis",
    )  # fmt: skip
    loss.backward()
    assert loss.item() == -1.0
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]
    zero = {"kl", "clipfrac", "clipfrac_low", "clipfrac_high", "clipfrac_dual", "rejected", "mismatch"}
    assert metrics == {name: float(name not in zero) for name in metrics}


def test_by_default_the_policy_gradient_is_there() -> None:
    """B41."""
    logprobs = torch.tensor([[-0.5, -1.0, -2.0, -3.0]], requires_grad=True)
    for old in (None, logprobs.detach()):
        logprobs.grad = None
        grpo_loss(logprobs, old, torch.ones(1), torch.ones(1, 4))[0].backward()
        assert logprobs.grad.tolist() == [[-0.25] * 4]


def test_advantages_per_token_equal_to_those_per_answer_change_nothing() -> None:
    logprobs, old = torch.tensor([[-1.0, -0.4], [-0.9, -2.0]]), torch.tensor([[-1.1, -1.1], [-1.0, -1.0]])
    advantages = torch.tensor([1.0, -1.0])
    per_answer, _ = grpo_loss(logprobs, old, advantages, torch.ones(2, 2))
    per_token, _ = grpo_loss(logprobs, old, advantages[:, None].expand(2, 2).contiguous(), torch.ones(2, 2))
    assert per_answer.item() == per_token.item()


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_a_mask_may_be_boolean_or_zero_and_one(dtype: torch.dtype) -> None:
    logprobs = torch.tensor([[-1.0, NAN], [-1.0, -1.0]])
    mask = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    loss, metrics = grpo_loss(logprobs, None, torch.tensor([3.0, 0.0]), mask)
    assert (loss.item(), metrics["tokens"]) == (-1.0, 3.0)


def test_log_probs_above_zero_are_accepted() -> None:
    loss, _ = grpo_loss(torch.full((1, 1), 0.1), torch.zeros(1, 1), torch.ones(1), torch.ones(1, 1))
    assert_close(loss.item(), -math.exp(0.1))


@pytest.mark.parametrize("surrogate", ["clip", "cispo", "none"])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_bfloat16_log_probs_give_the_float32_loss_to_their_precision(surrogate: str, ratio_level: str) -> None:
    logprobs, old = torch.tensor([[-1.0, -0.5], [-2.0, -1.0]]), torch.tensor([[-1.25, -0.5], [-2.0, -1.5]])
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        leaf = logprobs.to(dtype, copy=True).requires_grad_()
        loss, metrics = grpo_loss(
            leaf, old.to(dtype), torch.tensor([1.0, -1.0]), torch.ones(2, 2), surrogate=surrogate,
            ratio_level=ratio_level, ref_logprobs=old.to(dtype), kl_coef=0.1, sampler_logprobs=old.to(dtype),
            correction="tis", correction_level="sequence",
        )  # fmt: skip
        loss.backward()
        assert leaf.grad.dtype == dtype
        assert all(map(math.isfinite, metrics.values()))
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_a_large_ratio_has_no_nan_gradient_in_float16() -> None:
    """e^15 is beyond float16."""
    logprobs = torch.tensor([[-1.0]], dtype=torch.float16, requires_grad=True)
    loss, _ = grpo_loss(logprobs, logprobs.detach() - 15, torch.ones(1), torch.ones(1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(-1.2, abs=1e-3)
    assert logprobs.grad.item() == 0.0


# A second, independent writing of the formula in plain floats, token by token. What carries no gradient is taken from
# `frozen`, the point at which the derivative is wanted, so that central differences see the same function as autograd.

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 0], [0, 1, 1, 1]])
ADVANTAGES = [1.0, -0.7, 0.4]


def wave(phase: float, size: float) -> Tensor:
    return size * (torch.arange(12, dtype=torch.float64) * 1.7 + phase).sin().view(3, 4)


LOGPROBS = -1.5 + wave(0.0, 1.0)
OLD, REFERENCE, SAMPLER = LOGPROBS - wave(1.0, 0.6), LOGPROBS - wave(2.0, 0.5), LOGPROBS - wave(3.0, 0.9)
CORRECTIONS = [("none", "token"), ("is", "sequence"), ("tis", "token"), ("tis", "geometric"), ("mis", "token")]
KLS = [None, ("k2", "naive"), ("k3", "naive"), ("k1", "reverse"), ("k2", "reverse"), ("k3", "reverse")]


def written_out(
    logprobs: Tensor, frozen: Tensor, surrogate: str, level: str, per_token: bool, kl: tuple[str, str] | None,
    correction: tuple[str, str], dual_clip: float | None,
) -> float:  # fmt: skip
    total = 0.0
    count = int(MASK.sum())
    for i in range(3):
        tokens = [t for t in range(4) if MASK[i, t]]
        log_rho = {t: (logprobs[i, t] - OLD[i, t]).item() for t in tokens}
        log_mean = sum(log_rho.values()) / len(tokens)
        frozen_mean = sum((frozen[i, t] - OLD[i, t]).item() for t in tokens) / len(tokens)
        gaps = {t: (OLD[i, t] - SAMPLER[i, t]).item() for t in tokens}
        for t in tokens:
            c = correction_weight(gaps, t, *correction)
            if c is None:
                continue
            now = math.exp(log_rho[t])
            rho, rho_frozen = now, math.exp((frozen[i, t] - OLD[i, t]).item())
            if level == "sequence":
                rho, rho_frozen = math.exp(log_mean), math.exp(frozen_mean)
                if per_token:
                    rho = rho_frozen * math.exp((logprobs[i, t] - frozen[i, t]).item())
            a = ADVANTAGES[i]
            if surrogate == "none":
                f = rho * a
            elif surrogate == "cispo":
                f = min(max(rho_frozen, 0.8), 1.28) * a * logprobs[i, t].item()
            else:
                f = min(rho * a, min(max(rho, 0.8), 1.28) * a)
                if dual_clip is not None and a < 0:
                    f = max(f, dual_clip * a)
            term = -c * f
            if kl is not None:
                log_r = (REFERENCE[i, t] - logprobs[i, t]).item()
                k = {"k1": -log_r, "k2": log_r**2 / 2, "k3": math.exp(log_r) - 1 - log_r}[kl[0]]
                term += 0.3 * (c * now * k if kl[1] == "reverse" else k)
            total += term / count
    return total


def correction_weight(gaps: dict[int, float], t: int, kind: str, level: str) -> float | None:
    ratios = [math.exp(gap) for gap in gaps.values()]
    ratio = {
        "token": math.exp(gaps[t]),
        "sequence": math.prod(ratios),
        "geometric": math.prod(ratios) ** (1 / len(ratios)),
    }[level]
    if kind == "none":
        return 1.0
    if kind == "mis":
        return ratio if ratio <= 1.3 else None
    return min(ratio, 1.3) if kind == "tis" else ratio


@pytest.mark.parametrize(("surrogate", "dual_clip"), [("clip", None), ("clip", 1.35), ("cispo", None), ("none", None)])
@pytest.mark.parametrize(("level", "per_token"), [("token", False), ("sequence", False), ("sequence", True)])
def test_values_and_gradients_agree_with_the_formula_written_out_in_plain_floats(
    surrogate: str, dual_clip: float | None, level: str, per_token: bool
) -> None:
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    kept = MASK.nonzero().tolist()
    for kl, correction in itertools.product(KLS, CORRECTIONS):
        leaf = torch.where(MASK.bool(), LOGPROBS, NAN).requires_grad_()
        loss, _ = grpo_loss(
            leaf, OLD, advantages[:, None].expand(3, 4).contiguous() if per_token else advantages, MASK.double(),
            clip=0.2, clip_high=0.28, surrogate=surrogate, dual_clip=dual_clip, ratio_level=level,
            weights=token_weights(MASK.double()), ref_logprobs=REFERENCE, kl_coef=0.0 if kl is None else 0.3,
            kl_estimator="k3" if kl is None else kl[0], kl_grad="naive" if kl is None else kl[1],
            sampler_logprobs=SAMPLER, correction=correction[0], correction_level=correction[1], correction_cap=1.3,
        )  # fmt: skip
        loss.backward()
        chosen = (surrogate, level, per_token, kl, correction, dual_clip)
        assert loss.item() == pytest.approx(written_out(LOGPROBS, LOGPROBS, *chosen), rel=1e-12, abs=1e-13), chosen
        expected = torch.zeros(3, 4, dtype=torch.float64)
        for i, t in kept:
            expected[i, t] = central_difference((i, t), chosen)
        assert_close(leaf.grad, expected, rtol=1e-6, atol=1e-8, msg=lambda text, chosen=chosen: f"{chosen}: {text}")


def central_difference(slot: Sequence[int], chosen: tuple) -> float:
    step = torch.zeros(3, 4, dtype=torch.float64)
    step[tuple(slot)] = 1e-5
    return (written_out(LOGPROBS + step, LOGPROBS, *chosen) - written_out(LOGPROBS - step, LOGPROBS, *chosen)) / 2e-5


def test_the_specification_reaches_every_branch() -> None:
    """Otherwise the comparison above would say nothing about bounds, floors and rejections."""
    for correction, names in (("none", ("low", "high", "dual")), ("mis", ("rejected",))):
        metrics = grpo_loss(
            LOGPROBS, OLD, torch.tensor(ADVANTAGES, dtype=torch.float64), MASK, clip_high=0.28, dual_clip=1.35,
            sampler_logprobs=SAMPLER, correction=correction, correction_cap=1.3,
        )[1]  # fmt: skip
        for name in names:
            assert 0.0 < metrics[name if name == "rejected" else f"clipfrac_{name}"] < 1.0, name
