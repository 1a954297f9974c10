"""A solution of fill_batch."""

import math
from collections.abc import Callable


def fill_batch(sample: Callable[[], list[list[float]]], wanted: int, budget: int) -> list[list[float]]:
    """Draws at most budget times, and stops as soon as the batch is full."""
    kept: list[list[float]] = []
    for _ in range(budget):
        if len(kept) >= wanted:
            break
        kept.extend(group for group in sample() if _has_spread(group))
    return kept[:wanted]


def _has_spread(group: list[float]) -> bool:
    scored = [reward for reward in group if not math.isnan(reward)]
    return len(scored) > 1 and min(scored) < max(scored)
