"""Sums and means over runs of equal ids: the tokens of an answer, the answers of a group."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def segment_index(ids: Int[Tensor, " N"]) -> tuple[Int[Tensor, " N"], int]:
    """Renumber arbitrary ids to 0..S-1.

    Returns:
        The new id of each element, and S, the number of different ids.
    """
    unique, index = torch.unique(ids, return_inverse=True)
    return index, unique.numel()


def segment_sum(values: Float[Tensor, " N"], index: Int[Tensor, " N"], count: int) -> Float[Tensor, " S"]:
    """Sum of the values that share an index; 0 for an index nobody has."""
    return values.new_zeros(count).index_add(0, index, values)


def segment_mean(values: Float[Tensor, " N"], index: Int[Tensor, " N"], count: int) -> Float[Tensor, " S"]:
    """Mean of the values that share an index; 0 for an index nobody has."""
    sizes = segment_sum(torch.ones_like(values), index, count)
    return segment_sum(values, index, count) / sizes.clamp(min=1)


def segment_any(flags: Bool[Tensor, " N"], index: Int[Tensor, " N"], count: int) -> Bool[Tensor, " S"]:
    """Whether any of the flags that share an index is set."""
    return torch.zeros(count, dtype=torch.long, device=flags.device).index_add(0, index, flags.long()) > 0
