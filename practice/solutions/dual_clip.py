"""A solution of dual_clip."""


def dual_clip(ratio: float, advantage: float, clip: float, ceiling: float) -> tuple[float, float]:
    """The clipped surrogate, never below ceiling * A for bad tokens."""
    if not ceiling > 1:
        raise ValueError(f"ceiling must be above 1, got {ceiling}")
    free = ratio * advantage
    clipped = min(max(ratio, 1 - clip), 1 + clip) * advantage
    if advantage < 0 and min(free, clipped) < ceiling * advantage:
        return ceiling * advantage, 0.0
    return (clipped, 0.0) if clipped < free else (free, free)
