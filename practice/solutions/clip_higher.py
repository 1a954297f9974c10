"""A solution of clip_higher."""


def clip_higher(probability: float, clip: float, clip_high: float | None = None) -> tuple[float, float]:
    """Probability times each bound of the ratio, within [0, 1]."""
    above = clip if clip_high is None else clip_high
    return max(0.0, probability * (1 - clip)), min(1.0, probability * (1 + above))
