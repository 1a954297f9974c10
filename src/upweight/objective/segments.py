"""Sums and means over runs of equal ids: the tokens of an answer, the answers of a group."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from upweight.objective.errors import bad_parameter

GroupIds = Int[Tensor, " B"] | Sequence[int] | None
"""Group of each answer: any integers, the same for the answers of a group."""


def as_group_ids(group_ids: Int[Tensor, " B"] | Sequence[int], count: int, device: torch.device, owner: str) -> Tensor:
    """[count] int64 group ids.

    Raises:
        UsageError: another number of ids than answers; `owner` is the function whose parameter they are.
    """
    ids = torch.as_tensor(group_ids, device=device)
    if ids.is_floating_point():
        raise bad_parameter("group_ids", owner, "integers", ids.dtype)
    if ids.shape != (count,):
        raise bad_parameter("group_ids", owner, f"one id per answer ({count})", tuple(ids.shape))
    return ids.long()


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
