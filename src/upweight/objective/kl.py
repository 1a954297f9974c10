"""KL of the policy to the reference, from one sampled token per position."""

from jaxtyping import Float
from torch import Tensor

from upweight.objective.errors import bad_parameter
from upweight.objective.ratio import LOG_RATIO_LIMIT


def kl_estimate(
    logprobs: Float[Tensor, " N"], ref_logprobs: Float[Tensor, " N"], estimator: str = "k3"
) -> Float[Tensor, " N"]:
    """Single-sample estimate of KL(pi || pi_ref) at each token, sampled from pi.

    From Schulman, "Approximating KL Divergence" (2020). With log r = log pi_ref - log pi: `k1` is -log r, unbiased,
    may be negative; `k2` is (log r)^2 / 2, biased, never negative; `k3` is r - 1 - log r, unbiased, never negative.

    Differentiated as they stand under samples from pi: k1 has expected gradient 0, k2 that of the reverse
    KL(pi || pi_ref), k3 that of the forward KL(pi_ref || pi).

    Args:
        logprobs: [N] current log-probabilities, differentiable.
        ref_logprobs: [N] those of the reference policy.
        estimator: "k1", "k2" or "k3".

    Returns:
        [N] estimates in nats. k3 stops growing, and pulling, at log r = 20, where e^20 would still be finite.

    Example:
        >>> import torch
        >>> round(kl_estimate(torch.tensor([0.0]), torch.tensor([-0.5])).item(), 7)
        0.1065307
    """
    log_ratio = ref_logprobs.detach() - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        # Clamped as a whole, from above only: a bound on exp alone would leave a gradient that points the wrong
        # way, and very negative log-ratios are safe to exponentiate.
        log_ratio = log_ratio.clamp(max=LOG_RATIO_LIMIT)
        return log_ratio.expm1() - log_ratio
    raise bad_parameter("kl_estimator", "grpo_loss", "'k1', 'k2' or 'k3'", estimator)
