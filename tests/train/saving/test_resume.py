"""A run that goes on from a checkpoint is the run that was never interrupted."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs import ROWS, Runs, assert_equal_runs, letters, noisy, rows_of, starved, state_of, without_times

import upweight.train.run as run_room
import upweight.train.saving.folder as folder_room
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rewards.contract import RewardError
from upweight.train.optimizer import MasterAdamW
from upweight.train.saving.checkpoint import CheckpointError


@pytest.fixture
def runs(tmp_path: Path, policy_of: Callable[..., Policy]) -> Runs:
    return Runs(tmp_path, policy_of)


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
