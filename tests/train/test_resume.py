"""A run that goes on from a checkpoint is the run that was never interrupted, or it is refused."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import upweight.train.folder as folder_room
import upweight.train.keeper as keeper_room
import upweight.train.run as run_room
import upweight.train.trainer as trainer_room
from upweight import TrainArgs, Trainer
from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rewards.contract import RewardError
from upweight.train.checkpoint import CheckpointError, DamagedCheckpoint, write_whole
from upweight.train.launch import Launch
from upweight.train.optimizer import MasterAdamW
from upweight.train.run import TrainResult

ROWS = [{"prompt": f"say {n}", "answer": "x"} for n in range(10)]

TIMES = ("seconds", "sample_seconds", "tokens_per_second")


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


def noisy(completions: list[str], **_: Any) -> list[float]:
    """Draws on every global source of noise."""
    return [random.random() + float(np.random.rand()) + float(torch.rand(())) for _ in completions]


def starved(completions: list[str], **_: Any) -> list[float]:
    """A group has spread now and then."""
    return [float(text[:1].islower()) for text in completions]


class Runs:
    """Trains the small policy in folders under one path."""

    def __init__(self, path: Path, policy_of: Callable[..., Policy]) -> None:
        self.path = path
        self.policy_of = policy_of

    def __call__(
        self,
        name: str,
        resume: str | None = None,
        *,
        rows: Any = ROWS,
        reward: Any = letters,
        eval_rows: Any = None,
        override: bool = False,
        policy: Policy | None = None,
        noise: int | None = None,
        **fields: Any,
    ) -> TrainResult:
        """Four steps with a checkpoint after every second one; `resume` is taken below the path."""
        defaults: dict[str, Any] = {
            "output_dir": str(self.path / name),
            "max_steps": 4,
            "save_every": 2,
            "prompts_per_step": 4,
            "group_size": 4,
            "max_new_tokens": 6,
            "learning_rate": 1e-3,
            "lr_warmup_steps": 1,
            "objective": Objective(kl_coef=0.1),
        }
        chosen = self.policy_of() if policy is None else policy
        where = resume if resume in (None, "auto") else str(self.path / resume)
        launch = Launch(resume=where, resume_override=override)
        args = TrainArgs(**{**defaults, **fields})
        # A new process starts at another place than the one that was killed stood at.
        seed = noise or (5 if resume is None else 6)
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        return Trainer(chosen.model, reward, args, rows, eval_rows, chosen.tokenizer, launch=launch).train()

    def killed_after(self, step: int, whole: str, name: str) -> Path:
        """A copy of a whole run as a kill right after the checkpoint of a step, and a step later, would leave it."""
        shutil.copytree(self.path / whole, self.path / name)
        for checkpoint in (self.path / name).glob("checkpoint-*"):
            if int(checkpoint.name.partition("-")[2]) > step:
                shutil.rmtree(checkpoint)
        metrics = self.path / name / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join(lines[: step + 1]) + lines[-1][:20])
        return self.path / name


@pytest.fixture
def runs(tmp_path: Path, policy_of: Callable[..., Policy]) -> Runs:
    return Runs(tmp_path, policy_of)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows_of(path)]


def state_of(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / "training.json").read_text())
    state["row"] = {k: v for k, v in state["row"].items() if k not in TIMES}
    return state


def assert_equal_runs(one: Path, other: Path, step: int) -> None:
    """Weights, moments, random states, positions, counters, rows, and what was sampled: bit for bit."""
    a, b = one / f"checkpoint-{step}", other / f"checkpoint-{step}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(a / name), load_file(b / name)
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert state_of(a) == state_of(b)
    assert without_times(one / "metrics.jsonl") == without_times(other / "metrics.jsonl")
    assert (one / "rewards.json").read_bytes() == (other / "rewards.json").read_bytes()
    for path in (one / "rollouts").iterdir():
        assert path.read_bytes() == (other / "rollouts" / path.name).read_bytes()
    assert len(list((one / "rollouts").iterdir())) == len(list((other / "rollouts").iterdir()))


CASES: dict[str, dict[str, Any]] = {
    # 10 rows in steps of 4: 4, 4, 2 and again; the kill after step 2 is in the middle of an epoch, step 3 ends it.
    "a KL, over the border of an epoch": {"max_steps": 5, "save_every": 1, "keep_checkpoints": 0},
    "several updates a step, weight decay, a cosine": {
        "objective": Objective(kl_coef=0.0),
        "minibatches": 2,
        "epochs_per_batch": 2,
        "weight_decay": 0.1,
        "lr_schedule": "cosine",
    },
    "top-k": {"top_k": 5, "objective": Objective(kl_coef=0.0)},
    "a reward with noise from Python, numpy and torch": {"reward": noisy, "eval_rows": ROWS[:2], "eval_every": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_going_on_is_the_run_that_was_never_interrupted(runs: Runs, case: str) -> None:
    """Trial 2: two steps, a kill, and the rest equal the whole run, to the bit."""
    fields = CASES[case]
    steps = fields.get("max_steps", 4)
    runs("whole", **fields)
    runs.killed_after(2, "whole", "killed")
    result = runs("killed", "killed/checkpoint-2", **fields)
    assert result.steps == steps
    assert_equal_runs(runs.path / "whole", runs.path / "killed", steps)


def test_bfloat16_weights_go_on_from_their_float32_masters(runs: Runs) -> None:
    """The rounded weights alone would lose the updates that are too small for them."""
    runs("whole", policy=runs.policy_of(0, torch.bfloat16))
    runs.killed_after(2, "whole", "killed")
    runs("killed", "killed", policy=runs.policy_of(0, torch.bfloat16))
    assert_equal_runs(runs.path / "whole", runs.path / "killed", 4)
    moments = load_file(runs.path / "killed" / "checkpoint-4" / "optimizer.safetensors")
    assert any("master" in name for name in moments)


def test_groups_that_a_starved_step_has_kept_are_there_after_a_kill(runs: Runs) -> None:
    """Dynamic sampling with --when_starved skip: they count towards the next step as if nothing had happened."""
    fields: dict[str, Any] = {
        "reward": starved,
        "objective": Objective(kl_coef=0.0, filter_groups=True, resample=True),
        "resample_budget": 1,
        "when_starved": "skip",
        "max_steps": 6,
        "save_every": 1,
        "keep_checkpoints": 0,
        "max_new_tokens": 2,
    }
    runs("whole", **fields)
    held = {n: state_of(runs.path / "whole" / f"checkpoint-{n}")["source"]["held"] for n in range(1, 6)}
    step = next(n for n, groups in held.items() if groups)
    runs.killed_after(step, "whole", "killed")
    runs("killed", "auto", **fields)
    assert_equal_runs(runs.path / "whole", runs.path / "killed", 6)


def test_the_order_of_the_rows_is_that_of_the_whole_run(runs: Runs) -> None:
    """B90: ten rows, two a step: the draws of steps 4 to 8 follow those of steps 1 to 3."""
    fields: dict[str, Any] = {"prompts_per_step": 2, "max_steps": 8, "save_every": 3, "seed": 7}
    runs("whole", **fields)
    runs.killed_after(3, "whole", "killed")
    runs("killed", "killed", **fields)
    drawn = [
        [
            (row["row"], row["draw"])
            for path in sorted((runs.path / name / "rollouts").iterdir())
            for row in rows_of(path)
        ]
        for name in ("whole", "killed")
    ]
    assert drawn[0] == drawn[1]
    assert sorted({row for row, draw in drawn[0] if draw < 10}) == list(range(10))


def test_the_kl_goes_on_where_it_was(runs: Runs) -> None:
    """The reference is the policy before the first step, never the one that goes on."""
    runs("whole", learning_rate=1e-2)
    kl = [row["kl"] for row in rows_of(runs.path / "whole" / "metrics.jsonl")]
    runs.killed_after(2, "whole", "killed")
    runs("killed", "killed", learning_rate=1e-2)
    assert [row["kl"] for row in rows_of(runs.path / "killed" / "metrics.jsonl")] == kl
    assert kl[0] < 1e-6 < 1e-3 < kl[2]
    first = load_file(runs.path / "killed" / "reference" / "model.safetensors")
    assert torch.equal(first["model.embed_tokens.weight"], runs.policy_of().model.model.embed_tokens.weight)


def test_a_damaged_reference_is_refused_and_not_replaced(runs: Runs) -> None:
    """There is no other policy that the KL could be taken to."""
    runs("whole")
    run = runs.killed_after(2, "whole", "killed")
    data = bytearray((run / "reference" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "reference" / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(DamagedCheckpoint, match=r"reference' is damaged: model\.safetensors: SHA-256"):
        runs("killed", "killed")


def test_another_whole_reference_is_refused(runs: Runs) -> None:
    """Its SHA-256 is in the checkpoint."""
    runs("whole")
    run = runs.killed_after(2, "whole", "killed")
    shutil.rmtree(run / "reference")
    write_whole(run / "reference", runs.policy_of(1).save)
    with pytest.raises(UsageError, match="another reference"):
        runs("killed", "killed")


def test_without_a_kl_no_reference_is_kept(runs: Runs) -> None:
    runs("whole", objective=Objective(kl_coef=0.0))
    assert not (runs.path / "whole" / "reference").exists()


def test_auto_passes_over_a_damaged_checkpoint_and_says_so_loudly(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trial 3: the one before is taken; the damaged one is set aside, and nothing is different in the end."""
    runs("whole", save_every=1)
    shutil.copytree(runs.path / "whole", runs.path / "damaged")
    (runs.path / "damaged" / "checkpoint-4" / "optimizer.safetensors").write_bytes(b"")
    capsys.readouterr()
    runs("damaged", "auto", save_every=1)
    out = capsys.readouterr().out
    assert "WARNING: The checkpoint" in out
    assert "optimizer.safetensors: size: 0 bytes" in out
    assert "checkpoint-3" in out
    assert_equal_runs(runs.path / "whole", runs.path / "damaged", 4)
    assert (runs.path / "damaged" / "old-checkpoint-4").exists()


def test_a_damaged_checkpoint_that_was_named_is_an_error(runs: Runs) -> None:
    """Nobody asked for another one; and where all are damaged, auto does not start a run over."""
    runs("whole", save_every=3)
    before = (runs.path / "whole" / "metrics.jsonl").read_bytes()
    for checkpoint in (runs.path / "whole").glob("checkpoint-*"):
        (checkpoint / "model.safetensors").unlink()
    for resume in ("whole/checkpoint-4", "whole"):
        with pytest.raises(DamagedCheckpoint, match=r"checkpoint-4' is damaged: model\.safetensors: missing"):
            runs("whole", resume)
    with pytest.raises(DamagedCheckpoint, match=r"No checkpoint of .* is whole"):
        runs("whole", "auto")
    assert (runs.path / "whole" / "metrics.jsonl").read_bytes() == before


def test_auto_starts_afresh_where_no_run_is_and_where_one_died_before_its_first_checkpoint(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command, whatever happened before: for preemptible machines."""
    runs("new", "auto", noise=5)
    runs("whole")
    assert_equal_runs(runs.path / "whole", runs.path / "new", 4)
    died = runs.path / "died"
    shutil.copytree(runs.path / "whole", died)
    for checkpoint in died.glob("checkpoint-*"):
        checkpoint.rename(died / f"tmp-{checkpoint.name}")
    (died / "lock").write_text("4194304\n")
    capsys.readouterr()
    runs("died", "auto", noise=5)
    assert "removed tmp-checkpoint-4" in capsys.readouterr().out
    assert_equal_runs(runs.path / "whole", died, 4)
    assert list(died.glob("tmp-*")) == []


def test_a_folder_without_a_checkpoint_belongs_to_the_configuration_in_it(runs: Runs) -> None:
    runs("whole")
    for checkpoint in (runs.path / "whole").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(UsageError, match="seed: 0 -> 1"):
        runs("whole", "auto", seed=1)
    assert (runs.path / "whole" / "metrics.jsonl").exists()


def test_auto_needs_to_know_where(runs: Runs) -> None:
    with pytest.raises(UsageError, match=r"--resume auto .*--output_dir"):
        runs("x", "auto", output_dir=None)


@pytest.mark.parametrize(
    ("resume", "words"),
    [("nowhere", "no such folder"), ("file.pt", "unpickled"), ("empty", "no checkpoint"), ("foreign", "not empty")],
)
def test_what_is_no_checkpoint_is_refused(runs: Runs, resume: str, words: str) -> None:
    (runs.path / "file.pt").write_bytes(b"\x80\x04")
    (runs.path / "empty").mkdir()
    (runs.path / "foreign").mkdir()
    (runs.path / "foreign" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=words):
        runs("foreign", "auto") if resume == "foreign" else runs("x", resume, output_dir=None)
    assert sorted(path.name for path in runs.path.iterdir()) == ["empty", "file.pt", "foreign"]


def test_a_run_goes_on_in_its_own_folder(runs: Runs) -> None:
    runs("whole")
    with pytest.raises(UsageError, match=r"goes on in its own folder.*Leave it out"):
        runs("other", "whole/checkpoint-2")
    assert not (runs.path / "other").exists()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"group_size": 8}, "group_size: 4 -> 8"),
        ({"objective": Objective(kl_coef=0.2)}, r"kl_coef: 0\.1 -> 0\.2"),
        ({"temperature": 0.5}, "temperature"),
        ({"reward": starved}, "reward: letters -> starved"),
        ({"rows": ROWS[:9]}, "another data"),
        ({"rows": [*ROWS[:9], {"prompt": "say 9", "answer": "y"}]}, "another data"),
    ],
)
def test_another_run_is_refused_unless_overridden(
    runs: Runs, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], words: str
) -> None:
    """Model, data, objective, seed and batch are what a run is; both values are named."""
    runs("whole", max_steps=2)
    before = (runs.path / "whole" / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match=f"not the run that was begun: .*{words}"):
        runs("whole", "whole", **{"max_steps": 3, **fields})
    assert (runs.path / "whole" / "metrics.jsonl").read_bytes() == before
    capsys.readouterr()
    assert runs("whole", "whole", override=True, **{"max_steps": 3, **fields}).steps == 3
    out = capsys.readouterr().out
    assert "changed: " in out
    elsewhere = "seed" in fields or len(fields.get("rows", ROWS)) < len(ROWS)
    assert ("the data start anew" in out) is elsewhere


def test_another_tokenizer_is_refused(runs: Runs) -> None:
    runs("whole", max_steps=2)
    policy = runs.policy_of()
    policy.tokenizer.add_tokens(["<new>"])
    with pytest.raises(UsageError, match="another tokenizer"):
        runs("whole", "whole", max_steps=3, policy=policy)


def test_another_models_weights_are_refused(runs: Runs) -> None:
    runs("whole", max_steps=2)
    file = runs.path / "whole" / "checkpoint-2" / "config.json"
    policy = runs.policy_of()
    del policy.model.model.layers[1]
    assert file.exists()
    with pytest.raises(UsageError, match=r"layers\.1\..* there and None here"):
        runs("whole", "whole", max_steps=3, policy=policy)


def test_harmless_changes_are_shown_and_taken(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """max_steps says what becomes of the schedule; the warm-up of the learning rate stays what it was."""
    runs("whole", max_steps=2, lr_warmup_steps=None)
    capsys.readouterr()
    runs("whole", "whole", max_steps=3, save_every=1, keep_checkpoints=0, lr_warmup_steps=None)
    out = capsys.readouterr().out
    assert "changed: max_steps: 2 -> 3 (the learning rate follows its schedule over the new number of steps" in out
    assert "changed: save_every: 2 -> 1\n" in out
    assert "lr_warmup_steps" not in out.partition("changed: ")[2]
    assert json.loads((runs.path / "whole" / "config.json").read_text())["max_steps"] == 3


def test_other_threads_or_ranks_are_said_to_be_exact_no_longer(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs("whole", max_steps=2)
    before = keeper_room.made_with(1)
    monkeypatch.setattr(keeper_room, "made_with", lambda ranks: {**before, "ranks": 2, "threads": 9})
    capsys.readouterr()
    runs("whole", "whole", max_steps=3)
    out = capsys.readouterr().out
    assert "changed: ranks: 1 -> 2 (the same up to rounding, no longer to the bit)" in out
    assert f"changed: threads: {before['threads']} -> 9" in out


def test_a_finished_run_says_so_and_goes_further_with_more_steps(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Any] = {"lr_schedule": "constant", "eval_rows": ROWS[:2]}
    runs("whole", max_steps=2, **fields)
    capsys.readouterr()
    again = runs("whole", "whole", max_steps=2, **fields)
    out = capsys.readouterr().out
    assert "the run has taken its 2 steps and is done" in out
    assert "held-out accuracy after" in out
    assert (again.steps, again.checkpoint.name) == (2, "checkpoint-2")
    assert len(rows_of(runs.path / "whole" / "metrics.jsonl")) == 2
    runs("whole", "whole", max_steps=4, **fields)
    runs("straight", max_steps=4, **fields)
    assert_equal_runs(runs.path / "straight", runs.path / "whole", 4)


def test_an_evaluation_that_the_kill_cost_is_made_up_for(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written first, so the evaluation of the same step may be missing."""
    fields: dict[str, Any] = {"eval_rows": ROWS[:2], "eval_every": 2}
    runs("whole", **fields)
    run = runs.killed_after(2, "whole", "killed")
    lines = (run / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluations.jsonl").write_text(lines[0])
    runs("killed", "killed", **fields)
    assert rows_of(run / "evaluations.jsonl") == rows_of(runs.path / "whole" / "evaluations.jsonl")


def test_an_older_checkpoint_may_be_gone_on_from_and_the_later_ones_are_set_aside(runs: Runs) -> None:
    """Nothing that somebody may want back is deleted, and auto never takes it for this run's."""
    runs("whole", save_every=1)
    shutil.copytree(runs.path / "whole", runs.path / "back")
    runs("back", "back/checkpoint-2", save_every=1)
    assert_equal_runs(runs.path / "whole", runs.path / "back", 4)
    names = sorted(path.name for path in (runs.path / "back").glob("*checkpoint-*"))
    assert names == ["checkpoint-2", "checkpoint-3", "checkpoint-4", "old-checkpoint-3", "old-checkpoint-4"]


def test_a_run_that_would_not_fit_on_the_disk_is_refused_before_the_first_step(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 4: both numbers and the way out; 2 checkpoints, one of them still temporary, and the reference."""
    monkeypatch.setattr(keeper_room, "free_bytes", lambda path: 20_000_000)
    with pytest.raises(UsageError, match=r"20\.0 MB .*free.*2 checkpoints of 8\.\d MB.*reference.*--keep_checkpoints"):
        runs("full")
    assert not (runs.path / "full").exists()
    runs("fits", objective=Objective(kl_coef=0.0), save_every=0)


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_the_one_before_intact(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And --resume goes on from there once there is room."""
    whole = folder_room.write_whole

    def full(target: Path, save: Any, **words: Any) -> None:
        def fails(folder: Path) -> None:
            save(folder)
            if target.name == "checkpoint-4":
                raise OSError(28, os.strerror(28))

        whole(target, fails, **words)

    monkeypatch.setattr(folder_room, "write_whole", full)
    with pytest.raises(CheckpointError, match=r"No space left.*needs 8\.\d MB.*checkpoint-2 is as it was"):
        runs("full")
    assert list((runs.path / "full").glob("tmp-*")) == []
    monkeypatch.undo()
    runs("full", "auto")
    runs("whole")
    assert_equal_runs(runs.path / "whole", runs.path / "full", 4)


def test_a_step_that_failed_is_saved_where_it_began(runs: Runs) -> None:
    """The data's position, the random states and the counters are those before the step, not those in its middle."""
    calls = []

    def breaks(completions: list[str], **_: Any) -> list[float]:
        calls.append(len(completions))
        return [float("nan")] * len(completions) if calls.count(16) == 2 else letters(completions)

    breaks.__name__ = "letters"
    with pytest.raises(RewardError):
        runs("failed", reward=breaks, save_every=0)
    assert [path.name for path in (runs.path / "failed").glob("checkpoint-*")] == ["checkpoint-1"]
    runs("failed", "auto", save_every=0)
    runs("straight", save_every=0)
    assert_equal_runs(runs.path / "straight", runs.path / "failed", 4)


def test_weights_from_the_middle_of_a_step_are_a_model_and_no_checkpoint(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two updates fails: nothing could go on from there exactly."""
    step, updates = MasterAdamW.step, []

    def fails(self: Any, lr: float, *, scale: float = 1.0) -> None:
        updates.append(lr)
        if len(updates) == 4:
            raise MemoryError("out of memory")
        step(self, lr, scale=scale)

    monkeypatch.setattr(MasterAdamW, "step", fails)
    with pytest.raises(MemoryError):
        runs("failed", minibatches=2, save_every=1)
    monkeypatch.undo()
    names = sorted(path.name for path in (runs.path / "failed").glob("*-[0-9]"))
    assert names == ["checkpoint-1", "failed-step-2"]
    runs("failed", "auto", minibatches=2, save_every=1)
    runs("straight", minibatches=2, save_every=1)
    assert_equal_runs(runs.path / "straight", runs.path / "failed", 4)


def test_looking_at_a_run_does_not_change_it(runs: Runs) -> None:
    """An evaluation asks rewards that may draw on global noise; the next step finds it as it was."""
    runs("looked", reward=noisy, eval_rows=ROWS[:3], eval_every=1)
    runs("alone", reward=noisy, eval_rows=ROWS[:3])
    ours, theirs = (without_times(runs.path / name / "metrics.jsonl") for name in ("looked", "alone"))
    assert ours == theirs


def test_the_handshake_is_held_again_and_the_warm_up_is_not(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint has the warm-up in it; whether sampler and trainer agree depends on this machine."""
    runs("whole", max_steps=2)
    held: list[str] = []
    shake = run_room.shake_hands
    monkeypatch.setattr(run_room, "shake_hands", lambda *args: held.append("handshake") or shake(*args))
    monkeypatch.setattr(run_room.Run, "_warm_up", lambda self: held.append("warm-up"))
    runs("whole", "whole", max_steps=3)
    assert held == ["handshake"]


def test_a_second_process_is_kept_out_while_a_run_goes_on(runs: Runs) -> None:
    """The folder of a living run is refused to --resume too."""
    runs("whole", max_steps=2)
    folder = folder_room.RunFolder(runs.path / "whole", going_on=True)
    for resume in ("whole", "auto"):
        with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
            runs("whole", resume, max_steps=3)
    folder.release()


def test_a_run_that_went_on_while_this_one_was_loading_is_left_alone(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two restarts at once: the second claims the folder when the first is done, and knows an old checkpoint."""
    runs("whole", max_steps=2)
    find = trainer_room.find_start

    def late(*args: Any) -> Any:
        found = find(*args)
        monkeypatch.setattr(trainer_room, "find_start", find)
        runs("whole", "whole", max_steps=3)
        return found

    monkeypatch.setattr(trainer_room, "find_start", late)
    with pytest.raises(UsageError, match="Another process has gone on"):
        runs("whole", "whole", max_steps=3)
    assert [row["step"] for row in rows_of(runs.path / "whole" / "metrics.jsonl")] == [1, 2, 3]


def test_a_checkpoint_holds_no_pickle(runs: Runs) -> None:
    """Safetensors and JSON, each under the manifest."""
    checkpoint = runs("whole", max_steps=2).checkpoint
    assert {path.suffix for path in checkpoint.iterdir()} <= {".safetensors", ".json", ".jinja", ".txt"}
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert sorted([*files, "manifest.json"]) == sorted(path.name for path in checkpoint.iterdir())


def test_the_configuration_that_is_not_given_is_what_it_was(runs: Runs) -> None:
    """What the run decided stays decided: a budget from the task, a rate from the model's size."""
    runs("whole", max_steps=2, learning_rate=None, lr_warmup_steps=None, max_new_tokens=6)
    begun = json.loads((runs.path / "whole" / "config.json").read_text())
    runs("whole", "whole", max_steps=3, learning_rate=None, lr_warmup_steps=None, max_new_tokens=None, output_dir=None)
    now = json.loads((runs.path / "whole" / "config.json").read_text())
    differing = {name for name in now if now[name] != begun[name]}
    assert differing <= {"max_steps"}
