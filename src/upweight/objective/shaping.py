"""Shaping of the task reward: the overlong penalty, and the KL in the reward."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from upweight.objective.errors import bad_parameter
from upweight.objective.kl import kl_estimate
from upweight.objective.segments import segment_sum


def overlong_penalty(lengths: Int[Tensor, " B"], max_length: int, buffer: int) -> Float[Tensor, " B"]:
    """Soft overlong punishment (DAPO, arXiv 2503.14476, equation 13): 0, then linear, then -1.

    0 up to L = max_length - buffer, (max_length - buffer - L) / buffer up to L = max_length, -1 from there on,
    never below. With buffer 0 it is a step: 0 up to max_length, -1 above.

    Args:
        lengths: [B] answer lengths in trainable tokens.
        max_length: L_max, the generation budget in tokens.
        buffer: tokens over which the penalty grows, in [0, max_length].

    Returns:
        [B] penalties in [-1, 0], to be added to the task reward.

    Raises:
        UsageError: a buffer outside [0, max_length].

    Example:
        >>> overlong_penalty(torch.tensor([80, 90, 100, 101]), max_length=100, buffer=20).tolist()
        [0.0, -0.5, -1.0, -1.0]
    """
    if not 0 <= buffer <= max_length:
        raise bad_parameter("buffer", "overlong_penalty", f"between 0 and max_length ({max_length})", buffer)
    excess = (lengths - (max_length - buffer)).to(torch.get_default_dtype())
    if buffer == 0:
        return torch.where(excess > 0, -1.0, 0.0)
    return 0.0 - (excess / buffer).clamp(0.0, 1.0)


def kl_in_reward(
    old_logprobs: Float[Tensor, " N"],
    ref_logprobs: Float[Tensor, " N"],
    index: Int[Tensor, " N"],
    answers: int,
) -> Float[Tensor, " B"]:
    """sum_t k1_t of each answer, to be subtracted from its reward times kl_coef; detached.

    log pi_old(o) - log pi_ref(o): its expectation under the sampling policy is the KL of whole answers.

    Args:
        old_logprobs: [N] log-probabilities under the policy that sampled.
        ref_logprobs: [N] under the reference.
        index: [N] answer of each token, 0..answers-1.
        answers: B.
    """
    return segment_sum(kl_estimate(old_logprobs, ref_logprobs, "k1").detach(), index, answers)
