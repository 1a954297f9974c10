"""Log-probability and entropy of given tokens from hidden states: the logits of a batch never exist at once.

Shapes: N tokens, E hidden size, V words. The softmax is made in blocks of tokens x words, in one sweep, with a running
maximum (Milakov and Gimelshein, arXiv 1805.02867); the backward makes each block again.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from upweight.policy.logprob import FLOOR, kept_mask

TOKENS = 1024
"""Tokens of a block: the weights of the head are read once for so many."""

ELEMENTS = 1 << 22
"""Of a block, in float32: 16 MB, of which two or three are alive at once."""

_sums: dict[int, Callable[[], Tensor]] = {}
"""Where a head's backward adds its weight's gradient, by the id of the weight; see `adding_to`."""


@contextlib.contextmanager
def adding_to(sums: Mapping[Tensor, Callable[[], Tensor]]) -> Iterator[None]:
    """For a while, a backward adds the gradient of these weights to sums, and autograd gets nothing for their use.

    The gradient of a head is as large as the head, and is made when a pass holds all of its activations.

    Args:
        sums: by weight, a function that gives its sum, at least float32; called where the weight is used as a head.
    """
    _sums.update({id(weight): sum_of for weight, sum_of in sums.items()})
    try:
        yield
    finally:
        for weight in sums:
            del _sums[id(weight)]


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    kept: Sequence[np.ndarray | None] | None = None,
    float32: bool = False,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` of the logits hidden weight^T, without the logits.

    Args:
        hidden: [N, E].
        weight: [V, E] of the output head, which has no bias.
        targets: [N] int64 ids.
        temperature: > 0, divides the logits.
        kept: per token the ids it was chosen among, None = all; None for all tokens.
        float32: multiply in float32 where the weights are of half precision.

    Returns:
        logprobs [N] float32, differentiable; entropy [N] float32, detached, >= 0.

    Raises:
        ValueError: a target lies outside its kept set.
    """
    logprobs, entropy = _HeadLogprobs.apply(hidden, weight, targets, temperature, kept, float32)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def _blocks(tokens: int, words: int) -> Iterator[tuple[slice, list[slice]]]:
    """Slices of the tokens, each with slices of the words."""
    rows = min(tokens, max(TOKENS, ELEMENTS // words))
    columns = max(1, ELEMENTS // max(1, rows))
    across = [slice(start, min(words, start + columns)) for start in range(0, words, columns)]
    for start in range(0, tokens, max(1, rows)):
        yield slice(start, min(tokens, start + rows)), across


class _HeadLogprobs(torch.autograd.Function):
    """See `head_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        kept: Sequence[np.ndarray | None] | None,
        float32: bool,
    ) -> tuple[Tensor, Tensor]:
        n = hidden.shape[0]
        logprobs = torch.empty(n, dtype=torch.float32, device=hidden.device)
        entropy, top, log_total = (torch.empty_like(logprobs) for _ in range(3))
        ctx.scale = _Scale(temperature, kept, float32, weight.shape[0])
        for rows, across in _blocks(n, weight.shape[0]):
            sums = _Sums(rows.stop - rows.start, hidden.device)
            for words in across:
                sums.add(ctx.scale.logits(hidden, weight, rows, words), targets[rows] - words.start)
            logprobs[rows], entropy[rows], top[rows], log_total[rows] = sums.finish()
        if kept is not None and bool((logprobs < 0.5 * FLOOR).any()):
            raise ValueError("A token lies outside the kept set it came with: its log-probability would be -inf.")
        ctx.save_for_backward(hidden, weight, targets, top, log_total)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, top, log_total = ctx.saved_tensors
        wide = torch.promote_types(weight.dtype, torch.float32)
        d_hidden = torch.zeros(hidden.shape, dtype=wide, device=hidden.device)
        lent = _sums.get(id(weight))
        make = lent or partial(torch.zeros_like, weight, dtype=wide)
        d_weight = make() if ctx.needs_input_grad[1] else None
        for rows, across in _blocks(hidden.shape[0], weight.shape[0]):
            scale = (grad[rows] / ctx.scale.temperature).to(torch.float32)
            for words in across:
                d = ctx.scale.logits(hidden, weight, rows, words)
                d.sub_(top[rows, None]).sub_(log_total[rows, None]).exp_().mul_(-scale[:, None])
                place = targets[rows] - words.start
                inside = (place >= 0) & (place < d.shape[1])
                d[inside, place[inside]] += scale[inside]
                d = d if ctx.scale.float32 else d.to(weight.dtype)
                _add_product(d_hidden[rows], d, weight[words].to(d.dtype))
                if d_weight is not None:
                    _add_product(d_weight[words], d.t(), hidden[rows].to(d.dtype))
        return (
            d_hidden.to(hidden.dtype),
            None if d_weight is None or lent else d_weight.to(weight.dtype),
            None,
            None,
            None,
            None,
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in one sweep over the total where the dtypes are the same."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


class _Scale:
    """How a block of logits is made."""

    def __init__(self, temperature: float, kept: Sequence[np.ndarray | None] | None, float32: bool, words: int) -> None:
        self.temperature, self.kept, self.float32, self.words = temperature, kept, float32, words

    def logits(self, hidden: Tensor, weight: Tensor, rows: slice, words: slice) -> Tensor:
        """[rows, words] float32, divided by the temperature, a large negative number outside the kept sets."""
        x, w = hidden[rows], weight[words]
        z = (x.float() @ w.float().t()) if self.float32 else (x @ w.t()).float()
        if self.temperature != 1.0:
            z /= self.temperature
        if self.kept is not None:
            z.masked_fill_(~kept_mask(self.kept[rows], self.words, z.device)[:, words], FLOOR)
        return z


class _Sums:
    """Running log-sum-exp, expected logit and target's logit of some tokens, over blocks of words."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.top = torch.full((tokens,), FLOOR, device=device)
        self.total = torch.zeros(tokens, device=device)
        self.weighted = torch.zeros(tokens, device=device)
        self.target = torch.zeros(tokens, device=device)

    def add(self, z: Tensor, place: Tensor) -> None:
        """Take in a block [tokens, words]; `place` is where the targets are in it, if they are. Overwrites z."""
        inside = (place >= 0) & (place < z.shape[1])
        self.target = torch.where(inside, z.gather(1, place.clamp(0, z.shape[1] - 1)[:, None]).squeeze(1), self.target)
        top = torch.maximum(self.top, z.amax(dim=1))
        shift = self.top - top
        fade = shift.exp()
        z.sub_(top[:, None])
        e = z.exp()
        self.weighted = fade * (self.weighted + shift.clamp(min=FLOOR) * self.total) + e.mul(z.clamp_(min=FLOOR)).sum(
            dim=1
        )
        self.total = fade * self.total + e.sum(dim=1)
        self.top = top

    def finish(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probability of the targets, entropy, largest logit, log of the sum of exp(logit - largest)."""
        log_total = self.total.log()
        entropy = (log_total - self.weighted / self.total).clamp(min=0.0)
        return self.target - self.top - log_total, entropy, self.top, log_total
