"""k1, k2 and k3: three estimates of one KL.

The KL of the policy against the reference at one position is a sum over the vocabulary, but only the sampled token is
at hand. With log r = log pi_ref - log pi of that token,

    k1 = -log r          unbiased, noisy, negative for nearly half of the samples
    k2 = (log r)^2 / 2   never negative, biased
    k3 = r - 1 - log r   unbiased, never negative; GRPO's

Source: J. Schulman, "Approximating KL Divergence", 2020; GRPO: arXiv 2402.03300, equation 4.

Shape: two log-probabilities in, (k1, k2, k3) in nats out.

Edges:
- k3 is never negative and keeps its digits for a log r of 1e-9, where it is about 5e-19.
- exp must not overflow: in k3, and only there, log r is taken as at most 20, in the exponential and outside it.
"""


def kl_estimators(logprob: float, ref_logprob: float) -> tuple[float, float, float]:
    """Three estimates of KL(policy || reference) from one sampled token.

    >>> kl_estimators(-0.3, -0.3)[1:]
    (0.0, 0.0)
    """
    raise NotImplementedError("kl_estimators is yours to write")
