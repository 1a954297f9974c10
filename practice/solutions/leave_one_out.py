"""A solution of leave_one_out."""

import math


def leave_one_out(rewards: list[float], scale: bool) -> list[float]:
    """R_i minus the mean of the others, divided by their std where they have one."""
    if len(rewards) < 2 or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    return [_against(reward, rewards[:i] + rewards[i + 1 :], scale) for i, reward in enumerate(rewards)]


def _against(reward: float, others: list[float], scale: bool) -> float:
    # The mean of equal decimals is that decimal, which summing would miss by a bit.
    if min(others) == max(others):
        return reward - others[0]
    mean = sum(others) / len(others)
    if not scale:
        return reward - mean
    return (reward - mean) / math.sqrt(sum((other - mean) ** 2 for other in others) / (len(others) - 1))
