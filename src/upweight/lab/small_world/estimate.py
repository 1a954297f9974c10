"""What an estimator gives: its expectation over all answers, its noise, and what sampled steps gave.

Everything goes through `policy_loss`. An expectation is one call of it, in which an answer's weight is its
probability; the gradient is that of the table of logits.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from upweight.lab.small_world.world import World
from upweight.objective.loss import policy_loss
from upweight.objective.spec import Objective

PLAIN = Objective(surrogate="none", kl_coef=0.0)
"""The policy gradient without clipping, KL or correction."""

Z95 = 1.959963984540054
"""Standard errors on either side that hold 95% of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean of independent draws, with its 95% confidence interval."""

    mean: float
    """The estimate."""

    half: float
    """Half the width of the interval."""

    std: float
    """Of one draw."""

    def holds(self, value: float) -> bool:
        """Whether the interval contains a value; a hair of rounding is allowed for."""
        return abs(self.mean - value) <= self.half + 1e-9 * (1 + abs(value))


def interval(draws: Tensor) -> Interval:
    """Mean and 95% interval of [n] independent draws (normal approximation).

    Example:
        >>> round(interval(torch.tensor([0.0, 2.0, 4.0])).half, 3)
        2.263
    """
    std = draws.std().item()
    return Interval(mean=draws.mean().item(), half=Z95 * std / math.sqrt(draws.numel()), std=std)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the answers come from, and what the loss is told about them."""

    probabilities: Tensor
    """[P, A] of the policy that the answers are sampled from."""

    advantages: Tensor
    """[P, A]."""

    old: Tensor | None = None
    """[N] old log-probs of the flat tokens; None = the current policy's."""

    sampler: Tensor | None = None
    """[N] the sampler's log-probs."""

    ref: Tensor | None = None
    """[N] the reference's log-probs."""


def expected_gradient(world: World, objective: Objective, source: Source, logits: Tensor | None = None) -> Tensor:
    """[P, S, V] gradient that is followed, -grad L, in expectation over one answer to each prompt.

    Args:
        world: the world.
        objective: the loss; an answer counts by the sum over its tokens, so that nothing but the objective can
            make the expectation differ from the truth.
        source: who sampled, and the advantages.
        logits: [P, S, V] the current policy; the world's where None.
    """
    table = (world.logits if logits is None else logits).clone().requires_grad_()
    weights = (source.probabilities / world.prompts).flatten()[world.seq_id]
    loss = _loss(world, objective, source, world.logprobs(table), weights)
    (gradient,) = torch.autograd.grad(loss, table)
    return -gradient


def answer_gradients(world: World, objective: Objective, source: Source, logits: Tensor | None = None) -> Tensor:
    """[P, A, S, V] gradient that each single answer gives, with weight 1.

    The loss is differentiated by each token's log-probability, which is chained with the Jacobian of the log-softmax:
    the same as one backward pass per answer.

    Args:
        world, objective, source, logits: see `expected_gradient`.
    """
    table = world.logits if logits is None else logits
    logprobs = world.logprobs(table).detach().requires_grad_()
    loss = _loss(world, objective, source, logprobs, torch.ones_like(logprobs))
    (per_token,) = torch.autograd.grad(loss, logprobs)
    prompts, answers = world.outcomes
    size = table[0].numel()
    by_slot = torch.zeros(prompts * answers, size, dtype=torch.float64)
    by_slot = by_slot.index_put((world.seq_id, world.slot % size), -per_token, accumulate=True)
    by_slot = by_slot.view(prompts, answers, *table.shape[1:])
    return torch.einsum("pasv,psvw->pasw", by_slot, _jacobian(table))


def _jacobian(table: Tensor) -> Tensor:
    """[P, S, V, V] derivative of each log-probability by the logits of its prefix."""
    of_row = torch.func.jacrev(lambda row: row.log_softmax(-1))
    jacobian: Tensor = torch.func.vmap(torch.func.vmap(of_row))(table)
    return jacobian


def _loss(world: World, objective: Objective, source: Source, logprobs: Tensor, weights: Tensor) -> Tensor:
    return policy_loss(
        objective,
        logprobs=logprobs,
        old_logprobs=source.old,
        advantages=source.advantages.flatten()[world.seq_id],
        weights=weights,
        seq_id=world.seq_id,
        ref_logprobs=source.ref,
        sampler_logprobs=source.sampler,
    ).loss


def noise(gradients: Tensor, probabilities: Tensor) -> float:
    """Std of the estimate from one answer per prompt, by enumeration: sqrt of the summed variances of its entries.

    n answers per prompt have 1/sqrt(n) of it.

    Args:
        gradients: [P, A, S, V] of each answer.
        probabilities: [P, A] of each answer under the policy that samples.
    """
    square = (probabilities * gradients.square().sum((2, 3))).sum(1)
    mean = torch.einsum("pa,pasv->psv", probabilities, gradients).square().sum((1, 2))
    return (square - mean).clamp(min=0).sum().sqrt().item() / len(probabilities)


def angle(one: Tensor, other: Tensor) -> float:
    """Degrees between two gradients."""
    one, other = one / one.norm(), other / other.norm()
    # Not by arccos, which turns a rounding error of 1e-16 into an angle of 1e-8.
    return math.degrees(2 * math.atan2((one - other).norm().item(), (one + other).norm().item()))


def distance(estimate: Tensor, truth: Tensor) -> float:
    """Length of the difference, as a share of the length of the truth."""
    return float((estimate - truth).norm() / truth.norm())


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Sampled optimiser steps: groups of answers to every prompt, laid flat."""

    reward: Tensor
    """[M, P, G] reward of each answer."""

    seq_id: Tensor
    """[N] answer of each token, counted over all steps."""

    slot: Tensor
    """[N] place of each token in the flattened table of logits."""

    @property
    def step(self) -> Tensor:
        """[N] step of each token."""
        return self.seq_id // self.reward[0].numel()

    @property
    def group(self) -> Tensor:
        """[N] group of each token, counted over all steps."""
        return self.seq_id // self.reward.shape[2]


def sample_steps(world: World, steps: int, group_size: int, generator: torch.Generator) -> Steps:
    """Sample groups of answers to every prompt from the policy.

    Args:
        world: the world.
        steps: M.
        group_size: G.
        generator: where they are drawn from.
    """
    answers = world.answers
    drawn = torch.multinomial(world.probabilities(), steps * group_size, replacement=True, generator=generator)
    chosen = drawn.view(world.prompts, steps, group_size).transpose(0, 1)  # [M, P, G]
    flat = chosen.flatten()
    prompt = torch.arange(world.prompts)[None, :, None].expand_as(chosen).flatten()
    within = answers.prefix * answers.vocabulary + answers.token
    slots = (prompt * (answers.prefixes * answers.vocabulary))[:, None] + within[flat]
    seq_id = torch.arange(flat.numel()).repeat_interleave(answers.length[flat])
    return Steps(reward=answers.reward[chosen], seq_id=seq_id, slot=slots[answers.mask[flat]])


def along(world: World, steps: Steps, advantages: Tensor, weights: Tensor, direction: Tensor) -> Tensor:
    """[M, P] component of each step's gradient, prompt by prompt, along a direction in the space of the logits.

    Args:
        world: the world.
        steps: what was sampled.
        advantages: [M, P, G] of each answer.
        weights: [N] of each token.
        direction: [P, S, V].
    """
    logprobs = world.logits.log_softmax(-1).flatten()[steps.slot].requires_grad_()
    terms = policy_loss(
        PLAIN, logprobs=logprobs, old_logprobs=None, advantages=advantages.flatten()[steps.seq_id],
        weights=weights, seq_id=steps.seq_id,
    )  # fmt: skip
    (per_token,) = torch.autograd.grad(terms.loss, logprobs)
    slope = torch.einsum("psvw,psw->psv", _jacobian(world.logits), direction).flatten()
    moments = torch.zeros(steps.reward[..., 0].numel(), dtype=torch.float64)
    return moments.index_add(0, steps.group, -per_token * slope[steps.slot]).view(steps.reward.shape[:2])
