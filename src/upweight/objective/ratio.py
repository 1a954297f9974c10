"""Importance ratios: the policy now against the policy that is held to have sampled."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from upweight.objective.segments import segment_index, segment_mean

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +- this before `exp`. `policy_loss` computes in float32 at least, where e^20 is finite."""


def token_log_ratio(logprobs: Float[Tensor, " N"], old_logprobs: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """log rho_t = log pi(o_t) - log pi_old(o_t), not clamped (PPO, arXiv 1707.06347, section 3)."""
    return logprobs - old_logprobs


def sequence_log_ratio(
    logprobs: Float[Tensor, " N"],
    old_logprobs: Float[Tensor, " N"],
    seq_id: Int[Tensor, " N"],
    *,
    per_token: bool = False,
) -> Float[Tensor, " N"]:
    """log s_i = (1/|o_i|) sum_t log rho_t, the same at every token of answer i, not clamped.

    GSPO (arXiv 2507.18071, equation 7). The answer's length counts its trainable tokens, those a correction
    rejects included: the ratio belongs to the answer.

    Args:
        logprobs: [N] current log-probabilities, differentiable.
        old_logprobs: [N] those of the old policy.
        seq_id: [N] answer of each token.
        per_token: the GSPO-token form (equation 14), s_{i,t} = sg[s_i] pi_t / sg[pi_t]: the same value, but a
            token's gradient is its own. Needed where advantages differ within an answer.
    """
    index, count = segment_index(seq_id)
    log_ratio = segment_mean(logprobs - old_logprobs, index, count)[index]
    return log_ratio.detach() + (logprobs - logprobs.detach()) if per_token else log_ratio


def ratio_from_log(log_ratio: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """exp of the log-ratio clamped to +-20; beyond it the gradient is 0.

    Example:
        >>> import torch
        >>> ratio_from_log(torch.tensor([0.0, 200.0], dtype=torch.float64)).round()
        tensor([1.0000e+00, 4.8517e+08], dtype=torch.float64)
    """
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def at_least_float32(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """bfloat16 and float16 as float32, differentiably; float32 and float64 as they are.

    A bfloat16 sum of ones stops at 256, and e^15 is inf in float16.
    """
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
