"""Checkpoints are whole or not there, whatever happens while they are written, and damage is named."""

import errno
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import upweight.train.saving.checkpoint as room
from upweight.objective.errors import UsageError
from upweight.train.saving.checkpoint import (
    CheckpointError,
    DamagedCheckpoint,
    check_whole,
    checkpoints_of,
    fingerprint_of,
    in_units,
    prune,
    remove_leftovers,
    remove_whole,
    step_of,
    write_whole,
)

SOURCES = Path(__file__).resolve().parents[3] / "src"


class Kill(BaseException):
    """Stands for a kill -9: nothing that runs after it may count."""


def save(folder: Path, value: float = 1.0) -> None:
    save_file({"w": np.full(64, value, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "training.json").write_text(json.dumps({"value": value}))
    (folder / "more").mkdir()
    (folder / "more" / "words.txt").write_text("words")


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Kills the writing before its k-th flush or renaming; what went before it, by name."""

    def at(place: int) -> list[str]:
        done: list[str] = []
        sync, replace, discard = room.sync, os.replace, room._discard
        killed = False

        def before(name: str) -> None:
            nonlocal killed
            if len(done) == place:
                killed = True
                raise Kill
            done.append(name)

        def counted_sync(path: Path) -> None:
            before(f"sync {path.name}")
            sync(path)

        def counted_replace(source: Path, target: Path) -> None:
            before(f"rename {target.name}")
            replace(source, target)

        monkeypatch.setattr(room, "sync", counted_sync)
        monkeypatch.setattr(room.os, "replace", counted_replace)
        monkeypatch.setattr(room, "_discard", lambda folder: None if killed else discard(folder))
        return done

    return at


STEPS = 8
"""Flushes and renamings of a checkpoint with three files: three files, the manifest, two folders, the name, the run."""


@pytest.mark.parametrize("place", range(STEPS + 1))
def test_a_kill_at_any_boundary_leaves_a_whole_checkpoint_at_most_one_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: Callable[[int], list[str]], place: int
) -> None:
    """B93: before the renaming the one before is the newest, after it the new one; both pass every check."""
    write_whole(tmp_path / "checkpoint-1", save)
    done = killed_at(place)
    if place < STEPS:
        with pytest.raises(Kill):
            write_whole(tmp_path / "checkpoint-2", lambda folder: save(folder, 2.0))
    else:
        write_whole(tmp_path / "checkpoint-2", lambda folder: save(folder, 2.0))
        assert len(done) == STEPS
    renamed = "rename checkpoint-2" in done
    monkeypatch.undo()
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-2", "checkpoint-1"][not renamed :]
    for checkpoint in checkpoints_of(tmp_path):
        check_whole(checkpoint, needed=("model.safetensors", "training.json"))
    assert remove_leftovers(tmp_path) == ([] if renamed else ["tmp-checkpoint-2"])
    assert {path.name for path in tmp_path.iterdir()} <= {"checkpoint-1", "checkpoint-2"}


@pytest.mark.parametrize("file", ["model.safetensors", "training.json"])
def test_a_kill_within_a_file_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Half of a file has been written, and nothing cleans up."""
    write_whole(tmp_path / "checkpoint-1", save)

    def half(folder: Path) -> None:
        save(folder)
        os.truncate(folder / file, 10)
        monkeypatch.setattr(room, "_discard", lambda folder: None)
        raise Kill

    with pytest.raises(Kill):
        write_whole(tmp_path / "checkpoint-2", half)
    monkeypatch.undo()
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-1"]
    check_whole(tmp_path / "checkpoint-1")
    write_whole(tmp_path / "checkpoint-2", save)  # over what is left
    check_whole(tmp_path / "checkpoint-2")


def test_the_manifest_has_size_and_hash_of_every_file_and_is_flushed_last(
    tmp_path: Path, killed_at: Callable[[int], list[str]]
) -> None:
    """The name comes after it, and the folder that holds the name after that."""
    done = killed_at(99)
    write_whole(tmp_path / "checkpoint-7", save)
    files = json.loads((tmp_path / "checkpoint-7" / "manifest.json").read_text())["files"]
    assert sorted(files) == ["model.safetensors", "more/words.txt", "training.json"]
    words = (tmp_path / "checkpoint-7" / "more" / "words.txt").read_bytes()
    assert files["more/words.txt"] == {"bytes": 5, "sha256": hashlib.sha256(words).hexdigest()}
    assert done[:3] == ["sync model.safetensors", "sync words.txt", "sync training.json"]
    assert done[3] == "sync manifest.json"
    assert done[4:] == ["sync tmp-checkpoint-7", "sync more", "rename checkpoint-7", f"sync {tmp_path.name}"]


def corrupt(file: Path, how: str) -> None:
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "truncated":
        file.write_bytes(data[: len(data) // 2])
    else:
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


@pytest.mark.parametrize("file", ["model.safetensors", "training.json", "more/words.txt", "manifest.json"])
@pytest.mark.parametrize(
    ("how", "check"), [("missing", "missing"), ("empty", "size"), ("truncated", "size"), ("flipped", "SHA-256")]
)
def test_damage_is_named_by_file_and_check(tmp_path: Path, file: str, how: str, check: str) -> None:
    """Trial 3, each file in each way; a manifest cannot vouch for itself, so it is read or not."""
    write_whole(tmp_path / "checkpoint-1", save)
    corrupt(tmp_path / "checkpoint-1" / file, how)
    if file == "manifest.json" and how != "missing":
        check = "missing|size|SHA-256|not the JSON"
    with pytest.raises(DamagedCheckpoint, match=f"checkpoint-1' is damaged: .*({check})") as caught:
        check_whole(tmp_path / "checkpoint-1")
    assert Path(file).name in str(caught.value) or file == "manifest.json"


def test_a_file_that_has_to_be_there_is_missed_though_the_manifest_is_right(tmp_path: Path) -> None:
    write_whole(tmp_path / "checkpoint-1", save)
    with pytest.raises(DamagedCheckpoint, match=r"optimizer\.safetensors: missing"):
        check_whole(tmp_path / "checkpoint-1", needed=("optimizer.safetensors",))


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "optimizer.pt", "more.pkl"])
def test_a_pickle_is_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    """Trial 9: with a manifest that vouches for it, under a harmless name or its own."""
    marker = tmp_path / "it ran"

    def poisoned(folder: Path) -> None:
        save(folder)
        (folder / name).write_bytes(pickle.dumps(Bomb(marker)))

    write_whole(tmp_path / "checkpoint-1", poisoned)
    with pytest.raises(DamagedCheckpoint, match=f"{name}: .*pickle"):
        check_whole(tmp_path / "checkpoint-1")
    assert not marker.exists()
    pickle.loads((tmp_path / "checkpoint-1" / name).read_bytes())
    assert marker.exists()  # the bomb was live


@pytest.mark.parametrize("data", [b"", b"\x00" * 7, b"\xff" * 64, b"\x10" + b"\x00" * 7 + b"[1, 2, 3]       "])
def test_a_file_without_a_header_is_no_safetensors(tmp_path: Path, data: bytes) -> None:
    write_whole(tmp_path / "checkpoint-1", lambda folder: (folder / "x.safetensors").write_bytes(data) and None)
    with pytest.raises(DamagedCheckpoint, match=r"x\.safetensors: not safetensors"):
        check_whole(tmp_path / "checkpoint-1")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_disk_that_is_full_or_fails_costs_the_new_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Trial 4: the one before is whole, nothing half written is left, and the message has both numbers."""
    write_whole(tmp_path / "checkpoint-1", save)

    def fails(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(room, "sync", fails)
    monkeypatch.setattr(room, "free_bytes", lambda path: 2_500_000)
    expected = rf"checkpoint-2 could not be written: {os.strerror(number)}.*needs 5\.0 MB.*2\.5 MB .*free"
    with pytest.raises(CheckpointError, match=expected) as caught:
        write_whole(tmp_path / "checkpoint-2", save, bytes_needed=5_000_000)
    assert "checkpoint-1 is as it was" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    check_whole(tmp_path / "checkpoint-1")


LIMITED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from upweight.train.saving.checkpoint import CheckpointError, check_whole, checkpoints_of, write_whole

run = Path(sys.argv[1])
def save(folder, count=64):
    save_file({"w": np.zeros(count, dtype=np.float32)}, folder / "model.safetensors")
write_whole(run / "checkpoint-1", save)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    write_whole(run / "checkpoint-2", lambda folder: save(folder, 1 << 20), bytes_needed=1 << 22)
except CheckpointError as error:
    print(error)
check_whole(run / "checkpoint-1")
print(sorted(path.name for path in run.iterdir()))
"""


def test_a_file_that_may_not_grow_is_reported_by_whoever_writes_it(tmp_path: Path) -> None:
    """A real limit on the size of a file, met by the safetensors library, which has errors of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "checkpoint-2 could not be written" in done.stdout
    assert "4.2 MB" in done.stdout
    assert done.stdout.endswith("['checkpoint-1']\n")


def test_only_what_a_run_leaves_half_written_is_removed(tmp_path: Path) -> None:
    """In the dumps too; what a person has called tmp-something is theirs."""
    ours = ["dumps/tmp-step-00003", "tmp-checkpoint-4", "tmp-failed-step-5", "tmp-parts-4", "tmp-reference"]
    theirs = ["tmp-mine", "tmp-checkpoint-4-copy", "dumps/tmp-look"]
    for name in (*ours, *theirs):
        (tmp_path / name).mkdir(parents=True)
    files = ["tmp-config.json", "tmp-evaluations.jsonl", "tmp-metrics.jsonl", "tmp-rewards.json"]
    for name in (*files, "tmp-notes.json"):
        (tmp_path / name).touch()
    assert sorted(remove_leftovers(tmp_path)) == sorted([*ours, *files])
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("tmp-*")) == sorted(
        [*theirs, "tmp-notes.json"]
    )


def test_where_flushing_the_parent_fails_the_folder_is_there_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its name already; the message speaks of the one before, and not of itself."""
    write_whole(tmp_path / "checkpoint-1", save)
    flush = room.sync

    def fails(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(path)

    monkeypatch.setattr(room, "sync", fails)
    with pytest.raises(CheckpointError, match=r"checkpoint-2 could not be written.*checkpoint-1 is as it was"):
        write_whole(tmp_path / "checkpoint-2", save)
    check_whole(tmp_path / "checkpoint-2")


def test_another_fault_while_writing_is_not_called_a_full_disk(tmp_path: Path) -> None:
    def wrong(folder: Path) -> None:
        raise KeyError("lm_head")

    with pytest.raises(KeyError):
        write_whole(tmp_path / "checkpoint-2", wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_is_killed_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder loses its name before its files go."""
    write_whole(tmp_path / "checkpoint-1", save)

    def killed(folder: Path) -> None:
        if folder.exists():
            raise Kill

    monkeypatch.setattr(room, "_discard", killed)
    with pytest.raises(Kill):
        remove_whole(tmp_path / "checkpoint-1")
    monkeypatch.undo()
    assert checkpoints_of(tmp_path) == []
    assert remove_leftovers(tmp_path) == ["tmp-checkpoint-1"]


@pytest.mark.parametrize(
    ("keep", "best", "left"), [(0, None, [4, 3, 2, 1]), (2, None, [4, 3]), (2, 1, [4, 3, 1]), (2, 4, [4, 3])]
)
def test_the_newest_stay_and_the_best(tmp_path: Path, keep: int, best: int | None, left: list[int]) -> None:
    """0 keeps all; a best one among the newest is not counted twice."""
    for step in (1, 2, 3, 4):
        write_whole(tmp_path / f"checkpoint-{step}", save)
    removed = prune(tmp_path, keep, best)
    assert [step_of(path) for path in checkpoints_of(tmp_path)] == left
    assert sorted(map(step_of, removed)) == sorted({1, 2, 3, 4} - set(left))


def test_checkpoints_are_ordered_by_number_and_others_are_none(tmp_path: Path) -> None:
    """10 comes after 9; what is only called like one is none."""
    for name in ("checkpoint-9", "checkpoint-10", "tmp-checkpoint-11", "old-checkpoint-12", "checkpoint-x"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-10", "checkpoint-9"]
    assert checkpoints_of(tmp_path / "none") == []
    with pytest.raises(UsageError, match="checkpoint-N"):
        step_of(tmp_path / "checkpoint-x")


def test_a_fingerprint_changes_with_any_file(tmp_path: Path) -> None:
    """Two folders with the same files have the same."""
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        write_whole(tmp_path / name, lambda folder, value=value: save(folder, value))
    a, b, c = (fingerprint_of(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize(("count", "text"), [(12, "12 bytes"), (1000, "1.0 kB (1000 bytes)"), (10**13, "10.0 TB")])
def test_bytes_are_readable_and_exact(count: int, text: str) -> None:
    assert in_units(count).startswith(text)
