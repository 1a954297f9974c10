"""A solution of clip_surrogate."""

import math


def clip_surrogate(log_ratio: float, advantage: float, clip: float, clip_high: float) -> tuple[float, float]:
    """The smaller of the two terms; the clipped one is a constant."""
    bounded = min(max(log_ratio, -20.0), 20.0)
    ratio = math.exp(bounded)
    free = ratio * advantage
    clipped = min(max(ratio, 1 - clip), 1 + clip_high) * advantage
    if clipped < free:
        return clipped, 0.0
    return free, free if bounded == log_ratio else 0.0
