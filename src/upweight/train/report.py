"""The report of a step, from what was sampled and what the updates came to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from upweight.objective.metrics import Sums, add_sums, metric_means, quantile
from upweight.rewards.score import FAILURES, Status
from upweight.rollout.completion import FinishReason
from upweight.train.records import Batch, Group, Sampled, StepReport, UpdateResult, Verdict
from upweight.train.source import is_informative


def make_report(
    *,
    step: int,
    sampled: Sampled,
    batch: Batch,
    results: Sequence[UpdateResult],
    denominator: int,
    lr: float,
    has_reference: bool,
    seconds: float,
    sample_seconds: float,
) -> StepReport:
    """Put a step's numbers together.

    Reward, informative, resp_len, truncated and unscored describe everything sampled, also what was discarded;
    the policy's numbers (ratios, entropy, KL) the tokens that went through the model for the loss, and are None where
    no token did.
    """
    groups = sampled.fresh
    completions = [completion for group in groups for completion in group.completions]
    scored = [score.value for group in groups for score in group.scores if score.status is Status.SCORED]
    lengths = [sum(completion.loss_mask) for completion in completions]
    tokens = sum(len(completion.token_ids) for completion in completions)
    sums: Sums = {}
    for result in results:
        sums = add_sums(sums, result.metrics)
    means = metric_means({name: pair for name, pair in sums.items() if pair[1]})
    ratios = torch.cat([result.ratios for result in results]) if results else torch.empty(0)
    gaps = torch.cat([result.gaps for result in results]) if results else torch.empty(0)
    return StepReport(
        step=step,
        reward=_mean(scored),
        informative=_mean([float(is_informative(group)) for group in groups]) or 0.0,
        resp_len=_mean(lengths) or 0.0,
        clipfrac=means.get("clipfrac"),
        clipfrac_low=means.get("clipfrac_low"),
        clipfrac_high=means.get("clipfrac_high"),
        kl=means.get("kl") if has_reference else None,
        entropy=means.get("entropy"),
        sampled_nll=means.get("sampled_nll"),
        grad_norm=_mean([result.grad_norm for result in results]) or 0.0,
        loss=_mean([result.loss for result in results]) or 0.0,
        lr=lr,
        tokens=tokens,
        seconds=seconds,
        reward_shaped=_mean([] if batch.rewards is None else [r for r in batch.rewards.tolist() if r == r]),
        truncated=_mean([float(c.finish_reason is FinishReason.LENGTH) for c in completions]) or 0.0,
        unscored=len(completions) - len(scored),
        reward_errors=_mean([float(score.status in FAILURES) for group in groups for score in group.scores]) or 0.0,
        trained_tokens=denominator,
        filtered_groups=len(sampled.discarded) + _left_out(sampled.groups, batch),
        rounds=sampled.rounds,
        sampled_groups=len(groups),
        missing_groups=sampled.missing,
        updates=sum(result.verdict is Verdict.STEP for result in results),
        skipped_updates=sum(result.verdict is not Verdict.STEP for result in results),
        nonfinite_steps=sum(result.verdict is Verdict.NOT_FINITE for result in results),
        ratio_mean=means.get("ratio_mean"),
        ratio_p99=_tail(ratios, 0.99),
        ratio_max=_tail(ratios, 1.0),
        ess=means.get("ess"),
        rejected=means.get("rejected"),
        mismatch=means.get("mismatch"),
        mismatch_p99=_tail(gaps, 0.99),
        mismatch_max=_tail(gaps, 1.0),
        sample_seconds=sample_seconds,
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
    )


def _left_out(groups: Sequence[Group], batch: Batch) -> int:
    """Groups of the batch none of whose answers is trained on."""
    trained = set(batch.group_of[batch.trained].tolist())
    return len(groups) - len(trained)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _tail(values: Tensor, q: float) -> float | None:
    return quantile(values, q) if values.numel() else None
