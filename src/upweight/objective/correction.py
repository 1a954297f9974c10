"""Corrections: the sampler's distribution mu is not quite the trainer's pi_old."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from upweight.objective.errors import bad_parameter
from upweight.objective.ratio import at_least_float32, ratio_from_log
from upweight.objective.segments import segment_index, segment_mean, segment_sum
from upweight.objective.spec import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionTerms:
    """What a correction does to each token. Carries no gradient."""

    weight: Tensor
    """[N] c_t; 0 where rejected."""

    rejected: Tensor
    """[N] bool: dropped by mis; such a token contributes neither surrogate nor KL."""


def correction_terms(
    old_logprobs: Float[Tensor, " N"],
    sampler_logprobs: Float[Tensor, " N"] | None,
    seq_id: Int[Tensor, " N"],
    *,
    kind: str = "none",
    level: str = "token",
    cap: float = 2.0,
) -> CorrectionTerms:
    """c_t, from the ratio pi_old / mu of the sampled tokens; detached.

    With r the ratio at the chosen level: `is` r; `tis` min(r, cap) (truncated importance sampling, Yao et al. 2025);
    `mis` r where r <= cap, else the token is rejected. Level `token`: r_t; `sequence`: prod_t r_t over the answer,
    clamped in log space; `geometric`: (prod_t r_t)^(1/|o|), steadier but no importance weight.

    Args:
        old_logprobs: [N] log pi_old of the sampled tokens, by the trainer.
        sampler_logprobs: [N] log mu of them, by the sampler; NaN = not scored, taken as if mu agreed (so c = 1
            for that token). None only with kind "none".
        seq_id: [N] answer of each token.
        kind: "none", "is", "tis" or "mis".
        level: "token", "sequence" or "geometric".
        cap: C > 0.

    Raises:
        UsageError: unknown kind or level, a cap not above 0, or no sampler log-probs.
    """
    if kind not in ("none", "is", "tis", "mis"):
        raise bad_parameter("correction", "grpo_loss", "'none', 'is', 'tis' or 'mis'", kind)
    if level not in ("token", "sequence", "geometric"):
        raise bad_parameter("correction_level", "grpo_loss", "'token', 'sequence' or 'geometric'", level)
    ones = torch.ones_like(old_logprobs).detach()
    never = torch.zeros_like(old_logprobs, dtype=torch.bool)
    if kind == "none":
        return CorrectionTerms(weight=ones, rejected=never)
    if not cap > 0:
        raise bad_parameter("correction_cap", "grpo_loss", "above 0", cap)
    if sampler_logprobs is None:
        raise bad_parameter("sampler_logprobs", "grpo_loss", f"given for correction '{kind}'", None)
    ratio = ratio_from_log(_log_ratio_at_level(mismatch(old_logprobs, sampler_logprobs), seq_id, level))
    if kind == "is":
        return CorrectionTerms(weight=ratio, rejected=never)
    if kind == "tis":
        return CorrectionTerms(weight=ratio.clamp(max=cap), rejected=never)
    return CorrectionTerms(weight=torch.where(ratio <= cap, ratio, 0.0), rejected=ratio > cap)


def rejected_tokens(
    objective: Objective,
    old_logprobs: Float[Tensor, " N"],
    sampler_logprobs: Float[Tensor, " N"] | None,
    seq_id: Int[Tensor, " N"],
) -> Bool[Tensor, " N"]:
    """[N] what the objective's correction drops; computed in float32 at least."""
    return correction_terms(
        at_least_float32(old_logprobs),
        None if sampler_logprobs is None else at_least_float32(sampler_logprobs),
        seq_id,
        kind=objective.correction,
        level=objective.correction_level,
        cap=objective.correction_cap,
    ).rejected


def mismatch(old_logprobs: Float[Tensor, " N"], sampler_logprobs: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """log pi_old - log mu per token, detached; 0 where the sampler's is NaN."""
    return torch.where(sampler_logprobs.isnan(), 0.0, old_logprobs - sampler_logprobs).detach()


def _log_ratio_at_level(log_ratio: Tensor, seq_id: Tensor, level: str) -> Tensor:
    if level == "token":
        return log_ratio
    index, count = segment_index(seq_id)
    reduce = segment_sum if level == "sequence" else segment_mean
    return reduce(log_ratio, index, count)[index]
