"""A solution of kl_estimators."""

import math


def kl_estimators(logprob: float, ref_logprob: float) -> tuple[float, float, float]:
    """-log r, its halved square, and r - 1 - log r with log r at most 20."""
    log_ratio = ref_logprob - logprob
    bounded = min(log_ratio, 20.0)
    return -log_ratio, log_ratio**2 / 2, math.expm1(bounded) - bounded
