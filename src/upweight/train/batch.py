"""From judged groups to a flat batch: who is trained on, which rewards count, which advantage each token gets."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from upweight.objective.advantage import group_advantages, informative_groups
from upweight.objective.shaping import kl_in_reward, overlong_penalty
from upweight.objective.spec import Objective
from upweight.rollout.completion import Completion, FinishReason
from upweight.train.records import Batch, Group


def make_batch(groups: Sequence[Group], objective: Objective) -> Batch:
    """Lay the groups flat and decide which answers enter the loss.

    Left out, and out of every denominator: answers without a score; with `filter_groups`, all of a group whose
    task rewards show no spread; with `truncated="mask"`, answers that used up their budget.
    """
    completions = [completion for group in groups for completion in group.completions]
    group_of = torch.tensor([g for g, group in enumerate(groups) for _ in group.completions], dtype=torch.long)
    rewards = torch.tensor([score.value for group in groups for score in group.scores], dtype=torch.float64)
    trained = ~rewards.isnan()
    if objective.filter_groups:
        trained &= informative_groups(rewards, group_of)
    if objective.truncated == "mask":
        trained &= ~_truncated(completions)
    chosen = [(b, completion) for b, completion in enumerate(completions) if trained[b]]
    seq_id = [b for b, completion in chosen for ours in completion.loss_mask if ours]
    sampler = [
        logprob
        for _, completion in chosen
        for logprob, ours in zip(completion.logprobs, completion.loss_mask, strict=True)
        if ours
    ]
    return Batch(
        groups=tuple(groups),
        group_of=group_of,
        task_rewards=rewards,
        trained=trained,
        seq_id=torch.tensor(seq_id, dtype=torch.long),
        sampler_logprobs=torch.tensor(sampler, dtype=torch.float32),
    )


def with_advantages(batch: Batch, objective: Objective, max_new_tokens: int) -> Batch:
    """Shape the rewards, then the advantage of each trainable token.

    Statistics are over all scored answers of the batch's groups, shaped; `adv_norm="batch"` takes the std over all of
    them, filtered groups included.

    The overlong penalty comes first, then the KL in the reward; filtering has looked at the task rewards before.
    An answer that is masked for its length gets neither, and its task reward still counts in its group's statistics.
    """
    rewards = batch.task_rewards
    if objective.overlong_buffer:
        lengths = torch.tensor([sum(completion.loss_mask) for completion in batch.completions], dtype=torch.long)
        penalty = overlong_penalty(lengths, max_new_tokens, objective.overlong_buffer).double()
        if objective.truncated == "mask":
            penalty[_truncated(batch.completions)] = 0.0
        rewards = rewards + penalty
    if objective.needs_reference and objective.kl_place == "reward":
        if batch.old_logprobs is None or batch.ref_logprobs is None:
            raise AssertionError("a KL in the reward needs old and reference log-probs before the advantages")
        kl = kl_in_reward(batch.old_logprobs.cpu(), batch.ref_logprobs.cpu(), batch.seq_id, rewards.numel())
        rewards = rewards - objective.kl_coef * kl.double()
    advantages = group_advantages(
        rewards,
        batch.group_of,
        scale=objective.adv_norm,
        baseline=objective.baseline,
        ddof=objective.adv_ddof,
        eps=objective.adv_eps,
    )
    return dataclasses.replace(batch, rewards=rewards, advantages=advantages[batch.seq_id].float())


def _truncated(completions: Sequence[Completion]) -> Tensor:
    # The dtype is given because a step may have no answers at all.
    return torch.tensor([c.finish_reason is FinishReason.LENGTH for c in completions], dtype=torch.bool)
