"""The promise: the gradient of the weights does not depend on how the batch is cut, padded, ordered or spread."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from upweight import aggregate_token_loss, group_advantages, grpo_loss, token_weights
from upweight.objective.presets import PRESETS, preset
from upweight.objective.shaping import overlong_penalty
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rollout.completion import FinishReason
from upweight.train.batch import make_batch, with_advantages
from upweight.train.passes import plan_updates
from upweight.train.records import Batch, Group
from upweight.train.step import Learner, take_update, training_step

BUDGET = 8
LENGTHS = ((3, 1, 8, 5), (2, 2, 4, 1), (7, 6, 1, 2))
REWARDS = ((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.5, 1.0, math.nan))

OBJECTIVES = {name: preset(name, max_new_tokens=BUDGET) for name in PRESETS if name != "ppo"} | {
    "tis": Objective(correction="tis", correction_cap=1.1),
    "mis-valid": Objective(correction="mis", correction_cap=1.1, masked_tokens="valid", kl_coef=0.0),
    "mis-keep-sequence": Objective(correction="mis", correction_level="sequence", correction_cap=1.1),
    "is-geometric": Objective(correction="is", correction_level="geometric", loss_agg="group-mean-token-mean"),
    "kl-reverse": Objective(kl_coef=0.3, kl_grad="reverse", kl_estimator="k1"),
    "leave-one-out": Objective(baseline="leave-one-out", adv_norm="batch", surrogate="none", kl_estimator="k2"),
    "dual-clip": Objective(dual_clip=1.05, clip=0.02, clip_high=0.02, truncated="mask"),
}

PASSED_ON = (
    *("clip", "clip_high", "ratio_level", "surrogate", "dual_clip", "loss_agg"),
    *("kl_coef", "kl_estimator", "kl_grad"),
    *("correction", "correction_level", "correction_cap", "masked_tokens"),
)


def close(one: Tensor, other: Tensor) -> bool:
    """Within float32 rounding of the log-probs, relative to the gradient's own norm, which is not 0."""
    return bool(one.norm() > 1e-4) and bool((one - other).norm() <= 2e-5 * one.norm())


@pytest.fixture
def exact(policy_of: Callable[..., Policy]) -> Policy:
    return policy_of(dtype=torch.float64)


@pytest.fixture
def reference(policy_of: Callable[..., Policy], nudged: Callable[..., Policy]) -> Policy:
    return nudged(policy_of(dtype=torch.float64), seed=77, scale=0.03)


@pytest.fixture
def groups(group: Callable[..., Group], completion: Callable[..., Any], exact: Policy) -> list[Group]:
    """Three groups of four answers to prompts of different lengths, with sampler log-probs near the policy's."""
    made = []
    noise = torch.Generator().manual_seed(5)
    for g, lengths in enumerate(LENGTHS):
        prompt = [65 + g] * (2 * g + 1)
        answers = []
        for length in lengths:
            ids = torch.randint(0, 257, (length,), generator=noise).tolist()
            with torch.no_grad():
                logprobs = exact.score([prompt], [ids]).logprobs + 0.1 * torch.randn(length, generator=noise)
            reason = FinishReason.LENGTH if length == BUDGET else FinishReason.STOP
            answers.append(completion(ids, logprobs.tolist(), reason=reason))
        made.append(group(REWARDS[g], row=g, prompt=prompt, completions=answers))
    return made


def gradients(recording: Any, groups: Sequence[Group], policy: Policy, **fields: Any) -> list[Tensor]:
    """The gradient of every update of one step; the weights move by fixed noise in between."""
    learner, recorder = recording(groups, policy, max_new_tokens=BUDGET, **fields)
    report, _ = training_step(learner, 1)
    assert report.skipped_updates == 0
    kept: list[Tensor] = recorder.gradients
    return kept


def padded(policy: Policy, batch: Batch) -> Tensor:
    """[B, T] log-probs, each answer scored alone; padding is NaN."""
    rows = [
        policy.score([prompt], [completion.token_ids]).logprobs
        for prompt, completion in zip(batch.prompts, batch.completions, strict=True)
    ]
    width = max(map(len, rows)) + 2
    return torch.stack([torch.cat([row, row.new_full((width - len(row),), math.nan)]) for row in rows])


def one_call(groups: Sequence[Group], objective: Objective, policy: Policy, old: Policy, reference: Policy) -> Tensor:
    """The loss of the whole batch by the public padded functions alone."""
    batch = make_batch(groups, Objective())
    lengths = torch.tensor([len(completion.token_ids) for completion in batch.completions])
    rewards, ids = batch.task_rewards, batch.group_of
    trained = ~rewards.isnan()
    cut_off = lengths == BUDGET
    if objective.truncated == "mask":
        trained &= ~cut_off
    if objective.filter_groups:
        spread = {g for g in range(len(groups)) if rewards[(ids == g) & ~rewards.isnan()].unique().numel() > 1}
        trained &= torch.tensor([int(g) in spread for g in ids])
    if objective.overlong_buffer:
        rewards = rewards + overlong_penalty(lengths, BUDGET, objective.overlong_buffer).double()
    logprobs = padded(policy, batch)
    with torch.no_grad():
        old_logprobs, ref_logprobs = padded(old, batch), padded(reference, batch)
    sampler = torch.full_like(old_logprobs, math.nan)
    for b, completion in enumerate(batch.completions):
        sampler[b, : lengths[b]] = torch.tensor(completion.logprobs)
    loss, _ = grpo_loss(
        logprobs,
        old_logprobs,
        group_advantages(
            rewards, ids, scale=objective.adv_norm, baseline=objective.baseline, ddof=objective.adv_ddof
        ).float(),
        trained[:, None] & (torch.arange(logprobs.shape[1]) < lengths[:, None]),
        max_length=BUDGET,
        group_ids=ids,
        ref_logprobs=ref_logprobs,
        sampler_logprobs=sampler,
        **{name: getattr(objective, name) for name in PASSED_ON},
    )
    return loss


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_cut_of_the_batch_leaves_the_gradient_alone(
    recording: Any, groups: list[Group], exact: Policy, reference: Policy, name: str
) -> None:
    """B01, B02: one answer a pass or all in one, in the first epoch and in the second, where ratios are not 1."""
    how = {"objective": OBJECTIVES[name], "reference": reference, "epochs_per_batch": 2}
    whole = gradients(recording, groups, exact, micro_batch_tokens=100_000, **how)
    for room in (1, 40):
        parts = gradients(recording, groups, exact, micro_batch_tokens=room, **how)
        assert [close(a, b) for a, b in zip(whole, parts, strict=True)] == [True, True]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_order_of_answers_and_of_groups_leaves_the_gradient_alone(
    recording: Any, groups: list[Group], exact: Policy, reference: Policy, name: str
) -> None:
    """B18: permuting samples with their ids permutes the advantages likewise, so the sum stays."""
    how = {"objective": OBJECTIVES[name], "reference": reference, "epochs_per_batch": 2, "micro_batch_tokens": 30}
    order = [2, 0, 3, 1]
    shuffled = [
        dataclasses.replace(
            group,
            completions=tuple(group.completions[b] for b in order),
            scores=tuple(group.scores[b] for b in order),
            texts=tuple(group.texts[b] for b in order),
        )
        for group in reversed(groups)
    ]
    straight = gradients(recording, groups, exact, **how)
    mixed = gradients(recording, shuffled, exact, **how)
    assert [close(a, b) for a, b in zip(straight, mixed, strict=True)] == [True, True]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_trainers_gradient_is_that_of_one_grpo_loss_on_padded_tensors(
    recording: Any,
    gradient_of: Callable[[Policy], Tensor],
    nudged: Callable[..., Policy],
    policy_of: Callable[..., Policy],
    groups: list[Group],
    exact: Policy,
    reference: Policy,
    name: str,
) -> None:
    """B02: the packed path and the public function agree, with ratios of 1 and with others; padding is NaN there."""
    objective = OBJECTIVES[name]
    trained = gradients(
        recording,
        groups,
        exact,
        objective=objective,
        reference=reference,
        epochs_per_batch=2,
        micro_batch_tokens=40,
    )
    moved = nudged(policy_of(dtype=torch.float64), seed=1)
    for policy, ours in ((exact, trained[0]), (moved, trained[1])):
        one_call(groups, objective, policy, exact, reference).backward()  # type: ignore[no-untyped-call]
        assert close(ours, gradient_of(policy))
        policy.model.zero_grad()
        exact.model.zero_grad()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_minibatch_is_normalised_as_if_it_were_alone(
    recording: Any,
    gradient_of: Callable[[Policy], Tensor],
    groups: list[Group],
    exact: Policy,
    reference: Policy,
    name: str,
) -> None:
    """B09: the first of three updates has the gradient of its own prompt's answers only."""
    objective = OBJECTIVES[name]
    if objective.adv_norm == "batch":
        objective = dataclasses.replace(objective, adv_norm="std")
    how = {"objective": objective, "reference": reference, "micro_batch_tokens": 20}
    learner, recorder = recording(groups, exact, max_new_tokens=BUDGET, minibatches=3, **how)
    training_step(learner, 1)
    one_call(groups[:1], objective, exact, exact, reference).backward()  # type: ignore[no-untyped-call]
    assert close(recorder.gradients[0], gradient_of(exact))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradients_of_two_ranks_add_up(
    recording: Any, groups: list[Group], exact: Policy, reference: Policy, name: str
) -> None:
    """B05: each rank runs its share of the passes under the weights of the whole update; nothing is rescaled."""
    objective = OBJECTIVES[name]

    def rank(share: slice) -> Tensor:
        learner, recorder = recording(groups, exact, objective=objective, reference=reference)
        batch = batch_with_everything(groups, objective, learner)
        [update] = plan_updates(batch, objective, minibatches=1, epochs=1, micro_batch_tokens=20, max_new_tokens=BUDGET)
        assert len(update.micro_batches) > 3
        mine = dataclasses.replace(update, micro_batches=update.micro_batches[share])
        take_update(learner, batch, mine, lr=0.0)
        [gradient] = recorder.gradients
        return gradient

    whole = rank(slice(None))
    halves = rank(slice(0, None, 2)), rank(slice(1, None, 2))
    assert close(whole, halves[0] + halves[1])
    assert not close(whole, halves[0])


def batch_with_everything(groups: Sequence[Group], objective: Objective, learner: Learner) -> Batch:
    """A batch as the step makes it, old and reference log-probs scored answer by answer."""
    batch = make_batch(groups, objective)
    chosen = batch.trained[:, None]

    def flat(policy: Policy | None) -> Tensor:
        assert policy is not None
        with torch.no_grad():
            table = padded(policy, batch)
        return table[chosen & ~table.isnan()]

    batch = dataclasses.replace(batch, old_logprobs=flat(learner.policy), ref_logprobs=flat(learner.reference))
    return with_advantages(batch, objective, BUDGET)


def test_the_second_epoch_sees_ratios_that_are_not_1(recording: Any, groups: list[Group], exact: Policy) -> None:
    """Otherwise the tests above would say nothing about ratios, bounds and clipping."""
    learner, _ = recording(groups, exact, epochs_per_batch=2, objective=Objective(kl_coef=0.0, clip=0.05))
    report, _ = training_step(learner, 1)
    assert report.ratio_max > 1.2
    assert 0.1 < report.clipfrac < 0.9


def test_a_kl_in_the_reward_is_the_same_however_the_batch_is_cut(
    recording: Any, groups: list[Group], exact: Policy, reference: Policy
) -> None:
    """It enters the advantages; the passes over old and reference log-probs may be cut anywhere."""
    how = {"objective": Objective(kl_place="reward", kl_coef=0.3), "reference": reference, "epochs_per_batch": 2}
    whole = gradients(recording, groups, exact, micro_batch_tokens=100_000, **how)
    parts = gradients(recording, groups, exact, micro_batch_tokens=1, **how)
    assert [close(a, b) for a, b in zip(whole, parts, strict=True)] == [True, True]


def test_an_interior_masked_token_is_in_no_term(
    recording: Any, completion: Any, group: Callable[..., Group], exact: Policy, gradient_of: Any
) -> None:
    """Tool output inside an answer is context: not in the loss, not in the denominator, not in the metrics."""
    ids, kept = [97, 98, 99, 100], [True, False, True, True]
    answers = [completion(ids, mask=kept), completion([101, 102])]
    learner, recorder = recording([group([1.0, 0.0], completions=answers)], exact)
    report, batch = training_step(learner, 1)
    assert batch.seq_id.tolist() == [0, 0, 0, 1, 1]
    assert (report.trained_tokens, report.resp_len, report.tokens) == (5, 2.5, 6)

    scores = [exact.score([[65, 66, 67]], [c.token_ids]).logprobs for c in answers]
    own = torch.cat([scores[0][[0, 2, 3]], scores[1]])
    advantages = torch.tensor([1.0] * 3 + [-1.0] * 2) / (math.sqrt(0.5) + 1e-6) / 2
    (-(own * advantages).sum() / 5).backward()
    assert close(recorder.gradients[0], gradient_of(exact))


def test_the_weights_of_the_plan_are_the_public_token_weights(group: Callable[..., Group]) -> None:
    """The table the laboratory draws and the weights the trainer uses are one function."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
    groups = [group([1.0, 0.0], [2, 3], row=0), group([1.0, 0.0], [1, 2], row=1)]
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean"):
        objective = Objective(kl_coef=0.0, loss_agg=mode)  # type: ignore[arg-type]
        batch = with_advantages(make_batch(groups, objective), objective, 8)
        [update] = plan_updates(batch, objective, minibatches=1, epochs=1, micro_batch_tokens=99, max_new_tokens=8)
        where = {"max_length": 8, "group_ids": torch.tensor([0, 0, 1, 1])}
        assert update.weights.tolist() == pytest.approx(token_weights(mask.double(), mode, **where)[mask > 0].tolist())
        assert float(update.weights.sum()) == pytest.approx(
            float(aggregate_token_loss(torch.ones(4, 3, dtype=torch.float64), mask, mode, **where))
        )
