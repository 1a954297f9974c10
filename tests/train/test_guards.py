"""What is not finite, and what has nothing to teach, moves no weight; the first is named, dumped, and ends a run."""

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import upweight.train.step as room
from upweight import TrainArgs, Trainer
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rollout.completion import Completion, FinishReason
from upweight.train.guards import (
    MAX_IN_A_ROW,
    Guard,
    NotFiniteError,
    broken_inputs,
    first_nonfinite,
    first_nonfinite_module,
)
from upweight.train.optimizer import MasterAdamW
from upweight.train.passes import plan_updates
from upweight.train.records import Group, StepReport
from upweight.train.saving.checkpoint import CheckpointError
from upweight.train.step import Learner, training_step

Make = Callable[..., Learner]
NOT_FINITE = [math.nan, math.inf, -math.inf]


def everything_of(work: Learner) -> list[Tensor]:
    """Weights and the optimiser's moments and counters, copied."""
    state = work.optimizer._adamw.state_dict()["state"]
    moments = [value for entry in state.values() for value in entry.values()]
    return [tensor.detach().clone() for tensor in (*work.policy.model.parameters(), *moments)]


def warmed(learner: Make, groups: list[Group], **fields: Any) -> Learner:
    """A learner with one update behind it, so that there are moments to move, and a weight decay."""
    work = learner(groups, weight_decay=0.1, **fields)
    report, _ = training_step(work, 1)
    assert (report.updates, report.nonfinite_steps) == (1, 0)
    return work


def assert_untouched(work: Learner, before: list[Tensor], version: int) -> None:
    assert work.policy.version == version
    after = everything_of(work)
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def assert_left_out(work: Learner, step: int = 2) -> StepReport:
    """Take a step that must move nothing; its fault stays in the guard."""
    before, version = everything_of(work), work.policy.version
    report, _ = training_step(work, step)
    assert (report.updates, report.skipped_updates, report.nonfinite_steps) == (0, 1, 1)
    assert_untouched(work, before, version)
    return report


def goes_on(work: Learner) -> bool:
    report, _ = training_step(work, 3)
    return report.updates == 1 and first_nonfinite(work.policy.model.named_parameters()) is None


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_log_prob_that_is_not_finite_moves_nothing(
    group: Callable[..., Group], learner: Make, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """Trial 22, in the logits: one token is enough, and the next step trains again."""
    work = warmed(learner, [group([1.0, 0.0])])
    real = room.score_answers

    def broken(*args: Any) -> Any:
        scores = real(*args)
        hurt = scores.logprobs + torch.zeros_like(scores.logprobs).index_fill(0, torch.tensor([1]), value)
        return dataclasses.replace(scores, logprobs=hurt)

    with monkeypatch.context() as patch:
        patch.setattr(room, "score_answers", broken)
        assert_left_out(work)
    assert [fault.module for fault in work.guard.faults] == [None]
    assert goes_on(work)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_one_gradient_that_is_not_finite_is_named(group: Callable[..., Group], learner: Make, value: float) -> None:
    """Trial 22, in one gradient: the parameter's name, and none but it."""
    work = warmed(learner, [group([1.0, 0.0])])
    name = "model.layers.1.mlp.down_proj.weight"
    hook = dict(work.policy.model.named_parameters())[name].register_hook(lambda gradient: gradient + value)
    assert_left_out(work)
    hook.remove()
    (fault,) = work.guard.faults
    assert (fault.causes, fault.parameters, fault.module) == (("the gradient is",), (name,), None)
    assert fault.sentence == f"the gradient is not finite; gradients that are not: {name}"
    assert goes_on(work)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_reference_that_is_not_finite_is_named(
    group: Callable[..., Group], learner: Make, monkeypatch: pytest.MonkeyPatch, policy: Policy, value: float
) -> None:
    """Trial 22, in a reference log-prob; an infinite one would hide behind the clamp of the log-ratio."""
    work = warmed(
        learner, [group([1.0, 0.0])], policy=policy, reference=policy.frozen_copy(), objective=Objective(kl_coef=0.1)
    )
    real = room._with_logprobs

    def broken(*args: Any) -> Any:
        batch = real(*args)
        return dataclasses.replace(batch, ref_logprobs=batch.ref_logprobs.index_fill(0, torch.tensor([2]), value))

    with monkeypatch.context() as patch:
        patch.setattr(room, "_with_logprobs", broken)
        assert_left_out(work)
    assert work.guard.faults[0].causes[0] == "the reference's log-probabilities are"
    assert goes_on(work)


@pytest.mark.parametrize("correction", ["none", "tis"])
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_sampler_that_reports_an_infinite_log_prob_is_named(
    group: Callable[..., Group], completion: Callable[..., Completion], learner: Make, value: float, correction: Any
) -> None:
    """Trial 22, in a rollout log-prob: a token that was sampled had a probability, neither 0 nor infinite."""
    work = warmed(learner, [group([1.0, 0.0])], objective=Objective(kl_coef=0.0, correction=correction))
    answers = [completion([97, 98], [-1.0, value]), completion([97, 98])]
    work = dataclasses.replace(work, source=learner([group([1.0, 0.0], completions=answers)]).source)
    assert_left_out(work)
    assert work.guard.faults[0].causes == ("the sampler's log-probabilities are",)


def test_a_log_prob_that_the_sampler_did_not_report_is_no_fault(
    group: Callable[..., Group], completion: Callable[..., Completion], learner: Make
) -> None:
    """NaN stands for "not scored": the correction is then 1, and the step trains."""
    answers = [completion([97, 98], [-1.0, math.nan]), completion([97, 98])]
    objective = Objective(kl_coef=0.0, correction="tis")
    report, _ = training_step(learner([group([1.0, 0.0], completions=answers)], objective=objective), 1)
    assert (report.updates, report.nonfinite_steps) == (1, 0)


def test_what_has_no_weight_may_be_anything(group: Callable[..., Group], completion: Any, learner: Make) -> None:
    """The mask selects: an answer that is left out because it was truncated may hold infinities."""
    objective = Objective(kl_coef=0.0, truncated="mask")
    cut = completion([97, 98], [math.inf] * 2, reason=FinishReason.LENGTH)
    answers = [cut, completion([99, 98]), completion([100])]
    work = learner([group([1.0, 0.0, 1.0], completions=answers)], objective=objective)
    report, batch = training_step(work, 1)
    assert (report.updates, report.nonfinite_steps) == (1, 0)
    (update,) = plan_updates(
        dataclasses.replace(batch, advantages=torch.full_like(batch.advantages, math.nan)),
        objective,
        minibatches=1,
        epochs=1,
        micro_batch_tokens=100,
        max_new_tokens=8,
    )
    weightless = dataclasses.replace(update, weights=torch.zeros_like(update.weights))
    broken = dataclasses.replace(batch, advantages=torch.full_like(batch.advantages, math.nan))
    assert broken_inputs(broken, update) == ["the advantages are"]
    assert broken_inputs(broken, weightless) == []


def test_what_goes_through_no_pass_may_be_anything(
    group: Callable[..., Group], completion: Callable[..., Completion], learner: Make
) -> None:
    """Equal rewards teach nothing, so an infinite log-prob among their answers spoils nothing: the others train."""
    broken = [completion([97, 98], [-1.0, -math.inf]), completion([97, 98])]
    lessons = [group([1.0, 0.0]), group([1.0, 1.0], row=1, completions=broken)]
    report, batch = training_step(learner(lessons), 1)
    assert not bool(batch.sampler_logprobs.isfinite().all())
    assert (report.updates, report.skipped_updates, report.nonfinite_steps) == (1, 0, 0)


def test_a_gradient_too_small_to_be_squared_is_no_gradient_of_0(group: Callable[..., Group], learner: Make) -> None:
    """In float32 the square of 1e-24 is 0; the norm is not, and the update is taken."""
    work = learner([group([1.0, 0.0])])
    hooks = [p.register_hook(lambda gradient: gradient * 1e-24) for p in work.policy.model.parameters()]
    report, _ = training_step(work, 1)
    for hook in hooks:
        hook.remove()
    assert (report.updates, report.skipped_updates) == (1, 0)
    plain, _ = training_step(learner([group([1.0, 0.0])]), 1)
    assert report.grad_norm == pytest.approx(1e-24 * plain.grad_norm, rel=1e-4)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_first_module_that_goes_wrong_is_named(
    group: Callable[..., Group], learner: Make, policy: Policy, layer: int
) -> None:
    """A weight that has gone bad: the layer's name is in the fault, whichever passes the trainer has of its own."""
    work = learner([group([1.0, 0.0])], policy=policy)
    part = policy.model.model.layers[layer].mlp.up_proj
    good = part.weight.detach().clone()
    with torch.no_grad():
        part.weight[0, 0] = math.nan
    report, _ = training_step(work, 1)
    assert (report.updates, report.nonfinite_steps) == (0, 1)
    (fault,) = work.guard.faults
    assert fault.module == f"model.layers.{layer}.mlp.up_proj"
    assert f"the first module whose output is not: {fault.module}" in fault.sentence
    assert len(fault.parameters) > 5
    assert "more" in fault.sentence
    with torch.no_grad():
        part.weight.copy_(good)
    assert first_nonfinite_module(policy, [[65, 66, 67]]) is None
    assert not policy.model._forward_hooks
    assert not part._forward_hooks


def degenerate(name: str, group: Any, completion: Any) -> tuple[Objective, Group]:
    """Batches without anything to learn, by what is wrong with them."""
    plain = Objective(kl_coef=0.0)
    cut = [completion([97, 98, 99], reason=FinishReason.LENGTH) for _ in range(3)]
    improbable = [completion([97, 98, 99], [-90.0] * 3) for _ in range(2)]
    return {
        "all rewards equal": (plain, group([1.0, 1.0, 1.0])),
        "a group of one": (plain, group([1.0])),
        "everything truncated and masked": (
            dataclasses.replace(plain, truncated="mask"),
            group([1.0, 0.0, 0.0], completions=cut),
        ),
        "no tokens at all": (plain, group([1.0, 0.0], completions=[completion([]), completion([])])),
        "everything rejected": (
            dataclasses.replace(plain, correction="mis"),
            group([1.0, 0.0], completions=improbable),
        ),
        "everything rejected and renormalised": (
            dataclasses.replace(plain, correction="mis", masked_tokens="valid"),
            group([1.0, 0.0], completions=improbable),
        ),
    }[name]


@pytest.mark.parametrize(
    ("name", "zero_std"),
    [
        ("all rewards equal", 1.0),
        ("a group of one", 1.0),
        ("everything truncated and masked", 0.0),
        ("no tokens at all", 0.0),
        ("everything rejected", 0.0),
        ("everything rejected and renormalised", 0.0),
    ],
)
def test_a_batch_with_nothing_to_teach_moves_nothing(
    group: Callable[..., Group], completion: Callable[..., Completion], learner: Make, name: str, zero_std: float
) -> None:
    """Trial 23: a loss of exactly 0, no NaN, and neither old momentum nor weight decay touches a weight."""
    objective, lesson = degenerate(name, group, completion)
    work = warmed(learner, [group([1.0, 0.0])], objective=objective)
    work = dataclasses.replace(work, source=learner([lesson]).source)
    before, version = everything_of(work), work.policy.version
    report, _ = training_step(work, 2)
    assert (report.loss, report.grad_norm, 1 - report.informative) == (0.0, 0.0, zero_std)
    assert (report.updates, report.skipped_updates, report.nonfinite_steps) == (0, 1, 0)
    assert_untouched(work, before, version)
    assert work.guard.faults == []
    json.dumps(dataclasses.asdict(report), allow_nan=False)


def test_a_pass_whose_every_token_is_rejected_has_a_loss_of_0_with_a_graph(
    group: Callable[..., Group], completion: Callable[..., Completion], learner: Make, gradient_of: Any
) -> None:
    """Trial 23: backward works, and leaves zeros: other ranks and passes rely on its having happened."""
    objective, lesson = degenerate("everything rejected", group, completion)
    work = learner([lesson], objective=objective)
    training_step(work, 1)
    assert all(p.grad is not None for p in work.policy.model.parameters())
    assert torch.equal(gradient_of(work.policy), torch.zeros_like(gradient_of(work.policy)))


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


def run(policy: Policy, folder: Path, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 8,
        "prompts_per_step": 2,
        "group_size": 4,
        "max_new_tokens": 6,
        "lr_warmup_steps": 0,
        "objective": Objective(kl_coef=0.0),
    }
    rows = [{"prompt": f"say {n}"} for n in range(6)]
    args = TrainArgs(**{**defaults, **fields})
    return Trainer(policy.model, letters, args, rows, processing_class=policy.tokenizer).train()


def breaking(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Lose the loss of these steps."""
    real, calls = room.policy_loss, []

    def broken(*args: Any, **kwargs: Any) -> Any:
        terms = real(*args, **kwargs)
        calls.append(1)
        return dataclasses.replace(terms, loss=terms.loss * math.nan) if len(calls) in steps else terms

    monkeypatch.setattr(room, "policy_loss", broken)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_run_ends_at_the_third_step_in_a_row_with_the_last_good_weights(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trial 22: steps 3, 4 and 5 are not finite; the checkpoint is that of step 2's weights, all finite."""
    breaking(monkeypatch, {3, 4, 5})
    with pytest.raises(NotFiniteError, match=r"3 steps in a row were not finite \(the loss is not finite"):
        run(policy, tmp_path / "run", save_every=2)
    rows = rows_of(tmp_path / "run")
    assert [row["nonfinite_steps"] for row in rows] == [0, 0, 1, 1, 1]
    good = load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    last = load_file(tmp_path / "run" / "checkpoint-5" / "model.safetensors")
    assert good.keys() == last.keys()
    assert all(torch.equal(good[name], last[name]) for name in good)
    assert first_nonfinite(last.items()) is None
    assert sorted(path.name for path in (tmp_path / "run" / "dumps").iterdir()) == [
        "step-00003",
        "step-00004",
        "step-00005",
    ]
    said = capsys.readouterr().out
    assert "step 4: no update, the loss is not finite" in said
    assert "(2 in a row; the run ends at 3)" in said


def test_a_good_step_between_bad_ones_lets_the_run_go_on(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three in a row end a run; five of eight do not."""
    breaking(monkeypatch, {1, 2, 4, 5, 7})
    result = run(policy, tmp_path / "run")
    assert result.steps == 8
    assert [row["updates"] for row in rows_of(tmp_path / "run")] == [0, 0, 1, 0, 0, 1, 0, 1]


def test_the_dump_has_what_the_update_was_made_of(
    group: Callable[..., Group], learner: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: Policy
) -> None:
    """Prompts, ids, log-probs, advantages, weights, and what was found; JSON and safetensors, nothing pickled."""
    breaking(monkeypatch, {1, 2})
    reference = copy.deepcopy(policy)
    objective = Objective(kl_coef=0.1, old_logprobs="sampler")
    work = learner(
        [group([1.0, 0.0], [2, 3]), group([math.nan, 1.0, 0.0], row=1)], reference=reference, objective=objective,
        minibatches=2,
    )  # fmt: skip
    _, batch = training_step(work, 1)
    said: list[str] = []
    work.guard.end(1, batch, tmp_path / "dumps", said.append)
    folder = tmp_path / "dumps" / "step-00001"
    found = json.loads((folder / "batch.json").read_text())
    assert [fault["causes"] for fault in found["faults"]] == [["the loss is"]] * 2
    assert [answer["token_ids"] for answer in found["answers"]] == [list(c.token_ids) for c in batch.completions]
    assert [answer["prompt_ids"] for answer in found["answers"]] == [[65, 66, 67]] * 5
    assert [answer["reward"] for answer in found["answers"]] == [1.0, 0.0, None, 1.0, 0.0]
    tensors = load_file(folder / "tensors.safetensors")
    for name in ("advantages", "seq_id", "sampler_logprobs", "old_logprobs", "ref_logprobs"):
        assert torch.equal(tensors[name], getattr(batch, name))
    assert [int((tensors[f"weights_{u}"] > 0).sum()) for u in (0, 1)] == [5, 6]
    assert len(said) == 1
    assert str(folder) in said[0]


def test_a_process_that_does_not_write_counts_and_says_all_the_same(
    group: Callable[..., Group], learner: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every rank reaches the end of the run at the same step; one of them writes."""
    breaking(monkeypatch, set(range(1, 9)))
    work = learner([group([1.0, 0.0])])
    for step in range(1, MAX_IN_A_ROW + 1):
        assert not work.guard.has_enough
        _, batch = training_step(work, step)
        work.guard.end(step, batch, tmp_path / "dumps", lambda line: None, write=False)
    assert work.guard.has_enough
    assert not (tmp_path / "dumps").exists()
    with pytest.raises(NotFiniteError, match="checkpoint-3"):
        work.guard.refuse_to_go_on(tmp_path / "checkpoint-3")
    Guard().refuse_to_go_on(tmp_path)


def test_tensors_that_are_not_finite_are_found_by_name() -> None:
    """Whole numbers and empty tensors are finite."""
    whole, empty = ("whole", torch.tensor([1, 2])), ("empty", torch.zeros(0))
    assert first_nonfinite([whole, empty]) is None
    for value in NOT_FINITE:
        assert first_nonfinite([whole, empty, ("bad", torch.tensor([0.0, value]).bfloat16())]) == "bad"


@pytest.mark.parametrize(("save_every", "why"), [(1, CheckpointError), (0, RuntimeError)])
def test_weights_that_are_not_finite_are_never_saved(
    policy: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    save_every: int,
    why: type[Exception],
) -> None:
    """Trial 22: an update that overflows: no checkpoint holds it, neither the next one nor that of the failed step."""
    real, calls = MasterAdamW.step, []

    def overflows(self: MasterAdamW, lr: float, *, scale: float = 1.0) -> None:
        real(self, lr, scale=scale)
        calls.append(1)
        if len(calls) == 2:
            with torch.no_grad():
                policy.model.model.norm.weight[3] = math.inf

    monkeypatch.setattr(MasterAdamW, "step", overflows)
    with pytest.raises(why) as caught:
        run(policy, tmp_path / "run", save_every=save_every)
    said = str(caught.value) if save_every else capsys.readouterr().out
    assert "model.norm.weight are not finite after update 2" in said
    saved = sorted(path.name for path in (tmp_path / "run").glob("*step-*")) + sorted(
        path.name for path in (tmp_path / "run").glob("*checkpoint-*")
    )
    assert saved == (["checkpoint-1"] if save_every else [])
    for name in saved:
        assert first_nonfinite(load_file(tmp_path / "run" / name / "model.safetensors").items()) is None
