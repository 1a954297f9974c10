"""One sampling step: tokens and their log-probabilities out of logits and uniform noise.

Shapes: A rows that are still alive, V words of the vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional

from upweight.rollout.completion import Sampling

# Most nuclei are small: look among so many words before sorting the whole vocabulary.
_NUCLEUS_GUESS = 256

_ELEMENTS = 1 << 22
"""Logits that are worked on at once, in float32: 16 MB stay near the caches."""

_BLOCK = 256
"""Words of a block of the vocabulary, in the search for the drawn one."""


def draw_tokens(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample one token a row by inverting the cumulative distribution.

    The distribution is softmax(logits / temperature) in float32, cut to the top k and then to the nucleus of top_p,
    renormalised. The token is the first in id order whose cumulative probability exceeds the noise; a token of
    probability 0 is never chosen.

    Args:
        logits: [A, V].
        uniforms: [A] float64 in [0, 1).
        sampling: temperature (0 = greedy, the first of equal maxima), top_k, top_p.

    Returns:
        tokens [A] int64; logprobs [A] float32 under exactly that distribution (0 when greedy); kept [A, V] bool, the
        words chosen among, None where that is all of them or the choice is greedy.
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(dim=-1)
        return tokens, torch.zeros(tokens.shape, dtype=torch.float32, device=logits.device), None
    rows = max(1, _ELEMENTS // logits.shape[1])
    parts = [
        _draw(logits[start : start + rows], uniforms[start : start + rows], sampling)
        for start in range(0, max(1, len(logits)), rows)
    ]
    tokens, logprobs = (torch.cat(column) for column in zip(*((part[0], part[1]) for part in parts), strict=True))
    masks = [mask for _, _, mask in parts if mask is not None]
    return tokens, logprobs, torch.cat(masks) if masks else None


def _draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor | None]:
    logits = logits.to(torch.float32)
    scaled = logits if sampling.temperature == 1.0 else logits / sampling.temperature
    kept = _kept(scaled, sampling)
    if kept is not None:
        scaled = scaled.masked_fill(~kept, float("-inf"))
    top = scaled.amax(dim=-1, keepdim=True)
    tokens, total = _invert((scaled - top).exp_(), uniforms)
    chosen = scaled.gather(1, tokens[:, None]) - top
    return tokens, (chosen.squeeze(1).double() - total.log()).float(), kept


def _invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """First index, in id order, whose cumulative weight exceeds uniforms times the total, and the totals [A] float64.

    By blocks: sums over the whole vocabulary, the scan over one block only. A block's sum is made in float32, in
    pairs, so a boundary between tokens may be off by a share of 1e-7 of its block.
    """
    rows, words = weights.shape
    blocks = functional.pad(weights, (0, -words % _BLOCK)) if words % _BLOCK else weights
    blocks = blocks.view(rows, -1, _BLOCK)
    sums = blocks.sum(dim=-1).double()
    block, before, total = _first_above(sums, uniforms, None)
    inside = blocks[torch.arange(rows, device=weights.device), block].double()
    within, _, _ = _first_above(inside, uniforms, (before, total))
    # Weights that are NaN leave no candidate; their log-probability says so.
    return (block * _BLOCK + within).clamp(max=words - 1), total


def _first_above(
    weights: Tensor, uniforms: Tensor, rest: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """First index of a row [A, n] float64 whose cumulative sum exceeds the threshold; the sum before it; the total.

    `rest` is what comes before the row, and the total that the threshold is a share of; None = the row is all there is.
    Only places of a weight above 0 are candidates: a parallel scan may rise by a rounding error elsewhere. Where
    rounding leaves none above the threshold, it is the last of them.
    """
    cumulative = weights.cumsum(dim=-1)
    before = torch.zeros_like(uniforms) if rest is None else rest[0]
    total = cumulative[:, -1] if rest is None else rest[1]
    there = weights > 0
    above = ((cumulative + before[:, None]) > (uniforms * total)[:, None]) & there
    last = weights.shape[1] - 1 - there.flip(1).view(torch.uint8).argmax(dim=-1)
    index = torch.where(above.any(dim=-1), above.view(torch.uint8).argmax(dim=-1), last)
    reached = cumulative.gather(1, index[:, None]).squeeze(1)
    return index, reached - weights.gather(1, index[:, None]).squeeze(1), total


def _kept(z: Tensor, sampling: Sampling) -> Tensor | None:
    vocabulary = z.shape[1]
    top_k = sampling.top_k if 0 < sampling.top_k < vocabulary else vocabulary
    if top_k == vocabulary and sampling.top_p >= 1.0:
        return None
    if sampling.top_p >= 1.0:
        chosen = torch.topk(z, top_k, dim=-1).indices
        return torch.zeros_like(z, dtype=torch.bool).scatter_(1, chosen, True)
    within = z if top_k == vocabulary else torch.topk(z, top_k, dim=-1).values
    total = torch.logsumexp(within, dim=-1, keepdim=True)
    guess = min(top_k, _NUCLEUS_GUESS)
    kept, complete = _nucleus(z, total, guess, sampling.top_p)
    return kept if complete or guess == top_k else _nucleus(z, total, top_k, sampling.top_p)[0]


def _nucleus(z: Tensor, total: Tensor, among: int, top_p: float) -> tuple[Tensor, bool]:
    """Nucleus among the `among` most likely words, [A, V] bool; False where a row may reach beyond them."""
    values, order = torch.topk(z, among, dim=-1)
    p = (values - total).exp().double()
    inside = p.cumsum(dim=-1) - p < top_p
    return torch.zeros_like(z, dtype=torch.bool).scatter_(1, order, inside), not bool(inside[:, -1].any())
