"""The processes of a run, and what they say to each other. One process alone is the same code with nothing to say."""

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
