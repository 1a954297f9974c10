"""Going on is refused where it would be another run, and what differs is said where it would not."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import ROWS, Runs, letters, rewritten, rows_of, starved

import upweight.train.saving.folder as folder_room
import upweight.train.saving.keeper as keeper_room
import upweight.train.trainer as trainer_room
from upweight import TrainArgs, Trainer
from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.train.launch import Launch
from upweight.train.saving.checkpoint import DamagedCheckpoint, write_whole
from upweight.train.saving.state import made_with


@pytest.fixture
def runs(tmp_path: Path, policy_of: Callable[..., Policy]) -> Runs:
    return Runs(tmp_path, policy_of)


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


def test_other_threads_ranks_or_parts_are_said_to_be_exact_no_longer(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs("whole", max_steps=2)
    before = keeper_room.made_with(1, "none")
    changed = {**before, "ranks": 2, "threads": 9, "shard": "full"}
    monkeypatch.setattr(keeper_room, "made_with", lambda ranks, shard: changed)
    capsys.readouterr()
    runs("whole", "whole", max_steps=3)
    out = capsys.readouterr().out
    assert "changed: ranks: 1 -> 2 (the same up to rounding, no longer to the bit)" in out
    assert f"changed: threads: {before['threads']} -> 9" in out
    assert "changed: shard: none -> full (the same up to rounding" in out


def test_a_run_that_would_not_fit_on_the_disk_is_refused_before_the_first_step(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 4: both numbers and the way out; 2 checkpoints, one of them still temporary, and the reference."""
    monkeypatch.setattr(keeper_room, "free_bytes", lambda path: 20_000_000)
    with pytest.raises(UsageError, match=r"20\.0 MB .*free.*2 checkpoints of 8\.\d MB.*reference.*--keep_checkpoints"):
        runs("full")
    assert not (runs.path / "full").exists()
    runs("fits", objective=Objective(kl_coef=0.0), save_every=0)


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


def test_one_process_shards_nothing() -> None:
    """So that `--shard full` on one process is no change."""
    assert [made_with(ranks, "full")["shard"] for ranks in (1, 2)] == ["none", "full"]


def test_another_number_of_processes_is_said_to_change_the_noise_of_rewards(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """The states are one for each of the old processes."""
    checkpoint = runs("whole", max_steps=2).checkpoint
    (state,) = json.loads((checkpoint / "training.json").read_text())["random"]
    runs("whole", "whole", max_steps=2)
    assert "noise" not in capsys.readouterr().out
    rewritten(checkpoint, random=[state, state])
    runs("whole", "whole", max_steps=3)
    assert "changed: rewards that draw on Python's, numpy's or torch's noise draw otherwise" in capsys.readouterr().out


def test_a_kl_is_refused_to_a_run_that_was_begun_without_one(runs: Runs) -> None:
    """There is no policy it could be taken to; nothing of the run is changed, whatever is overridden."""
    runs("whole", max_steps=2, objective=Objective(kl_coef=0.0))
    before = {path: path.read_bytes() for path in (runs.path / "whole").rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"has no reference policy.*Leave --kl_coef at 0.*--model .*checkpoint-2"):
        runs("whole", "whole", max_steps=3, override=True, objective=Objective(kl_coef=0.1))
    assert {path: path.read_bytes() for path in (runs.path / "whole").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("override", [False, True])
def test_a_model_that_would_not_be_loaded_is_refused(runs: Runs, override: bool) -> None:
    """The checkpoint's weights are: config.json would name another model than the one that is trained."""
    runs("whole", max_steps=2)
    launch = Launch(resume=str(runs.path / "whole"), resume_override=override)
    with pytest.raises(UsageError, match=r"--model other is not loaded.*checkpoint-2.*a new run without --resume"):
        Trainer("other", letters, TrainArgs(), ROWS, launch=launch).check()
