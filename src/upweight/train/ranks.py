"""The processes of a run, and what they say to each other. One process alone is the same code with nothing to say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among those of the run. Every method is a collective: all ranks call it, in the same order."""

    rank: int = 0
    """Of this process, from 0."""

    world: int = 1
    """How many there are."""

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, on each; `tensor` is overwritten with it."""
        if self.world > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        return tensor

    def gather(self, value: _T) -> list[_T]:
        """Every rank's value, in the order of the ranks, on each."""
        if self.world == 1:
            return [value]
        values: list[_T] = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def agree(self, flag: bool) -> bool:
        """Whether it holds on all ranks."""
        return bool(self.sum(torch.tensor([float(not flag)])) == 0)


ALONE = Ranks()
"""A run in one process."""


def shares(costs: Sequence[int], world: int) -> list[list[int]]:
    """Divide work over `world` ranks so that the largest share is small: the dearest first, to whom has the least.

    Args:
        costs: of each piece, in tokens.
        world: how many ranks there are, >= 1.

    Returns:
        The places of each rank's pieces, ascending; empty where there are fewer pieces than ranks. The same on every
        rank, and a rank has at least one piece wherever there are enough.

    Example:
        >>> shares([5, 9, 4, 1], 2)
        [[1, 3], [0, 2]]
    """
    mine: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        rank = min(range(world), key=lambda rank: (loads[rank], len(mine[rank]), rank))
        mine[rank].append(place)
        loads[rank] += costs[place]
    return [sorted(places) for places in mine]


def share_of(lengths: Sequence[int], ranks: Ranks) -> list[int]:
    """The places of this rank's pieces of work, ascending; see `shares`.

    Args:
        lengths: cost of each piece in tokens: of a prompt to sample from, its length plus the answers' budgets.
        ranks: who shares the work.

    Example:
        >>> share_of([5, 9, 4, 1], Ranks(rank=1, world=2)), share_of([5, 9], ALONE)
        ([0, 2], [0, 1])
    """
    return shares(lengths, ranks.world)[ranks.rank]
