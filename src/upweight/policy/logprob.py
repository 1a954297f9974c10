"""Log-probability and entropy of given tokens, with memory that does not grow with float32 copies of the logits.

Shapes: N tokens, V words of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# 4M float32 elements are 16 MB: large enough that the loop costs nothing, small enough to stay near the caches.
CHUNK_ELEMENTS = 1 << 22

# Stands for -inf inside a chunk: its exp is exactly 0, and 0 * it is 0 where 0 * -inf would be NaN.
FLOOR = -1e30


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """Scores of all completion tokens of a batch, sequence after sequence."""

    logprobs: Tensor
    """[N] float32, differentiable: log-probability of each token (nats)."""

    entropy: Tensor
    """[N] float32, detached, >= 0: exact entropy of the distribution each token was scored under (nats)."""


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    kept: Sequence[np.ndarray | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of `targets` and the entropy under softmax(logits / temperature), in float32.

    With z = logits / T restricted to the kept set K:

        logp_n = z[n, y_n] - log sum_{v in K} exp z[n, v]        H_n = - sum_{v in K} p[n, v] log p[n, v]

    The backward is exact, d logp / d logits = (onehot - p) / T, and recomputes p chunk by chunk: only the logits
    themselves, in the model's own dtype, are kept between forward and backward.

    Args:
        logits: [N, V], any float dtype.
        targets: [N] int64 ids.
        temperature: > 0, divides the logits.
        kept: per token the ids (integers) it was chosen among, None = all; None for all tokens.

    Returns:
        logprobs [N] float32, differentiable; entropy [N] float32, detached, >= 0.

    Raises:
        ValueError: a target lies outside its kept set.
    """
    logprobs, entropy = _TokenLogprobs.apply(logits, targets, temperature, kept)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def _chunks(logits: Tensor) -> list[slice]:
    rows = max(1, CHUNK_ELEMENTS // max(1, logits.shape[1]))
    return [slice(start, start + rows) for start in range(0, logits.shape[0], rows)]


def _shifted(
    logits: Tensor, where: slice, temperature: float, kept: Sequence[np.ndarray | None] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled logits of one chunk minus their row maximum, their exp and its row sum; float32."""
    z = logits[where].to(torch.float32, copy=True)
    if temperature != 1.0:
        z /= temperature
    if kept is not None:
        z.masked_fill_(~kept_mask(kept[where], z.shape[1], z.device), FLOOR)
    z -= z.amax(dim=1, keepdim=True)
    z.clamp_(min=FLOOR)
    e = z.exp()
    return z, e, e.sum(dim=1, keepdim=True)


def kept_mask(kept: Sequence[np.ndarray | None], vocabulary: int, device: torch.device) -> Tensor:
    """[len(kept), vocabulary] bool: True on the ids of each row's kept set, everywhere where that is None."""
    mask = torch.zeros(len(kept), vocabulary, dtype=torch.bool)
    rows = [row for row, ids in enumerate(kept) if ids is not None]
    sets = [np.asarray(ids) for ids in kept if ids is not None]
    if len(rows) < len(kept):
        mask[[row for row, ids in enumerate(kept) if ids is None]] = True
    if rows:
        counts = [len(ids) for ids in sets]
        mask[np.repeat(rows, counts), np.concatenate(sets).astype(np.int64)] = True
    return mask.to(device)


class _TokenLogprobs(torch.autograd.Function):
    """Chunked gather of log-softmax with its entropy; see `token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        temperature: float,
        kept: Sequence[np.ndarray | None] | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
        entropy = torch.empty_like(logprobs)
        for where in _chunks(logits):
            z, e, total = _shifted(logits, where, temperature, kept)
            log_total = total.log().squeeze(1)
            logprobs[where] = z.gather(1, targets[where, None]).squeeze(1) - log_total
            entropy[where] = log_total - (e.mul_(z).sum(dim=1) / total.squeeze(1))
        if kept is not None and bool((logprobs < 0.5 * FLOOR).any()):
            raise ValueError("A token lies outside the kept set it came with: its log-probability would be -inf.")
        entropy.clamp_(min=0.0)
        ctx.save_for_backward(logits, targets)
        ctx.temperature, ctx.kept = temperature, kept
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _grad_entropy: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets = ctx.saved_tensors
        out = torch.empty_like(logits)
        for where in _chunks(logits):
            _, e, total = _shifted(logits, where, ctx.temperature, ctx.kept)
            scale = (grad[where, None] / ctx.temperature).to(torch.float32)
            e.mul_(-scale / total)
            e.scatter_add_(1, targets[where, None], scale)
            out[where] = e
        return out, None, None, None
