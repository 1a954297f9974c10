"""Surrogates f(rho, A): what is maximised, and where its gradient stops."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from upweight.objective.errors import bad_parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class SurrogateTerms:
    """A surrogate per token, and which of its bounds a token has run into."""

    value: Tensor
    """[N] f(rho_t, A_t), differentiable; maximised."""

    below: Tensor
    """[N] bool: at the lower bound, on the flat side for the sign of A (CISPO: weight raised to it)."""

    above: Tensor
    """[N] bool: at the upper bound, on the flat side for the sign of A (CISPO: weight cut down to it)."""

    dual: Tensor
    """[N] bool: at dual clip's floor."""


def clip_surrogate(
    ratio: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    *,
    low: float,
    high: float,
    dual_clip: float | None = None,
) -> SurrogateTerms:
    """min(rho A, clip(rho, low, high) A), PPO (arXiv 1707.06347, equation 7).

    Separate bounds are DAPO's Clip-Higher (arXiv 2503.14476, equation 10). With `dual_clip` c,
    for A < 0 only: max(that, c A) (arXiv 1912.09729).

    Args:
        ratio: [N] importance ratio, differentiable.
        advantages: [N].
        low: lower bound of the ratio, 1 - clip.
        high: upper bound of the ratio, 1 + clip_high.
        dual_clip: c > 1, or None.

    Raises:
        UsageError: dual_clip not above 1.
    """
    if dual_clip is not None and not dual_clip > 1:
        raise bad_parameter("dual_clip", "clip_surrogate", "above 1", dual_clip, "Leave it out to switch it off.")
    advantages = advantages.detach()
    above = (advantages > 0) & (ratio > high)
    below = (advantages < 0) & (ratio < low)
    # Selected, not torch.minimum: a ratio just above the bound may tie with it once A is multiplied in and rounded, and
    # there `minimum` passes half a gradient.
    value = torch.where(above | below, ratio.detach().clamp(low, high) * advantages, ratio * advantages)
    dual = torch.zeros_like(above)
    if dual_clip is not None:
        dual = (advantages < 0) & (ratio > dual_clip)
        value = torch.where(dual, dual_clip * advantages, value)
    return SurrogateTerms(value=value, below=below, above=above, dual=dual)


def cispo_surrogate(
    ratio: Float[Tensor, " N"],
    advantages: Float[Tensor, " N"],
    logprobs: Float[Tensor, " N"],
    *,
    low: float,
    high: float,
) -> SurrogateTerms:
    """sg(clip(rho, low, high)) A log pi, CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5).

    The weight carries no gradient, so no token loses its own: d/dlogprob is the clipped weight times A.

    Args:
        ratio: [N] importance ratio.
        advantages: [N].
        logprobs: [N] current log-probabilities, differentiable.
        low: lower bound of the weight, 1 - clip.
        high: upper bound of the weight, 1 + clip_high.
    """
    advantages, ratio = advantages.detach(), ratio.detach()
    counted = advantages != 0
    below, above = counted & (ratio < low), counted & (ratio > high)
    value = ratio.clamp(low, high) * advantages * logprobs
    return SurrogateTerms(value=value, below=below, above=above, dual=torch.zeros_like(above))


def unclipped_surrogate(ratio: Float[Tensor, " N"], advantages: Float[Tensor, " N"]) -> SurrogateTerms:
    """rho A, the importance-sampled policy gradient without bounds."""
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateTerms(value=ratio * advantages.detach(), below=never, above=never, dual=never)
