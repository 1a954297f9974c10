"""The updates and passes of a step, and the weights that make the cut invisible."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from upweight.objective.correction import rejected_tokens
from upweight.objective.spec import Objective
from upweight.objective.weights import flat_token_weights
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Batch, MicroBatch, Update


def plan_updates(
    batch: Batch,
    objective: Objective,
    *,
    minibatches: int,
    epochs: int,
    micro_batch_tokens: int,
    max_new_tokens: int,
    shared: bool = False,
    ranks: Ranks = ALONE,
) -> list[Update]:
    """Split a batch by prompt into `minibatches` optimiser steps, `epochs` times over.

    Each update's weights are made over all of its trainable tokens, before any pass. The split is as even as it can
    be; with fewer groups than minibatches there are as many updates as groups. An update without a trainable token
    keeps its place, with no pass.

    Args:
        batch: with advantages (and old log-probs, where `masked_tokens="valid"` needs them).
        objective: gives the weights.
        minibatches: M >= 1.
        epochs: K >= 1.
        micro_batch_tokens: tokens of one pass; see `cut`.
        max_new_tokens: the generation budget, the constant of `seq-mean-token-sum-norm`.
        shared: whether a pass encodes a prompt once for all of its answers.
        ranks: who shares the passes. The weights are those of the whole batch on every rank.
    """
    kept = _kept(batch, objective)
    parts = np.array_split(np.arange(len(batch.groups)), min(minibatches, max(1, len(batch.groups))))
    updates = []
    for part in parts:
        inside = torch.isin(batch.group_of[batch.seq_id], torch.as_tensor(part))
        weights = torch.zeros(batch.seq_id.numel(), dtype=torch.float64)
        weights[inside] = flat_token_weights(
            batch.seq_id[inside],
            objective.loss_agg,
            max_length=max_new_tokens,
            group_id=batch.group_of[batch.seq_id[inside]],
            keep=None if kept is None else kept[inside],
        )
        answers = _answers_to_pass(batch, objective, inside)
        passes = passes_of(batch, answers, micro_batch_tokens, shared=shared, ranks=ranks)
        updates.append(Update(weights=weights, micro_batches=tuple(passes)))
    return updates * epochs


def passes_of(
    batch: Batch, answers: Sequence[int], micro_batch_tokens: int, *, shared: bool = False, ranks: Ranks = ALONE
) -> list[MicroBatch]:
    """This rank's passes over its share of the answers: about as many tokens as any other's, and as many passes.

    The answers are laid in a row, those that go together side by side, and the row is cut into one stretch a rank.
    A rank with fewer passes than another makes up for it with passes that do not count, over the shortest answer.

    Args:
        batch: whose answers they are.
        answers: of all ranks, as indices into the batch's.
        micro_batch_tokens: tokens of one pass; see `cut`.
        shared: see `cut`.
        ranks: who shares the answers.
    """
    if not answers:
        return []
    cuts = [cut(batch, share, micro_batch_tokens, shared=shared) for share in _stretches(batch, answers, shared, ranks)]
    missing = max(map(len, cuts)) - len(cuts[ranks.rank])
    if not missing:
        return cuts[ranks.rank]
    prompts, completions = batch.prompts, batch.completions
    shortest = min(answers, key=lambda b: (len(prompts[b]) + len(completions[b].token_ids), b))
    [spare] = cut(batch, [shortest], micro_batch_tokens)
    return cuts[ranks.rank] + [dataclasses.replace(spare, counts=False)] * missing


def _stretches(batch: Batch, answers: Sequence[int], shared: bool, ranks: Ranks) -> list[list[int]]:
    """The answers of each rank."""
    if ranks.world == 1:
        return [list(answers)]
    prompts, completions = batch.prompts, batch.completions
    sizes = {b: len(completions[b].token_ids) + (0 if shared else len(prompts[b])) for b in answers}
    row = sorted(answers, key=lambda b: (int(batch.group_of[b]) if shared else 0, -sizes[b], b))
    ends = np.cumsum([sizes[b] for b in row])
    # An answer belongs to the rank that its middle falls to.
    middles = (ends - np.array([sizes[b] for b in row]) / 2) / max(1, ends[-1])
    owners = np.minimum((middles * ranks.world).astype(int), ranks.world - 1)
    return [[b for b, owner in zip(row, owners, strict=True) if owner == rank] for rank in range(ranks.world)]


def cut(batch: Batch, answers: Sequence[int], micro_batch_tokens: int, *, shared: bool = False) -> list[MicroBatch]:
    """Pack answers into passes of at most `micro_batch_tokens` tokens; never splits one.

    Args:
        batch: whose answers they are.
        answers: indices into the batch's.
        micro_batch_tokens: of one pass; an answer above it gets a pass of its own.
        shared: count a prompt once for all of its answers in a pass, and no padding. Groups that fit stay whole; in the
            order of their prompts' lengths the passes are as few as can be, and the largest as small. Else every answer
            counts as long as the longest of its pass, padding included, and answers of like length go together.
    """
    prompts, completions = batch.prompts, batch.completions
    shapes = {b: (len(prompts[b]), len(completions[b].token_ids)) for b in answers}
    packs = _shared(batch, shapes, micro_batch_tokens) if shared else _padded(shapes, micro_batch_tokens)
    spans = _spans(batch)
    return [MicroBatch(answers=tuple(pack), tokens=np.concatenate([spans[b] for b in pack])) for pack in packs]


def _padded(shapes: Mapping[int, tuple[int, int]], room: int) -> list[list[int]]:
    packs: list[list[int]] = []
    widest = (0, 0)
    for b in sorted(shapes, key=lambda b: (-sum(shapes[b]), b)):
        grown = (max(widest[0], shapes[b][0]), max(widest[1], shapes[b][1]))
        if packs and sum(grown) * (len(packs[-1]) + 1) <= room:
            packs[-1].append(b)
            widest = grown
        else:
            packs.append([b])
            widest = shapes[b]
    return packs


def _shared(batch: Batch, shapes: Mapping[int, tuple[int, int]], room: int) -> list[list[int]]:
    """Whole groups together where they fit, for a group in two passes has its prompt encoded twice.

    In the order of the prompts' lengths, so that those of a pass are alike.
    """
    groups: dict[int, list[int]] = {}
    for b in sorted(shapes, key=lambda b: (-shapes[b][1], b)):
        groups.setdefault(int(batch.group_of[b]), []).append(b)
    parts: list[list[int]] = []
    sizes: list[int] = []
    for members in sorted(groups.values(), key=lambda members: (-shapes[members[0]][0], members[0])):
        prompt, answers = shapes[members[0]][0], [shapes[b][1] for b in members]
        for inside in in_a_row(answers, room - prompt):
            parts.append(members[inside])
            sizes.append(prompt + sum(answers[inside]))
    return [[b for part in parts[inside] for b in part] for inside in in_a_row(sizes, room)]


def in_a_row(sizes: Sequence[int], room: int) -> list[slice]:
    """Cut a row into stretches of at most `room` each: as few as can be, and the largest as small.

    Args:
        sizes: of what is in the row, each above 0; an empty row has no stretch.
        room: what is larger is a stretch of its own.
    """
    if not sizes:
        return []

    def stretches(bound: int) -> list[slice]:
        starts, used = [0], 0
        for place, size in enumerate(sizes):
            if used and used + size > bound:
                starts.append(place)
                used = 0
            used += size
        return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(sizes)], strict=True)]

    fewest = len(stretches(room))
    bounds = range(min(room, max(sizes)), room + 1)
    return stretches(bounds[bisect.bisect_left(bounds, True, key=lambda bound: len(stretches(bound)) <= fewest)])


def _spans(batch: Batch) -> dict[int, np.ndarray]:
    """Answer -> indices of its trainable tokens in [N]."""
    answers, starts, counts = np.unique(batch.seq_id.numpy(), return_index=True, return_counts=True)
    return {int(b): np.arange(s, s + c) for b, s, c in zip(answers, starts, counts, strict=True)}


def _kept(batch: Batch, objective: Objective) -> Tensor | None:
    """[N] tokens that stay in the denominator when mis renormalises over the kept ones; None = all."""
    if objective.correction != "mis" or objective.masked_tokens != "valid":
        return None
    if batch.old_logprobs is None:
        raise AssertionError("masked_tokens='valid' needs the old log-probs before the weights")
    return ~rejected_tokens(objective, batch.old_logprobs.cpu(), batch.sampler_logprobs, batch.seq_id)


def _answers_to_pass(batch: Batch, objective: Objective, inside: Tensor) -> list[int]:
    """Answers of an update with some coefficient that is not 0: an advantage, or a KL in the loss."""
    needed = inside
    if not (objective.needs_reference and objective.kl_place == "loss"):
        if batch.advantages is None:
            raise AssertionError("updates are planned after the advantages")
        needed = inside & (batch.advantages != 0)
    return [int(b) for b in torch.unique(batch.seq_id[needed])]
