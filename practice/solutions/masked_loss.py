"""A solution of masked_loss."""

from torch import Tensor


def masked_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The tokens that count are taken out before the first operation."""
    keep = mask.bool()
    ratio = (logprobs[keep] - old_logprobs[keep]).exp()
    return -(ratio * advantages[keep]).sum() / keep.sum().clamp(min=1)
