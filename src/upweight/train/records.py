"""What travels inside `train/`: groups of judged answers, the batch laid flat, the report of a step.

Shape suffixes: B answers of a batch; N trainable tokens of the answers that are trained on, answer after answer.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from torch import Tensor

from upweight.objective.metrics import Sums
from upweight.rewards.score import Score
from upweight.rollout.completion import Completion
from upweight.tasks.prompt import Draw


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """All answers to one draw of a prompt, judged."""

    draw: Draw
    """Which row, and which draw of it: the group's identity."""

    prompt_ids: tuple[int, ...]
    """The prompt as it was sampled from."""

    completions: tuple[Completion, ...]
    """G answers, token by token."""

    texts: tuple[str, ...]
    """The same answers as text, for judging and for reading; never tokenised again."""

    scores: tuple[Score, ...]
    """G verdicts: the task reward, before any shaping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What a `GroupSource` hands out for one step."""

    groups: tuple[Group, ...]
    """To train on."""

    discarded: tuple[Group, ...] = ()
    """Sampled on the way and left out, because they carry no signal."""

    held: tuple[Group, ...] = ()
    """Sampled on the way and kept by the source for the next step, as this one does not train."""

    carried: int = 0
    """How many of `groups`, the first ones, an earlier step sampled and held."""

    missing: int = 0
    """Informative groups that dynamic sampling lacked when its budget was used up."""

    rounds: int = 1
    """How often the engine was asked."""

    @property
    def fresh(self) -> tuple[Group, ...]:
        """Everything sampled in this step, whatever becomes of it."""
        return self.groups[self.carried :] + self.discarded + self.held


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One step's answers with all that the loss needs, made before any update."""

    groups: tuple[Group, ...]
    """P groups; answer b is the b-th over all of them in order."""

    group_of: Tensor
    """[B] int64: group of each answer."""

    task_rewards: Tensor
    """[B] float64: verdicts, NaN = not scored."""

    trained: Tensor
    """[B] bool: the answer's tokens enter the loss and its denominators."""

    seq_id: Tensor
    """[N] int64: answer of each trainable token; ascending."""

    sampler_logprobs: Tensor
    """[N] under the sampler, NaN = not scored."""

    old_logprobs: Tensor | None = None
    """[N] under the policy before the step's first update; None = the first pass's own, detached."""

    ref_logprobs: Tensor | None = None
    """[N] under the reference policy; None = no KL."""

    rewards: Tensor | None = None
    """[B] float64: task rewards after shaping."""

    advantages: Tensor | None = None
    """[N] advantage of each trainable token."""

    @property
    def completions(self) -> list[Completion]:
        """[B] the answers."""
        return [completion for group in self.groups for completion in group.completions]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """[B] the prompt of each answer."""
        return [group.prompt_ids for group in self.groups for _ in group.completions]


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Answers that go through the model together."""

    answers: tuple[int, ...]
    """Indices into the batch's answers. An answer is never split."""

    tokens: np.ndarray
    """[n] int64: their trainable tokens, as indices into the batch's N, in the same order."""

    counts: bool = True
    """False of a pass with weight 0, made because another rank has one more: sharded layers need all ranks at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One optimiser step: weights fixed over all its tokens, and the passes they are cut into."""

    weights: Tensor
    """[N] float64: w_t; 0 for tokens of other updates."""

    micro_batches: tuple[MicroBatch, ...]
    """This rank's passes, as many as every other rank's; answers whose every coefficient is 0 are in none."""


class Verdict(StrEnum):
    """What becomes of an update."""

    STEP = "step"
    """The optimiser steps."""

    NOTHING = "nothing to train"
    """No gradient at all: neither old momentum nor weight decay moves the weights."""

    NOT_FINITE = "not finite"
    """The optimiser is left alone, and a `Fault` says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassResult:
    """What one pass adds to its update; ranks hand it to each other."""

    loss: float
    """Its part of the loss."""

    metrics: Sums
    """(sum, count) pairs over its tokens."""

    ratios: Tensor
    """[n] importance ratios of its tokens."""

    gaps: Tensor
    """[n] |log pi_old - log mu| of its tokens, nats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateResult:
    """What one optimiser step came to."""

    loss: float
    """The loss, the sum over its passes."""

    grad_norm: float
    """Norm of the gradient before clipping."""

    verdict: Verdict
    """Whether the optimiser stepped, and why not."""

    metrics: Sums
    """(sum, count) pairs over the passes of all ranks."""

    ratios: Tensor
    """[n] importance ratios of its tokens."""

    gaps: Tensor
    """[n] |log pi_old - log mu| of its tokens, nats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """One row of metrics.jsonl. docs/glossary.md has each field's formula, unit and what bad looks like.

    What is measured where tokens go through the model for the loss is None in a step in which none did.
    """

    step: int
    """Counts from 1."""

    reward: float | None
    """Mean task reward over all scored answers sampled in the step; None = none was scored."""

    informative: float
    """Share of the sampled groups whose scored answers differ in reward."""

    resp_len: float
    """Mean length of the sampled answers, in trainable tokens."""

    clipfrac: float | None
    """Share of kept tokens (answers under a sequence ratio) on the flat side of the clip."""

    clipfrac_low: float | None
    """The part of clipfrac at the lower bound."""

    clipfrac_high: float | None
    """The part of clipfrac at the upper bound."""

    kl: float | None
    """Mean KL estimate to the reference per token, nats; None without a reference."""

    entropy: float | None
    """Mean entropy of the policy at the trained tokens, nats."""

    sampled_nll: float | None
    """Mean of -log-prob of the trained tokens, nats; not the entropy."""

    grad_norm: float
    """Mean over the step's updates of the gradient's norm before clipping."""

    loss: float
    """Mean over the step's updates of the loss."""

    lr: float
    """Learning rate of the step."""

    tokens: int
    """Tokens sampled in the step."""

    seconds: float
    """Wall time of the step."""

    reward_shaped: float | None
    """Mean reward after the overlong penalty and the KL, over the batch."""

    truncated: float
    """Share of the sampled answers that used up their budget."""

    unscored: int
    """Sampled answers without a score."""

    reward_errors: float
    """Share of the sampled answers that a reward function raised or timed out on."""

    trained_tokens: int
    """Tokens in the loss's denominators, over one pass of the batch."""

    filtered_groups: int
    """Groups none of whose answers is trained on, and those that dynamic sampling discarded."""

    rounds: int
    """How often the engine was asked for the step."""

    sampled_groups: int
    """Groups sampled in the step, whatever became of them."""

    missing_groups: int
    """Informative groups that dynamic sampling lacked when its budget was used up."""

    updates: int
    """Optimiser steps taken."""

    skipped_updates: int
    """Optimiser steps left out: nothing to train, or something not finite."""

    nonfinite_steps: int
    """Those of them left out because something was not finite."""

    ratio_mean: float | None
    """Mean importance ratio."""

    ratio_p99: float | None
    """Its 99th percentile."""

    ratio_max: float | None
    """Its maximum."""

    ess: float | None
    """Effective sample size of the importance weights c rho, as a share of the tokens."""

    rejected: float | None
    """Share of tokens dropped by mis."""

    mismatch: float | None
    """Mean |log pi_old - log mu|, trainer against sampler, nats."""

    mismatch_p99: float | None
    """Its 99th percentile."""

    mismatch_max: float | None
    """Its maximum."""

    sample_seconds: float
    """Wall time of sampling and judging."""

    tokens_per_second: float
    """Sampled tokens over the step's wall time."""
