"""The run folder: claimed once, written row by row, checkpoints whole or absent."""

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import left_in

from upweight.objective.errors import UsageError
from upweight.train.args import TrainArgs
from upweight.train.ranks import Ranks
from upweight.train.records import Group
from upweight.train.saving.begun import flat_config
from upweight.train.saving.folder import RunFolder, check_free, metrics_row, read_rows
from upweight.train.step import Learner, training_step


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def rows_of(path: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_folder_that_holds_anything_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    """A run never writes over another."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"not empty.*--output_dir"):
        RunFolder(tmp_path)
    assert everything_in(tmp_path) == {"notes.txt": b"mine"}


def test_a_claimed_folder_is_refused_with_the_owners_process(tmp_path: Path) -> None:
    """Two runs at once: the second is told who has it."""
    first = RunFolder(tmp_path / "run")
    before = everything_in(tmp_path)
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        RunFolder(tmp_path / "run")
    assert everything_in(tmp_path) == before
    first.release()
    with pytest.raises(UsageError, match="not empty"):
        check_free(tmp_path / "run")


def test_a_race_for_an_empty_folder_has_one_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen it empty; the lock decides."""
    import upweight.train.saving.folder as room

    first = RunFolder(tmp_path / "run")
    monkeypatch.setattr(room, "check_free", lambda path: None)
    before = everything_in(tmp_path)
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        RunFolder(tmp_path / "run")
    assert everything_in(tmp_path) == before
    first.release()
    RunFolder(tmp_path / "run").release()


def test_a_number_that_another_process_has_by_now_keeps_nobody_out(tmp_path: Path) -> None:
    """The kernel's lock died with its holder; the number in the file is that of a living process."""
    (tmp_path / "lock").write_text(f"{os.getppid()}\n")
    folder = RunFolder(tmp_path, going_on=True)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    folder.release()
    assert not (tmp_path / "lock").exists()


def test_where_there_are_no_file_locks_the_number_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none: a living process keeps the folder, a dead one does not."""
    import upweight.train.saving.lock as room

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(room.fcntl, "flock", unsupported)
    (tmp_path / "lock").write_text(f"{os.getppid()}\n")
    with pytest.raises(UsageError, match=f"in use by process {os.getppid()}"):
        RunFolder(tmp_path, going_on=True)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / "lock").write_bytes(gone.stdout)
    RunFolder(tmp_path, going_on=True).release()


def test_the_lock_is_the_new_file_where_its_last_holder_took_the_old_one_away(tmp_path: Path) -> None:
    """Whoever waits at the old file would hold a lock that nobody else sees."""
    import fcntl

    first = RunFolder(tmp_path / "run")
    waiting = os.open(tmp_path / "run" / "lock", os.O_RDWR)
    first.release()
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = RunFolder(tmp_path / "run", going_on=True)
    with pytest.raises(UsageError, match="in use"):
        RunFolder(tmp_path / "run", going_on=True)
    second.release()
    os.close(waiting)


def test_looking_whose_a_folder_is_keeps_nobody_from_taking_it(tmp_path: Path) -> None:
    """Two may look at once, and who takes the lock waits for a look to be over."""
    import fcntl

    from upweight.train.saving.lock import FolderLock, owner_of

    path = tmp_path / "lock"
    path.touch()
    looking = os.open(path, os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert owner_of(path) is None
    over = threading.Timer(0.05, os.close, (looking,))
    over.start()
    lock = FolderLock(path)
    assert owner_of(path) == str(os.getpid())
    over.join()
    lock.release()


def test_a_folder_with_a_run_names_three_ways_out(tmp_path: Path) -> None:
    """Go on with it, another name, move it away."""
    (tmp_path / "config.json").write_text(json.dumps(flat_config(TrainArgs())))
    with pytest.raises(UsageError, match=r"--resume auto.*--output_dir.*move the folder away"):
        check_free(tmp_path)


def test_the_lock_of_a_dead_process_claims_nothing(tmp_path: Path) -> None:
    """A killed run leaves its lock; its folder is refused because it holds a run, not because it is in use."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / "lock").write_bytes(gone.stdout)
    with pytest.raises(UsageError, match="not empty"):
        check_free(tmp_path)


@pytest.mark.parametrize("lock", ["9" * 20, "no number", None])
def test_a_lock_that_no_run_wrote_claims_nothing(tmp_path: Path, lock: str | None) -> None:
    """A number that is no process, a text, a folder."""
    if lock is None:
        (tmp_path / "lock").mkdir()
    else:
        (tmp_path / "lock").write_text(lock)
    with pytest.raises(UsageError, match="not empty"):
        check_free(tmp_path)


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    """Before a model is loaded."""
    with pytest.raises(UsageError, match=r"cannot be used.*--output_dir"):
        check_free(tmp_path / ("a" * 300))


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    """Also where it is a parent of the folder."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match="run folder"):
            RunFolder(path)
    assert everything_in(tmp_path) == {"file": b"x"}


def test_an_empty_folder_and_one_that_is_not_there_are_free(tmp_path: Path) -> None:
    """Parents are made; checking alone makes nothing."""
    check_free(tmp_path)
    check_free(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    folder = RunFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "rollouts").is_dir()
    folder.release()


def test_a_run_that_never_took_a_step_leaves_no_folder(tmp_path: Path) -> None:
    """So that the same command can be given again; a checkpoint is kept, and files that are not the run's are."""
    stopped, saved, foreign = (RunFolder(tmp_path / name) for name in ("stopped", "saved", "foreign"))
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    saved.write_checkpoint(0, lambda path: None)
    for folder in (stopped, saved, foreign):
        folder.write_config({"seed": 1})
        folder.discard_if_unused()
        folder.release()
    assert not (tmp_path / "stopped").exists()
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == {"seed": 1}
    assert (tmp_path / "foreign" / "notes.txt").read_text() == "mine"


def test_a_folder_is_removed_while_it_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that has claimed it meanwhile would lose what it has in it."""
    import upweight.train.saving.folder as room

    owners = []
    real = room.shutil.rmtree

    def remove(path: Path, **options: Any) -> None:
        owners.append(room.owner_of(tmp_path / "run" / "lock"))
        real(path, **options)

    monkeypatch.setattr(room.shutil, "rmtree", remove)
    folder = RunFolder(tmp_path / "run")
    folder.write_config({"seed": 1})
    (folder.path / "reference").mkdir()
    folder.discard_if_unused()
    folder.release()
    assert owners == [str(os.getpid())]
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    """The step that failed may have been saved already."""
    folder = RunFolder(tmp_path / "run")
    for text in ("first", "second"):
        folder.write_checkpoint(3, lambda target, text=text: (target / "weights").write_text(text) and None)
    assert (folder.path / "checkpoint-3" / "weights").read_text() == "first"
    assert [p.name for p in folder.path.glob("*checkpoint*")] == ["checkpoint-3"]
    folder.release()


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    """--keep_checkpoints 2: step 1 was the best on held-out problems."""
    folder = RunFolder(tmp_path / "run")
    for step, accuracy in enumerate([0.1, 0.9, 0.5, None, 0.2, 0.3]):
        folder.write_checkpoint(step, lambda target: (target / "weights").write_text("w") and None, keep=2)
        folder.write_evaluation({"step": step, "accuracy": accuracy})
    assert sorted(p.name for p in folder.path.glob("*checkpoint*")) == ["checkpoint-1", "checkpoint-4", "checkpoint-5"]
    folder.release()


def test_what_came_after_a_step_is_cut_off_with_the_half_written_line(tmp_path: Path, report_of: Any) -> None:
    """Trial 8: rows beyond the checkpoint, a line that a kill cut, later rollouts; later checkpoints are set aside."""
    folder = RunFolder(tmp_path / "run")
    for step in range(5):
        folder.write_metrics(report_of(step)) if step else None
        folder.write_evaluation({"step": step, "accuracy": 0.5})
        (folder.path / "rollouts" / f"step-{step:05d}.jsonl").write_text("{}\n")
        folder.write_checkpoint(step, lambda target: (target / "weights").write_text("w") and None)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (folder.path / name).open("a") as file:
            file.write('{"step": 5, "rew')
    folder.cut_back(2, metrics_row(report_of(2)))
    assert [row["step"] for row in rows_of(folder.path / "metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in rows_of(folder.path / "evaluations.jsonl")] == [0, 1, 2]
    assert [path.name for path in sorted((folder.path / "rollouts").iterdir())] == [
        "step-00000.jsonl",
        "step-00001.jsonl",
        "step-00002.jsonl",
    ]
    assert sorted(path.name for path in folder.path.glob("*checkpoint*")) == [
        "checkpoint-0",
        "checkpoint-1",
        "checkpoint-2",
        "old-checkpoint-3",
        "old-checkpoint-4",
    ]
    folder.release()


def test_what_is_not_called_as_the_run_calls_it_is_left_alone(tmp_path: Path) -> None:
    """Among rollouts and dumps: a copy, a note, a folder that is called like a file."""
    folder = RunFolder(tmp_path / "run")
    theirs = ["rollouts/step-mine.jsonl", "rollouts/step-00009.jsonl.bak", "dumps/step-copy/x", "dumps/step-7"]
    for name in (*theirs, "rollouts/step-00008.jsonl/x", "rollouts/step-00009.jsonl", "dumps/step-00009/x"):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text("x")
    folder.cut_back(3, None)
    left = [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()]
    assert sorted(left) == sorted(["lock", *theirs, "rollouts/step-00008.jsonl/x"])
    folder.release()


def test_rows_that_no_run_wrote_are_found_before_any_file_is_cut(tmp_path: Path, report_of: Any) -> None:
    folder = RunFolder(tmp_path / "run")
    for step in (1, 2):
        folder.write_metrics(report_of(step))
    (folder.path / "evaluations.jsonl").write_text("garbage\n")
    before = everything_in(tmp_path)
    with pytest.raises(UsageError, match=r"evaluations\.jsonl, line 1"):
        folder.cut_back(1, None)
    assert everything_in(tmp_path) == before
    folder.release()


def test_a_start_is_set_aside_and_what_is_not_the_runs_stays(tmp_path: Path, report_of: Any) -> None:
    """The configuration stays as well, so the folder is a run's at every moment; a second one has a name of its own."""
    folder = RunFolder(tmp_path / "run")
    (folder.path / "notes.txt").write_text("mine")
    for name in ("old-start", "old-start-2"):
        folder.write_config({"seed": 1})
        folder.write_metrics(report_of(1))
        folder.write_evaluation({"step": 0, "accuracy": 0.5})
        folder.write_rewards({})
        for file in ("reference/w", "rollouts/step-00001.jsonl", "rollouts/mine.txt", "dumps/step-00001/w"):
            (folder.path / file).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / file).write_text("w")
        before = {name for name in everything_in(folder.path) if not name.startswith("old-")}
        aside = folder.set_start_aside()
        assert aside == folder.path / name
        stays = {"config.json", "lock", "notes.txt", "rollouts/mine.txt"}
        assert {name for name in everything_in(folder.path) if not name.startswith("old-")} == stays
        assert set(everything_in(aside)) == before - stays | {"config.json"}
    assert folder.set_start_aside() is None
    folder.release()


def test_a_start_that_was_refused_or_is_not_alone_in_its_folder_takes_nothing_away(tmp_path: Path) -> None:
    """Refused: the configuration of the start before is there. Not alone: the next auto finds a run."""
    first = RunFolder(tmp_path / "run")
    first.write_config({"seed": 1})
    (first.path / "reference").mkdir()
    first.release()
    before = left_in(tmp_path)
    refused = RunFolder(tmp_path / "run", going_on=True)
    refused.discard_if_unused()
    refused.release()
    assert left_in(tmp_path) == before
    again = RunFolder(tmp_path / "run", going_on=True)
    again.write_config({"seed": 1})
    (again.path / "notes.txt").write_text("mine")
    again.discard_if_unused()
    again.release()
    assert left_in(tmp_path) == before | {"run/notes.txt": b"mine"}


@pytest.mark.parametrize("way", ["folder", "link to nowhere"])
def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path, way: str) -> None:
    """Another --output_dir would be no way out for a run that goes on."""
    if way == "folder":
        (tmp_path / "lock").mkdir()
    else:
        (tmp_path / "lock").symlink_to(tmp_path / "none" / "lock")
    before = left_in(tmp_path)
    with pytest.raises(UsageError, match=r"lock', the file by which .*Move it away\.$"):
        RunFolder(tmp_path, going_on=True)
    assert left_in(tmp_path) == before


def test_whoever_goes_on_with_a_run_in_use_is_told_to_wait(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()}.*wait until that one has ended"):
        RunFolder(tmp_path / "run", going_on=True)
    first.release()


def test_a_row_that_a_power_failure_lost_is_written_again(tmp_path: Path, report_of: Any) -> None:
    """The checkpoint has the last one."""
    folder = RunFolder(tmp_path / "run")
    folder.write_metrics(report_of(1))
    folder.cut_back(2, metrics_row(report_of(2, reward=0.25)))
    assert [(row["step"], row["reward"]) for row in rows_of(folder.path / "metrics.jsonl")] == [(1, None), (2, 0.25)]
    folder.release()


def test_readers_skip_a_half_written_last_line_with_a_warning(tmp_path: Path) -> None:
    """A broken line anywhere else is no accident of a kill."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    with pytest.warns(UserWarning, match="half written"):
        assert read_rows(file) == [{"step": 1}, {"step": 2}]
    file.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(UsageError, match=r"line 2 .*the run goes on without that row"):
        read_rows(file)
    assert read_rows(tmp_path / "none.jsonl") == []


def test_of_several_processes_only_the_first_writes(tmp_path: Path, report_of: Any) -> None:
    """The others hold no lock, and leave nothing."""
    folder = RunFolder(tmp_path / "run", ranks=Ranks(rank=1, world=2))
    folder.write_config({"seed": 1})
    folder.write_metrics(report_of(1))
    folder.write_evaluation({"step": 0})
    folder.cut_back(0, None)
    folder.write_checkpoint(1, lambda target: None)
    folder.discard_if_unused()
    folder.release()
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite_become_null(tmp_path: Path, report_of: Callable[..., Any]) -> None:
    """A row is JSON that every reader accepts; a missing number is null, never 0."""
    folder = RunFolder(tmp_path / "run")
    folder.write_metrics(report_of(1, loss=math.nan, grad_norm=math.inf, reward=None, kl=0.25))
    folder.write_evaluation({"step": 0, "accuracy": math.nan, "n": 0})
    [row] = rows_of(folder.path / "metrics.jsonl")
    assert (row["loss"], row["grad_norm"], row["reward"], row["kl"]) == (None, None, None, 0.25)
    assert rows_of(folder.path / "evaluations.jsonl") == [{"step": 0, "accuracy": None, "n": 0}]


def test_metrics_have_a_row_a_step_with_the_promised_keys(tmp_path: Path, report_of: Callable[..., Any]) -> None:
    """The keys of the design, and more."""
    folder = RunFolder(tmp_path / "run")
    for step in (1, 2):
        folder.write_metrics(report_of(step))
    rows = rows_of(folder.path / "metrics.jsonl")
    promised = "step reward informative resp_len clipfrac kl entropy grad_norm loss lr tokens seconds".split()  # noqa: SIM905
    assert [row["step"] for row in rows] == [1, 2]
    assert [key for key in promised if key not in rows[0]] == []


def test_rollouts_say_what_was_asked_answered_and_judged(
    tmp_path: Path, group: Callable[..., Group], learner: Callable[..., Learner]
) -> None:
    """One line an answer, in any script, with null for an answer that was not judged."""
    made = group([1.0, math.nan], [2, 3], row=5, draw=9)
    made = dataclasses.replace(made, texts=("f\u00fcnf\u2028", "6"))
    _, batch = training_step(learner([made]), 1)
    folder = RunFolder(tmp_path / "run")
    folder.write_rollouts(12, batch)
    text = (folder.path / "rollouts" / "step-00012.jsonl").read_text(encoding="utf-8")
    first, second = (json.loads(line) for line in text.removesuffix("\n").split("\n"))
    assert (first["step"], first["row"], first["draw"], first["sample"]) == (12, 5, 9, 0)
    assert (first["prompt"], first["answer"], first["completion"]) == ("abc", "1", "f\u00fcnf\u2028")
    assert (first["tokens"], first["finish_reason"], first["reward"], first["status"]) == (2, "stop", 1.0, "scored")
    assert (second["sample"], second["reward"], second["status"], second["why"]) == (1, None, "error", "raised")
