"""One training step, top to bottom."""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from upweight.objective.loss import policy_loss
from upweight.objective.metrics import Sums, add_sums
from upweight.policy.logprob import TokenScores
from upweight.policy.policy import Policy
from upweight.train.args import TrainArgs
from upweight.train.batch import make_batch, with_advantages
from upweight.train.guards import Guard, broken_inputs, find_fault, judge
from upweight.train.optimizer import MasterAdamW, learning_rate
from upweight.train.passes import passes_of, plan_updates
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Batch, MicroBatch, PassResult, StepReport, Update, UpdateResult, Verdict
from upweight.train.report import make_report
from upweight.train.resolve import known
from upweight.train.shard import gather_weights
from upweight.train.source import GroupSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """What a step works on."""

    policy: Policy
    """The model that is trained."""

    reference: Policy | None
    """The frozen policy that the KL is taken to; None without a KL."""

    optimizer: MasterAdamW
    """Of the policy's parameters."""

    source: GroupSource
    """Where groups come from."""

    args: TrainArgs
    """The run's configuration, resolved."""

    ranks: Ranks = ALONE
    """The processes that share a step."""

    whole: Policy | None = None
    """Where `policy` is sharded, the copy of all its weights that samples; brought up to date after each step."""

    guard: Guard = field(default_factory=Guard)
    """What was not finite."""


def training_step(learner: Learner, step: int) -> tuple[StepReport, Batch]:
    """Sample, score, advantage, weights, loss, guard, step: the whole of it.

    Args:
        learner: the policy is changed in place.
        step: counts from 1.

    Returns:
        The report, and the batch that was trained on.
    """
    args, objective = learner.args, learner.args.objective
    max_new_tokens = known(args.max_new_tokens)
    started = time.perf_counter()
    learner.guard.start()
    learner.optimizer.zero_grad()  # their memory is the sampler's meanwhile

    learner.ranks.at(f"in step {step} (sampling)")
    sampled = learner.source.next_groups(args.prompts_per_step)
    sample_seconds = time.perf_counter() - started

    learner.ranks.at(f"in step {step} (training)")
    batch = make_batch(sampled.groups, objective)
    batch = _with_logprobs(batch, learner)
    batch = with_advantages(batch, objective, max_new_tokens)
    updates = plan_updates(
        batch,
        objective,
        minibatches=args.minibatches,
        epochs=args.epochs_per_batch,
        micro_batch_tokens=args.micro_batch_tokens,
        max_new_tokens=max_new_tokens,
        shared=learner.policy.shares_prompts,
        ranks=learner.ranks,
    )
    lr = learning_rate(step, args)
    results = [take_update(learner, batch, update, lr) for update in updates]
    if learner.whole is not None:
        gather_weights(learner.policy, learner.whole)
    report = make_report(
        step=step,
        sampled=sampled,
        batch=batch,
        results=results,
        denominator=sum(int((update.weights > 0).sum()) for update in updates[: len(updates) // args.epochs_per_batch]),
        lr=lr,
        has_reference=learner.reference is not None,
        seconds=time.perf_counter() - started,
        sample_seconds=sample_seconds,
    )
    return report, batch


def take_update(learner: Learner, batch: Batch, update: Update, lr: float) -> UpdateResult:
    """Forward and backward over the update's passes, then one optimiser step, if all is finite and anything trains."""
    policy, optimizer = learner.policy, learner.optimizer
    optimizer.zero_grad()
    passes: list[PassResult] = []
    for micro in update.micro_batches:
        part, result = run_pass(learner, batch, update, micro)
        optimizer.backward(part)
        if micro.counts:
            passes.append(result)
    optimizer.add_up()
    passes = [result for results in learner.ranks.gather(passes) for result in results]
    loss = sum((result.loss for result in passes), 0.0)
    metrics: Sums = {}
    for result in passes:
        metrics = add_sums(metrics, result.metrics)
    grad_norm = optimizer.grad_norm()
    nll, _ = metrics.get("sampled_nll", (0.0, 0.0))  # one sum for all of the pass's log-probabilities
    finite = math.isfinite(loss) and math.isfinite(nll) and not broken_inputs(batch, update)
    verdict = judge(finite=finite, grad_norm=grad_norm, ranks=learner.ranks)
    if verdict is Verdict.NOT_FINITE:
        learner.guard.faults.append(
            find_fault(policy, optimizer, batch, update, loss=loss, grad_norm=grad_norm, ranks=learner.ranks)
        )
    if verdict is Verdict.STEP:
        limit = learner.args.max_grad_norm
        # First: where the optimiser fails midway, the weights are those of this version no longer.
        policy.version += 1
        optimizer.step(lr, scale=limit / grad_norm if 0 < limit < grad_norm else 1.0)
    return UpdateResult(
        loss=loss,
        grad_norm=grad_norm,
        verdict=verdict,
        metrics=metrics,
        ratios=torch.cat([result.ratios for result in passes]) if passes else torch.empty(0),
        gaps=torch.cat([result.gaps for result in passes]) if passes else torch.empty(0),
    )


def run_pass(learner: Learner, batch: Batch, update: Update, micro: MicroBatch) -> tuple[Tensor, PassResult]:
    """One pass forward: its part of the loss, with a graph, and what it adds to the report."""
    policy = learner.policy
    scores = score_answers(policy, batch, micro.answers, learner.args.temperature)
    if not micro.counts:
        return 0.0 * scores.logprobs.sum(), PassResult(loss=0.0, metrics={}, ratios=torch.empty(0), gaps=torch.empty(0))
    terms = policy_loss(
        learner.args.objective,
        logprobs=scores.logprobs,
        old_logprobs=_at(batch.old_logprobs, micro, policy),
        advantages=_required(_at(batch.advantages, micro, policy)),
        weights=_required(_at(update.weights, micro, policy)),
        seq_id=_required(_at(batch.seq_id, micro, policy)),
        ref_logprobs=_at(batch.ref_logprobs, micro, policy),
        sampler_logprobs=_at(batch.sampler_logprobs, micro, policy),
    )
    result = PassResult(
        loss=float(terms.loss.detach()),
        metrics={**terms.metrics, **_entropy_sums(scores)},
        ratios=terms.ratio.cpu(),
        gaps=_required(terms.gap).cpu(),
    )
    return terms.loss, result


def score_answers(policy: Policy, batch: Batch, answers: Sequence[int], temperature: float) -> TokenScores:
    """Log-prob and entropy of the trainable tokens of some answers, [n], under the sampling distribution."""
    prompts, completions = batch.prompts, batch.completions
    chosen = [completions[b] for b in answers]
    scores = policy.score(
        [prompts[b] for b in answers],
        [completion.token_ids for completion in chosen],
        temperature=temperature,
        kept=None if all(c.kept is None for c in chosen) else [c.kept for c in chosen],
    )
    ours = torch.tensor([flag for completion in chosen for flag in completion.loss_mask], device=scores.logprobs.device)
    return dataclasses.replace(scores, logprobs=scores.logprobs[ours], entropy=scores.entropy[ours])


def _with_logprobs(batch: Batch, learner: Learner) -> Batch:
    """Old log-probs where the first pass does not give them for free, reference ones where there is a KL."""
    args, objective, ranks = learner.args, learner.args.objective, learner.ranks
    unscored = batch.sampler_logprobs.isnan()
    if objective.old_logprobs == "sampler" and not bool(unscored.any()):
        batch = dataclasses.replace(batch, old_logprobs=batch.sampler_logprobs)
    elif objective.old_logprobs == "sampler":  # the trainer's own for tokens that the sampler did not score
        own = _frozen_logprobs(learner.policy, batch, args, ranks)
        batch = dataclasses.replace(batch, old_logprobs=torch.where(unscored, own, batch.sampler_logprobs))
    elif args.minibatches * args.epochs_per_batch > 1 or objective.asks_for_old_logprobs:
        batch = dataclasses.replace(batch, old_logprobs=_frozen_logprobs(learner.policy, batch, args, ranks))
    if learner.reference is not None:
        batch = dataclasses.replace(batch, ref_logprobs=_frozen_logprobs(learner.reference, batch, args, ranks))
    return batch


def _frozen_logprobs(policy: Policy, batch: Batch, args: TrainArgs, ranks: Ranks) -> Tensor:
    """[N] log-probs of the batch's trainable tokens, without a graph; each rank scores its share."""
    logprobs = torch.zeros(batch.seq_id.numel())
    answers = torch.unique(batch.seq_id).tolist()
    shared = policy.shares_prompts
    with torch.no_grad():
        for micro in passes_of(batch, answers, args.micro_batch_tokens, shared=shared, ranks=ranks):
            scored = score_answers(policy, batch, micro.answers, args.temperature).logprobs.cpu()
            if micro.counts:
                logprobs[micro.tokens] = scored
    return ranks.sum(logprobs)


def _at(tensor: Tensor | None, micro: MicroBatch, policy: Policy) -> Tensor | None:
    return None if tensor is None else tensor[micro.tokens].to(policy.device)


def _required(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise AssertionError("advantages, weights and sampler log-probs are there before an update")
    return tensor


def _entropy_sums(scores: TokenScores) -> Sums:
    count = float(scores.entropy.numel())
    return {
        "entropy": (float(scores.entropy.sum()), count),
        "sampled_nll": (-float(scores.logprobs.detach().sum()), count),
    }
