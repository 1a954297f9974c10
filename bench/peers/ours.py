"""Our side: the same settings through `translate`, on the same tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from peers.cases import MAX_NEW_TOKENS
from upweight import group_advantages, grpo_loss, token_weights
from upweight.objective.dialects import Translation, translate
from upweight.objective.spec import Objective


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A loss, its gradient per answer, and the advantages behind it."""

    loss: float
    gradient: list[list[float]]
    advantages: list[float]


def padded(rows: list[list[float]]) -> Tensor:
    """[B, T] float64; NaN behind the end, which must change nothing."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [float("nan")] * (width - len(row)) for row in rows], dtype=torch.float64)


def advantages_of(objective: Objective, batch: dict, group_size: int, rows: Tensor) -> Tensor:
    """[B] advantages of the answers; `rows` says which of them count."""
    rewards = [float("nan") if reward is None else reward for reward in batch["rewards"]]
    rewards = torch.tensor(rewards, dtype=torch.float64)
    if objective.kl_coef > 0 and objective.kl_place == "reward":
        kl = (padded(batch["old"]) - padded(batch["ref"])).nansum(1)
        rewards = rewards - objective.kl_coef * kl
    advantages = group_advantages(
        rewards,
        group_size=group_size,
        scale=objective.adv_norm,
        baseline=objective.baseline,
        ddof=objective.adv_ddof,
        eps=objective.adv_eps,
    )
    return torch.where(rows, advantages, 0.0)


def ours(
    trainer: str, settings: dict, batch: dict, group_size: int, micro_batches: int = 1, minibatches: int = 1
) -> tuple[Outcome, Translation]:
    """Loss and gradient of the whole batch, summed over its micro-batches, and over its optimiser steps where more."""
    translation = translate(trainer, settings, max_new_tokens=MAX_NEW_TOKENS)
    o = translation.objective
    live = padded(batch["logprobs"]).requires_grad_()
    rows = torch.tensor([reward is not None for reward in batch["rewards"]])
    advantages = advantages_of(o, batch, group_size, rows)
    if o.truncated == "mask":
        rows = rows & ~torch.tensor(batch["truncated"])
    mask = ~live.isnan() & rows[:, None]
    old, ref, sampler = padded(batch["old"]), padded(batch["ref"]), padded(batch["sampler"])
    if o.old_logprobs == "sampler":
        old = sampler
    groups = torch.arange(len(mask)) // group_size
    weights = torch.cat(
        [
            token_weights(step.double(), o.loss_agg, max_length=MAX_NEW_TOKENS, group_ids=ids)
            for step, ids in zip(mask.chunk(minibatches), groups.chunk(minibatches), strict=True)
        ]
    )
    total, size = torch.zeros((), dtype=torch.float64), len(mask) // micro_batches
    for start in range(0, len(mask), size):
        part = slice(start, start + size)
        loss, _ = grpo_loss(
            live[part],
            old[part],
            advantages[part],
            mask[part],
            clip=o.clip,
            clip_high=o.clip_high,
            ratio_level=o.ratio_level,
            surrogate=o.surrogate,
            dual_clip=o.dual_clip,
            loss_agg=o.loss_agg,
            max_length=MAX_NEW_TOKENS,
            group_ids=groups[part],
            # Uncut, grpo_loss makes them itself, so that masked_tokens is heard.
            weights=None if len(mask) == size else weights[part],
            kl_coef=o.kl_coef if o.kl_place == "loss" else 0.0,
            ref_logprobs=ref[part],
            kl_estimator=o.kl_estimator,
            kl_grad=o.kl_grad,
            sampler_logprobs=sampler[part],
            correction=o.correction,
            correction_level=o.correction_level,
            correction_cap=o.correction_cap,
            masked_tokens=o.masked_tokens,
        )
        loss.backward()
        total += loss.detach()
    assert live.grad is not None
    gradient = [row[: len(given)] for row, given in zip(live.grad.tolist(), batch["logprobs"], strict=True)]
    return Outcome(loss=float(total), gradient=gradient, advantages=advantages.tolist()), translation
