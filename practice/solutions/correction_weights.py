"""A solution of correction_weights."""

import math


def correction_weights(
    old_logprobs: list[float], sampler_logprobs: list[float], kind: str, cap: float, level: str
) -> list[float]:
    """exp of the log-ratio at its level, truncated or dropped above the cap."""
    if kind not in ("none", "is", "tis", "mis") or level not in ("token", "sequence") or not cap > 0:
        raise ValueError(f"unknown kind or level, or a cap that is not above 0: {kind}, {level}, {cap}")
    if kind == "none":
        return [1.0] * len(old_logprobs)
    pairs = zip(old_logprobs, sampler_logprobs, strict=True)
    log_ratios = [0.0 if math.isnan(sampler) else old - sampler for old, sampler in pairs]
    if level == "sequence":
        log_ratios = [math.fsum(log_ratios)] * len(log_ratios)
    return [_weight(math.exp(min(max(value, -20.0), 20.0)), kind, cap) for value in log_ratios]


def _weight(ratio: float, kind: str, cap: float) -> float:
    if kind == "is" or ratio <= cap:
        return ratio
    return cap if kind == "tis" else 0.0
