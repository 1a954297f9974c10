"""Dynamic sampling: fill the batch, within a budget.

A group whose answers all got the same reward has advantage 0 everywhere: it costs sampling and teaches nothing. DAPO
leaves such groups out and samples on until the batch is full. On a data set where every answer is wrong that never
ends, so there is a budget, and what happens when it is used up is part of the design: here, you return what you have.

Source: DAPO, arXiv 2503.14476, section 3.2.

Shape: sample() returns a list of groups, each a list of task rewards (before any shaping: a length penalty would give
an all-wrong group a spread). Return the groups kept, at most `wanted`, in the order in which they were drawn.

Edges:
- Spread decides, not the mean: (0.5, 0.5) goes, (0.2, 0.8) stays.
- NaN is an answer without a score, and takes no part; fewer than two scores have no spread. A kept group is returned
  as it was drawn.
- sample() is called at most `budget` times, and not once more than is needed.
"""

from collections.abc import Callable


def fill_batch(sample: Callable[[], list[list[float]]], wanted: int, budget: int) -> list[list[float]]:
    """Groups with a spread, until there are enough or the budget is used up.

    >>> fill_batch(lambda: [[1.0, 1.0], [1.0, 0.0]], wanted=1, budget=8)
    [[1.0, 0.0]]
    """
    raise NotImplementedError("fill_batch is yours to write")
