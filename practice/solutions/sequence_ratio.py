"""A solution of sequence_ratio."""

import math


def sequence_ratio(logprobs: list[float], old_logprobs: list[float], mask: list[int]) -> float:
    """exp of the mean log-ratio over the tokens that count."""
    log_ratios = [new - old for new, old, counts in zip(logprobs, old_logprobs, mask, strict=True) if counts]
    if not log_ratios:
        return 1.0
    mean = math.fsum(log_ratios) / len(log_ratios)
    return math.exp(min(max(mean, -20.0), 20.0))
