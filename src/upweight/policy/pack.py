"""Prompts and answers laid out for one pass: each prompt once, its different answers behind it, no padding between.

Shapes: P different prompts of at most Lp tokens; A = P W places for answers of at most Lc fed tokens, W to a prompt; N
packed tokens, those of the prompts first; M scored tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from upweight.policy.attention import TreeAttention, attend_masked, prompt_mask, tree_mask
from upweight.policy.decoder import Attend
from upweight.policy.operand import Operand


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """One pass."""

    ids: Tensor
    """[N] int64: the prompts' tokens, then the answers' without their last ones, which are labels only."""

    positions: Tensor
    """[N] int64: places in the sequences."""

    prompt_tokens: int
    """How many of the N are the prompts'."""

    prompt_lengths: Tensor
    """[P] int64."""

    prompt_slots: Tensor
    """[prompt_tokens] int64: place of each in [P, Lp]."""

    answer_slots: Tensor
    """[N - prompt_tokens] int64: place of each in [A, Lc]."""

    answers: tuple[int, int]
    """A and Lc."""

    predicts: Tensor
    """[M] int64: for each token of the answers, in the order given, the packed token whose output predicts it."""

    targets: Tensor
    """[M] int64: those tokens."""


def pack(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> Pack:
    """Lay out B sequences; equal prompts become one, and so do equal answers to one prompt.

    A policy that has become sure of itself gives most of a group the same answer.

    Args:
        prompts: B prompts of at least one token.
        completions: B answers; an empty one is not scored.
    """
    number: dict[tuple[int, ...], int] = {}
    asked = [number.setdefault(tuple(prompt), len(number)) for prompt in prompts]
    different: dict[tuple[int, tuple[int, ...]], int] = {}
    place = np.array(
        [different.setdefault((p, tuple(c)), len(different)) for p, c in zip(asked, completions, strict=True)]
    )
    unique, answers = list(number), [answer for _, answer in different]
    of = np.array([p for p, _ in different])
    lengths = np.array([len(prompt) for prompt in unique])
    scored = np.array([len(completion) for completion in completions])
    fed = np.array([max(len(answer) - 1, 0) for answer in answers])
    seats = _seats(of)
    width, lp, lc = int(seats.max()) + 1, int(lengths.max()), max(1, int(fed.max()))
    total, starts = int(lengths.sum()), lengths.sum() + fed.cumsum() - fed
    # The first token of an answer is predicted by the prompt's last, the others by the answer's own.
    predicts = _runs(starts[place] - 1, scored)
    first = (scored.cumsum() - scored)[scored > 0]
    predicts[first] = (lengths.cumsum() - 1)[of[place][scored > 0]]
    ids = [token for prompt in unique for token in prompt]
    ids += [token for answer in answers for token in answer[:-1]]
    return Pack(
        ids=torch.tensor(ids, dtype=torch.long),
        positions=torch.from_numpy(np.concatenate([_runs(0 * lengths, lengths), _runs(lengths[of], fed)])),
        prompt_tokens=total,
        prompt_lengths=torch.from_numpy(lengths),
        prompt_slots=torch.from_numpy(_runs(np.arange(len(unique)) * lp, lengths)),
        answer_slots=torch.from_numpy(_runs((of * width + seats) * lc, fed)),
        answers=(len(unique) * width, lc),
        predicts=torch.from_numpy(predicts),
        targets=torch.tensor([token for completion in completions for token in completion], dtype=torch.long),
    )


def _seats(of: np.ndarray) -> np.ndarray:
    """How many before it have the same number, for each."""
    order = np.argsort(of, kind="stable")
    counts = np.bincount(of)
    seats = np.empty_like(of)
    seats[order] = _runs(0 * counts, counts)
    return seats


def _runs(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers start, start + 1, ... of each start, as many as its count, one after the other."""
    runs: np.ndarray = np.arange(counts.sum()) + np.repeat(starts - (counts.cumsum() - counts), counts)
    return runs


def ranges(starts: Sequence[int], counts: Sequence[int]) -> Tensor:
    """The numbers start, start + 1, ... of each start, as many as its count, one after the other.

    Example:
        >>> ranges([0, 7], [3, 2]).tolist()
        [0, 1, 2, 7, 8]
    """
    return torch.from_numpy(_runs(np.asarray(starts), np.asarray(counts)))


TOGETHER = 96
"""Places of a prompt and all of its answers up to which one masked softmax over them is faster than attention in parts:
measured, forward and backward, 2.7 times at 38 places and as fast at 104, on one CPU thread in float32."""


def attend_for(layout: Pack, dtype: torch.dtype, heads: int) -> Attend:
    """The `Attend` of a training pass, prompts causally, answers over their prompt and themselves: the faster way.

    In half precision always in parts: one softmax would round the scores before it.
    """
    whole = RowAttend.places(layout) <= TOGETHER and dtype.itemsize >= 4
    return RowAttend(layout, dtype, heads) if whole else TreeAttend(layout, dtype)


class RowAttend:
    """A prompt and all of its answers as one row under one mask: for short rows."""

    def __init__(self, layout: Pack, dtype: torch.dtype, heads: int) -> None:
        width, each = int(layout.prompt_lengths.max()), self.places(layout)
        behind = each - width
        of_prompts = layout.prompt_slots // width * each + layout.prompt_slots % width
        of_answers = layout.answer_slots // behind * each + width + layout.answer_slots % behind
        self.slots = torch.cat([of_prompts, of_answers])
        self.table = (len(layout.prompt_lengths), each)
        self.mask = tree_mask(layout.prompt_lengths, width, layout.answers[1], each, dtype, heads)

    @staticmethod
    def places(layout: Pack) -> int:
        """Of a row: the longest prompt's, and those of its answers."""
        answers, longest = layout.answers
        return int(layout.prompt_lengths.max()) + answers // len(layout.prompt_lengths) * longest

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Operand:
        """[N, heads, D] three times to [N, H D]."""
        q, k, v = (padded(tensor, self.slots, self.table) for tensor in (q, k, v))
        return Operand.of(unpadded(attend_masked(q, k, v, self.mask), self.slots))


class TreeAttend:
    """Attention in parts: prompts, answers over their prompt, answers over themselves."""

    def __init__(self, layout: Pack, dtype: torch.dtype) -> None:
        self.layout = layout
        self.width = int(layout.prompt_lengths.max())
        self.mask = prompt_mask(layout.prompt_lengths, self.width, dtype)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Operand:
        """[N, heads, D] three times to [N, H D]."""
        layout, n = self.layout, self.layout.prompt_tokens
        prompts, answers = (len(layout.prompt_lengths), self.width), layout.answers
        out_p, out_c = TreeAttention.apply(  # type: ignore[no-untyped-call]
            *(padded(tensor[:n], layout.prompt_slots, prompts) for tensor in (q, k, v)),
            *(padded(tensor[n:], layout.answer_slots, answers) for tensor in (q, k, v)),
            self.mask,
        )
        # The heads' own layout is kept by `TreeAttention`.
        return Operand(self._in_rows, (out_p, out_c))

    def _in_rows(self, out_p: Tensor, out_c: Tensor) -> Tensor:
        return torch.cat([unpadded(out_p, self.layout.prompt_slots), unpadded(out_c, self.layout.answer_slots)])


def padded(rows: Tensor, slots: Tensor, shape: tuple[int, int]) -> Tensor:
    """[n, heads, D] -> [B, heads, L, D], zero where nothing goes; a place takes one row at most."""
    table: Tensor = _Seated.apply(rows, slots, shape[0] * shape[1])  # type: ignore[no-untyped-call]
    return table.view(*shape, *rows.shape[1:]).transpose(1, 2)


def unpadded(table: Tensor, slots: Tensor) -> Tensor:
    """[B, H, L, D] -> [n, H D]: what is at these places, heads side by side."""
    rows: Tensor = _Taken.apply(table.transpose(1, 2).flatten(0, 1), slots)  # type: ignore[no-untyped-call]
    return rows.flatten(1)


class _Seated(torch.autograd.Function):
    """Rows to their places in a table of zeros. Autograd's own way makes the table twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, slots: Tensor, places: int) -> Tensor:
        ctx.save_for_backward(slots)
        return rows.new_zeros(places, *rows.shape[1:]).index_copy_(0, slots, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slots,) = ctx.saved_tensors
        return grad.index_select(0, slots), None, None


class _Taken(torch.autograd.Function):
    """The inverse. Autograd's own way adds to places one after the other, in case two are the same."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.places = len(table)
        return table.index_select(0, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slots,) = ctx.saved_tensors
        return grad.new_zeros(ctx.places, *grad.shape[1:]).index_copy_(0, slots, grad), None
