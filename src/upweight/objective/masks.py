"""Masks: bool or 0/1, and they select."""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from upweight.objective.errors import bad_parameter


def as_mask(mask: Shaped[Tensor, "B T"], owner: str) -> Bool[Tensor, "B T"]:
    """The mask as bool.

    Args:
        mask: [B, T] bool or 0/1.
        owner: the function whose parameter it is, for the error.

    Raises:
        UsageError: it is not [B, T], or holds anything but 0 and 1.
    """
    if mask.ndim != 2:
        raise bad_parameter("mask", owner, "of shape [B, T]", tuple(mask.shape))
    if mask.dtype == torch.bool:
        return mask
    stray = mask[(mask != 0) & (mask != 1)]
    if stray.numel():
        raise bad_parameter("mask", owner, "bool or 0/1", stray[0].item())
    return mask.bool()
