"""What a run saves when it ends early: no finished step is lost, and nothing looks like a checkpoint that is none."""

import dataclasses
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.rank_jobs import torchrun
from tests.train.runs import Runs, assert_equal_runs, letters, rows_of, state_of
from tests.train.test_ranks import FAILING, run_to_the_end

import upweight.train.held_out as held_out_room
import upweight.train.run as run_room
import upweight.train.saving.keeper as keeper_room
import upweight.train.step as step_room
from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.rewards.contract import RewardError
from upweight.train.guards import NotFiniteError

EVALUATED: dict[str, Any] = {"eval_rows": [{"prompt": "held out", "answer": "x"}], "eval_every": 1, "save_every": 0}


@pytest.fixture
def runs(tmp_path: Path, policy_of: Callable[..., Policy]) -> Runs:
    return Runs(tmp_path, policy_of)


def saved_in(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("*-[0-9]"))


def evaluated(run: Path) -> list[int]:
    return [row["step"] for row in rows_of(run / "evaluations.jsonl")]


def failing_update(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """An optimiser that has changed the weights when it raises."""
    real, calls = torch.optim.AdamW.step, []

    def fails(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        calls.append(1)
        if len(calls) == number:
            raise RuntimeError("an error of the device")

    monkeypatch.setattr(torch.optim.AdamW, "step", fails)


def test_an_optimiser_that_fails_midway_leaves_a_model_and_no_checkpoint(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first update of step 2: the weights are no longer those of step 1, though no update was finished since."""
    failing_update(monkeypatch, 2)
    with pytest.raises(RuntimeError, match="error of the device"):
        runs("failed", save_every=0)
    assert saved_in(runs.path / "failed") == ["failed-step-2"]


def test_a_step_that_fails_again_leaves_the_weights_of_the_last_attempt(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt's would be taken for them."""
    weights = []
    for number, resume, rate in ((2, None, 1e-3), (1, "auto", 2e-3)):
        with monkeypatch.context() as patch:
            failing_update(patch, number)
            with pytest.raises(RuntimeError, match="error of the device"):
                runs("failed", resume, save_every=1, learning_rate=rate)
        weights.append(load_file(runs.path / "failed" / "failed-step-2" / "model.safetensors"))
    assert saved_in(runs.path / "failed") == ["checkpoint-1", "failed-step-2"]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_failed_evaluation_costs_no_step(runs: Runs) -> None:
    """Nothing was due to be saved since the run began; the run that goes on makes up for the evaluation."""

    def strict(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
        third = (runs.path / "failed" / "rollouts" / "step-00003.jsonl").exists()
        rewards = letters(completions)
        return [math.inf if third and p == "held out" else r for p, r in zip(prompts, rewards, strict=True)]

    strict.__name__ = "letters"
    with pytest.raises(RewardError):
        runs("failed", reward=strict, **EVALUATED)
    assert saved_in(runs.path / "failed") == ["checkpoint-3"]
    assert evaluated(runs.path / "failed") == [0, 1, 2]
    runs("failed", "auto", **EVALUATED)
    runs("straight", **EVALUATED)
    assert_equal_runs(runs.path / "straight", runs.path / "failed", 4)
    assert evaluated(runs.path / "failed") == [0, 1, 2, 3, 4]


def test_a_step_that_could_not_be_shown_is_saved(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the output any more, and the weights are those of the finished step."""
    with monkeypatch.context() as patch:
        show = run_room.Console.step

        def closed(self: Any, report: Any) -> None:
            if report.step == 3:
                raise BrokenPipeError
            show(self, report)

        patch.setattr(run_room.Console, "step", closed)
        with pytest.raises(BrokenPipeError):
            runs("failed", save_every=0)
    assert saved_in(runs.path / "failed") == ["checkpoint-3"]
    runs("failed", "auto", save_every=0)
    runs("straight", save_every=0)
    assert_equal_runs(runs.path / "straight", runs.path / "failed", 4)


@pytest.mark.parametrize("after", [2, 4])
def test_a_signal_ends_an_evaluation_and_going_on_makes_up_for_it(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """In the middle of a run and at its end: an evaluation may take long, and whoever sent the signal does not wait."""
    with monkeypatch.context() as patch:
        real = held_out_room.answered

        def stopped(*args: Any) -> Any:
            metrics = runs.path / "stopped" / "metrics.jsonl"
            if metrics.exists() and len(rows_of(metrics)) == after:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*args)

        patch.setattr(held_out_room, "answered", stopped)
        with pytest.raises(SystemExit) as caught:
            runs("stopped", **EVALUATED)
    assert caught.value.code == 143
    assert saved_in(runs.path / "stopped") == [f"checkpoint-{after}"]
    assert evaluated(runs.path / "stopped") == list(range(after))
    runs("stopped", "auto", **EVALUATED)
    runs("straight", **EVALUATED)
    assert_equal_runs(runs.path / "straight", runs.path / "stopped", 4)
    assert rows_of(runs.path / "stopped" / "evaluations.jsonl") == rows_of(runs.path / "straight" / "evaluations.jsonl")


def losing(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Lose the loss of every step from one on."""
    take, loss, step = run_room.training_step, step_room.policy_loss, [0]

    def numbered(learner: Any, number: int) -> Any:
        step[0] = number
        return take(learner, number)

    def lost(*args: Any, **options: Any) -> Any:
        terms = loss(*args, **options)
        return dataclasses.replace(terms, loss=terms.loss * math.nan) if step[0] >= first else terms

    monkeypatch.setattr(run_room, "training_step", numbered)
    monkeypatch.setattr(step_room, "policy_loss", lost)


def test_steps_in_a_row_that_are_not_finite_are_counted_over_a_kill(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a run that is started again and again would never end; one that has ended over them has all three again."""
    losing(monkeypatch, 2)
    fields: dict[str, Any] = {"max_steps": 6, "save_every": 1, "keep_checkpoints": 0}
    with pytest.raises(NotFiniteError, match="3 steps in a row"):
        runs("whole", **fields)
    runs.killed_after(3, "whole", "killed")
    assert state_of(runs.path / "killed" / "checkpoint-3")["in_a_row"] == 2
    with pytest.raises(NotFiniteError, match="3 steps in a row"):
        runs("killed", "auto", **fields)
    assert_equal_runs(runs.path / "whole", runs.path / "killed", 4)
    assert runs("killed", "auto", **fields).steps == 6


def test_a_run_that_went_back_needs_room_beside_what_it_sets_aside(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """From step 1 of 4: the three later checkpoints stay on the disk, under another name."""
    runs("whole", save_every=1, keep_checkpoints=0)
    monkeypatch.setattr(keeper_room, "free_bytes", lambda path: 20_000_000)
    with pytest.raises(UsageError, match="3 checkpoints of"):
        runs("whole", "whole/checkpoint-1", save_every=1, keep_checkpoints=0)
    assert saved_in(runs.path / "whole") == [f"checkpoint-{step}" for step in (1, 2, 3, 4)]
    runs("whole", "whole", max_steps=5, save_every=1, keep_checkpoints=0, lr_schedule="constant")


@pytest.mark.slow
def test_the_noise_of_every_process_goes_on_where_it_was(tmp_path: Path) -> None:
    """Two processes, whose rewards draw on a noise that each has of its own: steps 4 and 5, a second time."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    code, text = run_to_the_end(torchrun([FAILING, "noise", "0", str(whole)]), 150)
    assert code == 0, text
    shutil.copytree(whole, again)
    for step in (4, 5):
        shutil.rmtree(again / f"checkpoint-{step}")
    code, text = run_to_the_end(torchrun([FAILING, "noise", "0", str(again)]), 150)
    assert code == 0, text
    assert f"going on from {again / 'checkpoint-3'}" in text
    assert_equal_runs(whole, again, 5)
