"""The loss: a dot product of weights fixed beforehand with what each token contributes."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from upweight.objective.correction import CorrectionTerms, correction_terms, mismatch
from upweight.objective.errors import bad_parameter
from upweight.objective.kl import kl_estimate
from upweight.objective.metrics import Sums
from upweight.objective.ratio import at_least_float32, ratio_from_log, sequence_log_ratio, token_log_ratio
from upweight.objective.segments import segment_index, segment_sum
from upweight.objective.spec import Objective
from upweight.objective.surrogate import SurrogateTerms, cispo_surrogate, clip_surrogate, unclipped_surrogate


@dataclass(frozen=True, kw_only=True, slots=True)
class LossTerms:
    """A partial sum of the loss and what it was made of."""

    loss: Tensor
    """Scalar: sum_t w_t (kl_coef KL_t - c_t f_t) over the tokens given; differentiable, 0 with a graph for none."""

    metrics: Sums
    """(sum, count) pairs; `metric_means` turns the total into numbers."""

    ratio: Tensor
    """[N] importance ratio rho_t, detached; for its tails, which do not add up."""

    gap: Tensor | None
    """[N] |log pi_old - log mu|, detached, 0 where the sampler's is NaN; None without sampler log-probs."""


def policy_loss(
    objective: Objective,
    *,
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"] | None,
    advantages: Float[Tensor, " N"],
    weights: Float[Tensor, " N"],
    seq_id: Int[Tensor, " N"],
    ref_logprobs: Float[Tensor, " N"] | None = None,
    sampler_logprobs: Float[Tensor, " N"] | None = None,
    per_token_advantages: bool = False,
) -> LossTerms:
    """L = - sum_t w_t c_t f(rho_t, A_t) + kl_coef sum_t w_t KL_t, over the tokens given.

    The tokens are whole answers of one optimiser step, or any share of them that splits no answer: the losses and
    the metrics of the shares add up to those of the step. Only trainable tokens come in; every choice is the
    objective's. Half-precision log-probs are computed with in float32.

    Args:
        objective: which f, rho, c and KL. Advantages and weights were made from it before.
        logprobs: [N] log-probabilities of the sampled tokens under the current policy, differentiable.
        old_logprobs: [N] under the policy before the step's first update; None = `logprobs` detached, which
            is what they are in a batch's first update.
        advantages: [N] advantage of each token's answer (or of the token).
        weights: [N] from `flat_token_weights` over the WHOLE step.
        seq_id: [N] answer of each token, any integers.
        ref_logprobs: [N] under the reference policy; needed for a KL in the loss.
        sampler_logprobs: [N] under the sampler; needed for a correction, and for the mismatch metrics.
        per_token_advantages: advantages may differ within an answer; a sequence ratio then takes GSPO-token's form.

    Raises:
        UsageError: reference or sampler log-probs are missing where the objective needs them, or it differentiates
            k1 as it stands (expected gradient 0).
    """
    logprobs = at_least_float32(logprobs)
    old = logprobs.detach() if old_logprobs is None else at_least_float32(old_logprobs.detach())
    ref_logprobs = None if ref_logprobs is None else at_least_float32(ref_logprobs)
    sampler_logprobs = None if sampler_logprobs is None else at_least_float32(sampler_logprobs)
    log_ratio = _log_ratio(objective, logprobs, old, seq_id, per_token_advantages)
    ratio = ratio_from_log(log_ratio)
    correction = correction_terms(
        old,
        sampler_logprobs,
        seq_id,
        kind=objective.correction,
        level=objective.correction_level,
        cap=objective.correction_cap,
    )
    surrogate = _surrogate(objective, ratio, advantages, logprobs)
    contribution = -correction.weight * torch.where(correction.rejected, 0.0, surrogate.value)
    if objective.kl_coef > 0 and objective.kl_place == "loss":
        contribution = contribution + objective.kl_coef * _kl_term(objective, logprobs, old, ref_logprobs, correction)
    metrics = _surrogate_metrics(objective, ratio, surrogate, correction, seq_id)
    if ref_logprobs is not None:
        kl = kl_estimate(logprobs.detach(), ref_logprobs, objective.kl_estimator)[~correction.rejected]
        metrics["kl"] = (kl.sum(), kl.numel())
    gap = None if sampler_logprobs is None else mismatch(old, sampler_logprobs).abs()
    if sampler_logprobs is not None and gap is not None:
        metrics["mismatch"] = (gap.sum(), (~sampler_logprobs.isnan()).sum())
    return LossTerms(
        loss=(weights.to(logprobs.dtype) * contribution).sum(),
        metrics={name: (float(value), float(count)) for name, (value, count) in metrics.items()},
        ratio=ratio.detach(),
        gap=gap,
    )


def _log_ratio(objective: Objective, logprobs: Tensor, old: Tensor, seq_id: Tensor, per_token: bool) -> Tensor:
    if objective.ratio_level == "sequence":
        return sequence_log_ratio(logprobs, old, seq_id, per_token=per_token)
    return token_log_ratio(logprobs, old)


def _surrogate(objective: Objective, ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> SurrogateTerms:
    low, high = objective.bounds
    if objective.surrogate == "clip":
        return clip_surrogate(ratio, advantages, low=low, high=high, dual_clip=objective.dual_clip)
    if objective.surrogate == "cispo":
        return cispo_surrogate(ratio, advantages, logprobs, low=low, high=high)
    return unclipped_surrogate(ratio, advantages)


def _kl_term(
    objective: Objective, logprobs: Tensor, old: Tensor, ref_logprobs: Tensor | None, correction: CorrectionTerms
) -> Tensor:
    """[N] KL_t: the estimator (naive), or c_t rho_t times it (reverse; token ratio, unclipped); 0 where rejected."""
    if ref_logprobs is None:
        raise bad_parameter("ref_logprobs", "grpo_loss", "given where kl_coef is above 0", None)
    if objective.kl_grad == "naive" and objective.kl_estimator == "k1":
        way_out = "Its expected gradient is 0; use kl_grad='reverse', k2 or k3, or put the KL into the reward."
        raise bad_parameter("kl_estimator", "grpo_loss", "k2 or k3 for a naive loss term", "k1", way_out)
    kl = kl_estimate(logprobs, ref_logprobs, objective.kl_estimator)
    if objective.kl_grad == "reverse":
        kl = correction.weight * ratio_from_log(token_log_ratio(logprobs, old)) * kl
    return torch.where(correction.rejected, 0.0, kl)


def _surrogate_metrics(
    objective: Objective, ratio: Tensor, surrogate: SurrogateTerms, correction: CorrectionTerms, seq_id: Tensor
) -> dict[str, tuple[Tensor | float, Tensor | float]]:
    """Clipped shares, ratio, rejected share and importance weights, as (sum, count) over kept tokens or answers."""
    kept = (~correction.rejected).to(ratio.dtype)
    share = kept
    if objective.ratio_level == "sequence":  # every answer counts once, whatever its length
        index, count = segment_index(seq_id)
        share = kept / segment_sum(kept, index, count).clamp(min=1)[index]
    units = share.sum()
    ratio = ratio.detach()
    importance = correction.weight.double() * ratio.double()
    n = ratio.numel()
    return {
        "clipfrac": ((share * (surrogate.below | surrogate.above | surrogate.dual)).sum(), units),
        "clipfrac_low": ((share * surrogate.below).sum(), units),
        "clipfrac_high": ((share * surrogate.above).sum(), units),
        "clipfrac_dual": ((share * surrogate.dual).sum(), units),
        "ratio_mean": ((share * ratio).sum(), units),
        "rejected": (correction.rejected.sum(), n),
        "importance": (importance.sum(), n),
        "importance_sq": (importance.square().sum(), n),
    }
