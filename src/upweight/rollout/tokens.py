"""Which slots of a padded table of sampled ids belong to the answer."""

from collections.abc import Iterable

import torch
from torch import Tensor


def completion_mask(ids: Tensor, end_ids: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Mask of an answer up to its first end token, that token included.

    Only the first end token counts, so padding that happens to be an end token (pad == eos) stays out while the end
    token itself stays in: it is the one that teaches the model to stop.

    Args:
        ids: [B, T] int64 sampled ids; whatever follows the end token is ignored.
        end_ids: ids that end an answer; may be empty.

    Returns:
        mask [B, T] bool, True on the answer's tokens; finished [B] bool, True where an end token was found. For a
        sampler's own table, not finished means truncated.

    Example:
        >>> mask, finished = completion_mask(torch.tensor([[5, 6, 2, 2, 2], [5, 6, 7, 8, 9]]), {2})
        >>> mask.int().tolist(), finished.tolist()
        ([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], [True, False])
    """
    ends = torch.tensor(sorted(end_ids), dtype=ids.dtype, device=ids.device)
    is_end = torch.isin(ids, ends)
    ends_before = is_end.long().cumsum(dim=1) - is_end.long()
    return ends_before == 0, is_end.any(dim=1)
