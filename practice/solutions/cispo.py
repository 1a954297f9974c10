"""A solution of cispo."""

import math


def cispo(logprob: float, old_logprob: float, advantage: float, clip: float, clip_high: float) -> tuple[float, float]:
    """-weight * A * logprob, and -weight * A: the weight is a number."""
    ratio = math.exp(min(max(logprob - old_logprob, -20.0), 20.0))
    weight = min(max(ratio, 1 - clip), 1 + clip_high)
    return -weight * advantage * logprob, -weight * advantage
