"""A solution of group_advantages."""

import math


def group_advantages(rewards: list[float], eps: float = 1e-6) -> list[float]:
    """(R_i - mean) / (std + eps) over the scored answers."""
    scored = [reward for reward in rewards if not math.isnan(reward)]
    # Compared, not subtracted: the mean of equal decimals may differ from them in the last bit.
    if len(scored) < 2 or min(scored) == max(scored):
        return [0.0] * len(rewards)
    mean = sum(scored) / len(scored)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in scored) / (len(scored) - 1))
    return [0.0 if math.isnan(reward) else (reward - mean) / (std + eps) for reward in rewards]
