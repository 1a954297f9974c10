"""One training step on a real, small model: what moves, in which direction, and what stops it."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import upweight.train.step as room
from upweight.objective.metrics import metric_means
from upweight.objective.presets import PRESETS, preset
from upweight.objective.spec import Objective
from upweight.policy.logprob import TokenScores
from upweight.policy.policy import Policy
from upweight.rewards.runner import make_runner
from upweight.rollout.completion import Completion, FinishReason, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.rows import RowsTask
from upweight.train.records import Group
from upweight.train.source import SamplingSource
from upweight.train.step import Learner, score_answers, training_step


def letters(completions: list[str], **_: Any) -> list[float]:
    """A reward with spread: the share of lower-case letters."""
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


def sampling_learner(learner: Callable[..., Learner], policy: Policy, **fields: Any) -> Learner:
    """A learner whose groups are sampled from the policy itself."""
    work = learner([], policy=policy, **fields)
    source = SamplingSource(
        stream=RowsTask([{"prompt": f"say {n}"} for n in range(8)]).stream(0),
        engine=LocalEngine(policy),
        encode=policy.encode,
        decode=policy.decode,
        runner=make_runner(letters),
        sampling=Sampling(
            max_new_tokens=8,
            temperature=work.args.temperature,
            top_p=work.args.top_p,
            top_k=work.args.top_k,
        ),
        group_size=work.args.group_size,
        context_length=policy.context_length,
    )
    return dataclasses.replace(work, source=source)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "ppo"])
def test_one_step_with_unequal_rewards_changes_the_weights(
    group: Callable[..., Group], learner: Callable[..., Learner], weights_of: Any, name: str
) -> None:
    """B41: every preset, with kl_coef 0."""
    objective = dataclasses.replace(preset(name, max_new_tokens=8), kl_coef=0.0, resample=False)
    work = learner([group([1.0, 0.0, 0.0, 1.0])], objective=objective)
    before = weights_of(work.policy)
    report, _ = training_step(work, 1)
    assert (report.updates, report.skipped_updates, work.policy.version) == (1, 0, 1)
    assert report.grad_norm > 1e-3
    assert (weights_of(work.policy) != before).float().mean() > 0.5


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "ppo"])
def test_a_small_step_raises_what_was_right_and_lowers_what_was_wrong(
    group: Callable[..., Group], learner: Callable[..., Learner], name: str
) -> None:
    """B38: the sign of the whole pipeline, not of the loss alone."""
    objective = dataclasses.replace(preset(name, max_new_tokens=8), kl_coef=0.0, resample=False)
    work = learner([group([1.0, 0.0, 0.0, 0.0])], objective=objective, learning_rate=1e-4)
    _, batch = training_step(work, 1)
    before = learner([], policy=None).policy
    with torch.no_grad():
        old = score_answers(before, batch, range(4), 1.0).logprobs
        new = score_answers(work.policy, batch, range(4), 1.0).logprobs
    gain = torch.zeros(4).index_add(0, batch.seq_id, new - old)
    assert gain[0] > 1e-4
    assert gain[1:].sum() < -1e-4


@pytest.mark.parametrize("room_for", [1, 8, 1000])
def test_before_the_first_update_every_ratio_is_1(
    learner: Callable[..., Learner], policy: Policy, room_for: int
) -> None:
    """B60: old log-probs are the trainer's own; with one update exactly, with recomputed ones within rounding."""
    one = sampling_learner(learner, policy, micro_batch_tokens=room_for)
    report, _ = training_step(one, 1)
    assert (report.ratio_mean, report.ratio_max, report.clipfrac) == (1.0, 1.0, 0.0)
    assert report.mismatch_max < 1e-5
    two = sampling_learner(learner, policy, micro_batch_tokens=room_for, minibatches=2, learning_rate=1e-12)
    report, _ = training_step(two, 2)
    assert report.updates == 2
    assert abs(report.ratio_max - 1.0) < 1e-5


@pytest.mark.parametrize(("how", "calls"), [({}, 1), ({"minibatches": 2}, 3), ({"epochs_per_batch": 3}, 4)])
def test_the_old_policy_costs_a_pass_only_where_there_is_more_than_one_update(
    group: Callable[..., Group],
    learner: Callable[..., Learner],
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, int],
    calls: int,
) -> None:
    """One pass an update, and one before the first where the ratio can leave 1."""
    scored: list[int] = []
    real = Policy.score

    def counted(self: Policy, prompts: Any, completions: Any, **options: Any) -> TokenScores:
        scored.append(len(prompts))
        return real(self, prompts, completions, **options)

    monkeypatch.setattr(Policy, "score", counted)
    training_step(learner([group([1.0, 0.0], row=0), group([1.0, 0.0], row=1)], **how), 1)
    assert len(scored) == calls


@pytest.mark.parametrize(("kl_coef", "moved"), [(0.04, True), (0.0, False)])
def test_adam_makes_steps_of_a_vanishing_kl_gradient(
    group: Callable[..., Group],
    learner: Callable[..., Learner],
    policy: Policy,
    weights_of: Any,
    nudged: Any,
    kl_coef: float,
    moved: bool,
) -> None:
    """All wrong, and a reference as far off as rounding is: a gradient below 1e-5 moves weights by the rate."""
    reference = nudged(policy.frozen_copy(), seed=1, scale=1e-6) if kl_coef else None
    before = weights_of(policy)
    work = learner([group([0.0, 0.0])], policy=policy, reference=reference, objective=Objective(kl_coef=kl_coef))
    report, _ = training_step(work, 1)
    furthest = float((weights_of(policy) - before).abs().max())
    assert (report.informative, report.updates) == (0.0, int(moved))
    assert report.grad_norm < 1e-5
    assert furthest > 0.5 * work.args.learning_rate if moved else furthest == 0.0


@pytest.mark.parametrize("how", [{"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.8, "temperature": 1.5}])
def test_training_scores_the_distribution_that_was_sampled_from(
    learner: Callable[..., Learner], policy: Policy, how: dict[str, float]
) -> None:
    """B55, B58: temperature is in both; kept sets are replayed, so that nothing of the kept mass is in a ratio."""
    work = sampling_learner(learner, policy, **how)
    report, batch = training_step(work, 1)
    assert report.trained_tokens > 30
    assert report.mismatch_max < 1e-5
    with torch.no_grad():
        naive = policy.score(batch.prompts, [c.token_ids for c in batch.completions]).logprobs
    assert (naive - batch.sampler_logprobs).abs().mean() > 0.05


def test_kept_sets_are_replayed_where_only_some_answers_have_one(
    group: Callable[..., Group], completion: Any, learner: Callable[..., Learner], policy: Policy
) -> None:
    """An engine may leave the set out where a token was chosen among all."""
    import numpy as np

    narrow = completion([97, 98], kept=(np.array([97, 98]), np.array([97, 98])))
    wide = completion([97, 98])
    for answers in ([wide, narrow], [narrow, wide]):
        _, batch = training_step(learner([group([1.0, 0.0], completions=answers)]), 1)
        with torch.no_grad():
            scores = score_answers(policy, batch, (0, 1), 1.0).logprobs.view(2, 2)
        alone = [
            score_answers(policy, batch, (b,), 1.0).logprobs.tolist()  #
            for b in (0, 1)
        ]
        assert scores.tolist() == [pytest.approx(row, abs=1e-5) for row in alone]


def test_without_a_kl_there_is_no_reference_and_no_kl_in_the_report(
    group: Callable[..., Group], learner: Callable[..., Learner]
) -> None:
    """B102: null, not 0."""
    report, batch = training_step(learner([group([1.0, 0.0])]), 1)
    assert (report.kl, batch.ref_logprobs) == (None, None)


def test_the_kl_to_itself_is_0_and_grows_as_the_policy_leaves(
    group: Callable[..., Group], learner: Callable[..., Learner], policy: Policy
) -> None:
    """The reference is frozen while the policy moves."""
    reference = policy.frozen_copy()
    work = learner([group([1.0, 0.0])], policy=policy, reference=reference, objective=Objective(), learning_rate=1e-2)
    kls = [training_step(work, step)[0].kl for step in (1, 2, 3)]
    assert kls[0] == pytest.approx(0.0, abs=1e-6)
    assert kls[2] is not None
    assert kls[2] > 1e-3


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_takes_no_optimiser_step_and_the_run_goes_on(
    group: Callable[..., Group],
    learner: Callable[..., Learner],
    weights_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    where: str,
    value: float,
) -> None:
    """The weights stay as they were, the update is counted as skipped, and the next step trains."""
    work = learner([group([1.0, 0.0])], weight_decay=0.1)
    before = weights_of(work.policy)
    real = room.policy_loss

    def broken(*args: Any, **kwargs: Any) -> Any:
        terms = real(*args, **kwargs)
        if where == "loss":  # a constant: the gradient stays finite
            return dataclasses.replace(terms, loss=terms.loss + value)
        terms.loss.register_hook(lambda gradient: gradient * value)
        return terms

    with monkeypatch.context() as patch:
        patch.setattr(room, "policy_loss", broken)
        report, _ = training_step(work, 1)
    assert (report.updates, report.skipped_updates, work.policy.version) == (0, 1, 0)
    assert math.isfinite(report.loss) is (where == "gradient")
    assert math.isfinite(report.grad_norm) is (where == "loss")
    assert torch.equal(weights_of(work.policy), before)

    report, _ = training_step(work, 2)
    assert (report.updates, report.skipped_updates, work.policy.version) == (1, 0, 1)
    assert bool(weights_of(work.policy).isfinite().all())
    assert not torch.equal(weights_of(work.policy), before)


def test_one_bad_minibatch_does_not_touch_the_others(
    group: Callable[..., Group], learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is per update."""
    calls: list[int] = []
    real = room.policy_loss

    def second_is_broken(*args: Any, **kwargs: Any) -> Any:
        terms = real(*args, **kwargs)
        calls.append(1)
        return dataclasses.replace(terms, loss=terms.loss * math.nan) if len(calls) == 2 else terms

    monkeypatch.setattr(room, "policy_loss", second_is_broken)
    work = learner([group([1.0, 0.0], row=g) for g in range(3)], minibatches=3)
    report, _ = training_step(work, 1)
    assert (report.updates, report.skipped_updates) == (2, 1)


def test_the_loss_can_be_0_while_something_is_learnt(
    group: Callable[..., Group], learner: Callable[..., Learner]
) -> None:
    """B11: on-policy the loss's value is a sum of advantages; the gradient's norm says whether anything trains."""
    objective = Objective(kl_coef=0.0, adv_norm="none", loss_agg="seq-mean-token-mean")
    report, _ = training_step(learner([group([1.0, -1.0], [2, 4])], objective=objective), 1)
    assert report.loss == pytest.approx(0.0, abs=1e-7)
    assert report.grad_norm > 0.01


def test_the_sampler_may_stand_for_the_old_policy(
    group: Callable[..., Group], completion: Any, learner: Callable[..., Learner], policy: Policy
) -> None:
    """--old_logprobs sampler: the ratio starts from what the sampler reported, here log 2 below."""
    with torch.no_grad():
        own = policy.score([[65, 66, 67]], [[97, 98]]).logprobs
    answers = [completion([97, 98], (own - math.log(2)).tolist()), completion([97, 98], own.tolist())]
    objective = Objective(kl_coef=0.0, old_logprobs="sampler")
    report, _ = training_step(learner([group([1.0, 0.0], completions=answers)], objective=objective), 1)
    assert report.ratio_max == pytest.approx(2.0, abs=1e-4)
    assert report.ratio_mean == pytest.approx(1.5, abs=1e-4)
    assert report.clipfrac_high == 0.5


def test_a_correction_compares_sampler_and_trainer(
    group: Callable[..., Group], completion: Any, learner: Callable[..., Learner], policy: Policy
) -> None:
    """Mismatch is |log pi_old - log mu|; mis drops the answer whose ratio is 2, at a cap of 1.5."""
    with torch.no_grad():
        own = policy.score([[65, 66, 67]], [[97, 98]]).logprobs
    answers = [completion([97, 98], (own - math.log(2)).tolist()), completion([97, 98], own.tolist())]
    objective = Objective(kl_coef=0.0, correction="mis", correction_cap=1.5)
    report, _ = training_step(learner([group([1.0, 0.0], completions=answers)], objective=objective), 1)
    assert report.rejected == 0.5
    assert report.mismatch == pytest.approx(math.log(2) / 2, abs=1e-4)
    assert report.mismatch_max == pytest.approx(math.log(2), abs=1e-4)
    assert report.ess == pytest.approx(0.5, abs=1e-4)


def test_a_step_report_is_numbers_that_json_can_write(
    group: Callable[..., Group], learner: Callable[..., Learner]
) -> None:
    """Tensors must not leak into the report."""
    report, _ = training_step(learner([group([1.0, 0.0])]), 1)
    json.dumps(dataclasses.asdict(report), allow_nan=False)


@pytest.mark.parametrize("tool", [7.0, math.nan])
def test_the_mean_entropy_leaves_out_what_is_not_trained_on(tool: float) -> None:
    """B99: entropies (0.5, 1.5, 7) where the third token is not the policy's own: 1.0, not 3.0."""
    answer = Completion(
        token_ids=(1, 2, 3),
        logprobs=(-1.0, -2.0, -3.0),
        loss_mask=(True, True, False),
        weights_versions=(0, 0, 0),
        finish_reason=FinishReason.STOP,
    )
    scores = TokenScores(logprobs=torch.tensor([-1.0, -2.0, tool]), entropy=torch.tensor([0.5, 1.5, tool]))
    policy: Any = SimpleNamespace(score=lambda *_, **__: scores)
    batch: Any = SimpleNamespace(prompts=[(9,)], completions=[answer])
    means = metric_means(room._entropy_sums(score_answers(policy, batch, (0,), 1.0)))
    assert means == {"entropy": 1.0, "sampled_nll": 1.5}


def test_entropy_and_surprise_are_two_numbers(group: Callable[..., Group], learner: Callable[..., Learner]) -> None:
    """B99: entropy of the distribution at the trained tokens, and -log-prob of the sampled ones."""
    report, batch = training_step(learner([group([1.0, 0.0])]), 1)
    fresh = learner([]).policy
    with torch.no_grad():
        scores = score_answers(fresh, batch, (0, 1), 1.0)
    assert report.entropy == pytest.approx(float(scores.entropy.mean()), rel=1e-5)
    assert report.sampled_nll == pytest.approx(-float(scores.logprobs.mean()), rel=1e-5)
    assert abs(report.entropy - report.sampled_nll) > 0.01


@pytest.mark.parametrize(("masked_tokens", "counted"), [("keep", 6), ("valid", 3)])
def test_the_denominator_that_is_logged_is_the_one_that_is_used(
    group: Callable[..., Group],
    completion: Callable[..., Completion],
    learner: Callable[..., Learner],
    masked_tokens: Any,
    counted: int,
) -> None:
    """B34: a sampler that held its tokens for all but impossible has the whole answer rejected."""
    answers = [completion([97, 98, 99], [-1.0] * 3), completion([100, 101, 102], [-30.0] * 3)]
    objective = Objective(kl_coef=0.0, correction="mis", masked_tokens=masked_tokens)
    report, _ = training_step(learner([group([1.0, 0.0], completions=answers)], objective=objective), 1)
    assert report.trained_tokens == counted
    assert report.rejected == 0.5
