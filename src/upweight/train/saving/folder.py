"""The run folder: claimed by one run, written row by row, never over another run."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError, bad_parameter
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Batch, Group, StepReport
from upweight.train.redact import redacted
from upweight.train.saving.begun import is_of_a_run
from upweight.train.saving.checkpoint import (
    TEMPORARY,
    checkpoints_of,
    leftovers_of,
    prune,
    remove_whole,
    step_of,
    sync,
    write_whole,
)
from upweight.train.saving.held import why_told
from upweight.train.saving.lock import FolderLock, Taken, owner_of
from upweight.train.saving.reading import object_in, read_object, rows_in

LOCK = "lock"

REFERENCE = "reference"
"""The folder that keeps the reference policy of a run with a KL."""

_FILES = ("metrics.jsonl", "evaluations.jsonl", "rewards.json", "curve.png")
"""Of a run, beside config.json."""

_FOLDERS = ("rollouts", "dumps")
"""Of a run, with something for a step in them."""

_ROLLOUTS, _DUMP = re.compile(r"step-([0-9]+)\.jsonl"), re.compile(r"step-([0-9]+)")
"""What a run calls it; anything else there is somebody's."""

_ROWS = ("metrics.jsonl", "evaluations.jsonl")
"""Of them those with a row a step."""

_NEEDED = {"evaluations.jsonl": ("accuracy",)}
"""What a row of a file has besides the step."""


def check_free(path: str | Path) -> None:
    """Refuse a folder that holds something, or that another process has claimed.

    Raises:
        UsageError: saying which, and the ways out.
    """
    folder = Path(path)
    if not str(path).strip():
        raise bad_parameter(
            "output_dir", "TrainArgs", "the name of a folder", str(path), "Leave it out for a new name."
        )
    try:
        above = next((parent for parent in folder.absolute().parents if parent.exists()), None)
        if above is not None and not above.is_dir():
            raise UsageError(f"The run folder {str(folder)!r} cannot be made: {str(above)!r} is a file.")
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"The run folder {str(folder)!r} is a file. Choose another --output_dir.")
        if not folder.is_dir() or not any(folder.iterdir()):
            return
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise UsageError(
            f"The run folder {str(folder)!r} cannot be used: {error.strerror}. Choose another --output_dir."
        ) from error
    refuse_taken(folder)
    if has_run(folder):
        raise UsageError(
            f"The run folder {str(folder)!r} is not empty: it holds a run, and a run never writes over another. Go on "
            "with that one (--resume auto), choose another --output_dir (or leave it out for a new name), or move the "
            "folder away."
        )
    raise UsageError(
        f"The run folder {str(folder)!r} is not empty, and a run never writes over another. Choose another "
        "--output_dir, leave it out for a new name, or move the folder away."
    )


def has_run(folder: Path) -> bool:
    """Whether a folder holds a run: checkpoints, the configuration of one, or no more than what one begins with.

    Raises:
        UsageError: nothing but a config.json could tell, and that cannot be read.
    """
    if checkpoints_of(folder):
        return True
    file = folder / "config.json"
    if os.path.lexists(file):
        way_out = "Nothing else says how the run was begun: put it back, or choose another --output_dir."
        return is_of_a_run(read_object(file, way_out))
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()} - {path.name for path in leftovers_of(folder)}
    return bool(names) and names <= {LOCK, "rollouts"} and not any((folder / "rollouts").glob("*"))


def check_names(folder: Path) -> None:
    """Refuse a folder in which something else has a name that a run needs; it would be written over, or be in the way.

    Raises:
        UsageError: naming it.
    """
    for name in (LOCK, "config.json", *_FILES):
        if (folder / name).is_dir():
            raise UsageError(f"{str(folder / name)!r} is a folder, and a run writes a file of that name: move it away.")
    for name in (*_FOLDERS, REFERENCE):
        if os.path.lexists(folder / name) and not (folder / name).is_dir():
            raise UsageError(f"{str(folder / name)!r} is no folder, and a run makes one of that name: move it away.")
    file = folder / "config.json"
    try:
        foreign = file.exists() and not is_of_a_run(object_in(file.read_bytes()))
    except ValueError:  # cut by a power failure: written anew
        foreign = False
    if foreign:
        raise UsageError(f"{str(file)!r} is not one that a run wrote, and a run writes over it: move it away.")


def refuse_taken(folder: Path, *, going_on: bool = False) -> None:
    """Refuse a folder that a living process has claimed.

    Args:
        folder: of the run.
        going_on: whether the run in it was to go on; the way out is another then.

    Raises:
        UsageError: with the number of the process.
    """
    owner = owner_of(folder / LOCK)
    if owner is not None:
        raise _in_use(folder, owner, going_on)


def _in_use(folder: Path, owner: str, going_on: bool) -> UsageError:
    way_out = (
        "One process at a time goes on with a run: wait until that one has ended, or end it."
        if going_on
        else "Choose another --output_dir, or leave it out for a new name."
    )
    return UsageError(f"The run folder {str(folder)!r} is in use by process {owner}. {way_out}")


class RunFolder:
    """A claimed run folder: config.json, metrics.jsonl, rollouts/, checkpoint-N/.

    Of several processes the first claims and writes it; the others' calls do nothing.
    """

    def __init__(self, path: str | Path, *, going_on: bool = False, ranks: Ranks = ALONE) -> None:
        """Create and claim it.

        Args:
            path: of the folder.
            going_on: with the run that is in it; otherwise it has to be empty.
            ranks: the processes of the run.

        Raises:
            UsageError: it is not free, or cannot be made.
        """
        self.path = Path(path)
        self.going_on = going_on
        self.ranks = ranks
        self._lock: FolderLock | None = None
        self._begun = False
        if not ranks.first:
            return
        if not going_on:
            check_free(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"The run folder {str(path)!r} cannot be made: {error.strerror}. Choose another --output_dir."
            ) from error
        try:
            self._lock = FolderLock(self.path / LOCK)
        except Taken as taken:
            raise _in_use(self.path, str(taken), going_on) from taken
        except OSError as error:
            lock = self.path / LOCK
            if os.path.lexists(lock):
                raise UsageError(
                    f"{str(lock)!r}, the file by which a process claims a run, cannot be written: {error.strerror}. "
                    "Move it away."
                ) from error
            raise UsageError(
                f"The run folder {str(path)!r} cannot be written to: {error.strerror}."
                + ("" if going_on else " Choose another --output_dir.")
            ) from error
        if not going_on:
            (self.path / "rollouts").mkdir(exist_ok=True)

    def release(self) -> None:
        """Give the claim back; the folder stays."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def discard_if_unused(self) -> None:
        """Remove the folder of a run that ended before its first step and left no checkpoint, and give the claim back.

        Called while it is claimed: what another process has in it by then would be removed with it. Where there is
        anything in it that this start has not written, all stays, for the next `--resume auto`.
        """
        if not self.ranks.first or (self.path / "metrics.jsonl").exists() or checkpoints_of(self.path):
            return
        if self._begun:
            ours = {LOCK, "config.json", "evaluations.jsonl", REFERENCE, "rollouts"}
            if {path.name for path in self.path.iterdir()} - ours or any((self.path / "rollouts").glob("*")):
                return
            (self.path / "evaluations.jsonl").unlink(missing_ok=True)
            shutil.rmtree(self.path / REFERENCE, ignore_errors=True)
            (self.path / "config.json").unlink(missing_ok=True)  # last, as it says that this is a run
        elif self.going_on:
            return
        with contextlib.suppress(OSError):
            (self.path / "rollouts").rmdir()
        self.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """The resolved configuration, flat, as the flags are spelled; from here on the folder is this run's."""
        self._begun = True
        self._replace("config.json", json.dumps(redacted(config), indent=2, allow_nan=False) + "\n")

    def write_metrics(self, report: StepReport) -> None:
        """Append a row to metrics.jsonl; numbers that are not finite become null."""
        self._append("metrics.jsonl", metrics_row(report))

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Append a row to evaluations.jsonl."""
        self._append("evaluations.jsonl", {name: _plain(value) for name, value in row.items()})

    def write_rewards(self, rewards: Mapping[str, Mapping[str, Any]]) -> None:
        """Each reward function's weight and counts in rewards.json, in place of those of the step before."""
        # After every step, and nothing goes on from it: not flushed to the disk.
        self._replace("rewards.json", json.dumps(redacted(rewards), indent=2, allow_nan=False) + "\n", flush=False)

    def write_rollouts(self, step: int, batch: Batch) -> None:
        """One file a step, an answer a line: the prompt, the text, the verdict."""
        if not self.ranks.first:
            return
        with (self.path / "rollouts" / f"step-{step:05d}.jsonl").open("w", encoding="utf-8") as file:
            for group in batch.groups:
                for row in _rollout_rows(group):
                    file.write(json.dumps({"step": step, **row}, ensure_ascii=False, allow_nan=False) + "\n")

    def write_checkpoint(
        self, step: int, save: Callable[[Path], None], *, keep: int = 0, bytes_needed: int | None = None
    ) -> Path:
        """checkpoint-N/, whole or not at all; then the ones that are not kept any more go.

        Args:
            step: N. Where that checkpoint is there already, it stays.
            save: writes into the folder it is given.
            keep: the newest that stay, beside the one with the best held-out accuracy; 0 = all.
            bytes_needed: for the message where there is no room.

        Raises:
            CheckpointError: it could not be written; the ones before it are as they were.
        """
        target = self.path / f"checkpoint-{step}"
        if self.ranks.first and not target.exists():
            for name in _ROWS:  # a power failure may not leave them behind it
                if (self.path / name).exists():
                    sync(self.path / name)
            write_whole(target, save, bytes_needed=bytes_needed)
            prune(self.path, keep, best_step(self.path))
        return target

    def cut_back(self, step: int, row: Mapping[str, Any] | None) -> None:
        """Take away what came after a step, so that the run can go on from there without a step twice.

        Rows and rollouts of later steps go, and a line that a kill has left half written; a later checkpoint is set
        aside under another name. A kill meanwhile changes nothing about what the next attempt leaves.

        Args:
            step: the last that stays.
            row: of metrics.jsonl at that step, written again where a power failure has lost it.

        Raises:
            UsageError: a row that no run wrote; nothing is changed then.
        """
        if not self.ranks.first:
            return
        kept = {name: [found for found in _rows(self.path / name)[0] if found["step"] <= step] for name in _ROWS}
        rows = kept["metrics.jsonl"]
        if row is not None and (not rows or rows[-1]["step"] != step):
            rows.append(dict(row))
        for name, rows in kept.items():
            if rows:
                self._replace(name, "".join(json.dumps(found, allow_nan=False) + "\n" for found in rows))
            else:
                (self.path / name).unlink(missing_ok=True)
        for path, of in self._of_steps():
            if of > step:
                path.unlink() if path.is_file() else remove_whole(path)
        (self.path / "rollouts").mkdir(exist_ok=True)
        for checkpoint in checkpoints_of(self.path):
            if step_of(checkpoint) > step:
                set_aside(checkpoint)

    def set_start_aside(self) -> Path | None:
        """Clear the way for a run that starts afresh in a folder whose run has no checkpoint: nothing of it is lost.

        Its files go into `old-start`, or `old-start-2` and so on; its config.json stays as well, so that the folder is
        a run's at every moment. What is not the run's stays where it is.

        Returns:
            Where the files are; None where there were none, or on another process than the first.
        """
        if not self.ranks.first:
            return None
        (self.path / "rollouts").mkdir(exist_ok=True)
        found = [path for path in (self.path / name for name in _FILES) if path.exists()]
        found += [path for path, _ in self._of_steps()]
        if not found:
            return None
        aside = _free_name(self.path / "old-start")
        aside.mkdir()
        if (self.path / "config.json").exists():
            shutil.copy2(self.path / "config.json", aside)
        if (self.path / REFERENCE).exists():
            found.append(self.path / REFERENCE)
        for path in found:
            target = aside / path.relative_to(self.path)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
        return aside

    def _of_steps(self) -> Iterator[tuple[Path, int]]:
        """Rollouts and dumps, each with its step."""
        for folder, name in zip(_FOLDERS, (_ROLLOUTS, _DUMP), strict=True):
            for path in sorted((self.path / folder).glob("*")):
                if (match := name.fullmatch(path.name)) and path.is_dir() == (folder == "dumps"):
                    yield path, int(match[1])

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        if not self.ranks.first:
            return
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(redacted(row), allow_nan=False) + "\n")

    def _replace(self, name: str, text: str, *, flush: bool = True) -> None:
        """Write a file that is the old one or the new one, whatever happens; flushed, also after a power failure."""
        if not self.ranks.first:
            return
        partial = self.path / f"{TEMPORARY}{name}"
        partial.write_text(text, encoding="utf-8")
        if flush:
            sync(partial)
        os.replace(partial, self.path / name)


def metrics_row(report: StepReport) -> dict[str, Any]:
    """A report as the row of metrics.jsonl it becomes."""
    return {name: _plain(value) for name, value in dataclasses.asdict(report).items()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that a run writes line by line; none where it is not there.

    A last line that a kill has left half written is skipped, with a warning.

    Raises:
        UsageError: another line is not one that a run wrote.
    """
    rows, half = _rows(path)
    if half:
        warnings.warn(f"{path}: the last line is half written and is skipped.", stacklevel=2)
    return rows


def check_rows(run: Path) -> None:
    """Refuse rows that no run wrote, before anything is cut back to a step.

    Raises:
        UsageError: naming file and line.
    """
    for name in _ROWS:
        _rows(run / name)


def _rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    return rows_in(path, _NEEDED.get(path.name, ()))


def best_step(run: Path) -> int | None:
    """Of the steps with a checkpoint the one with the best held-out accuracy, the later of two equal ones."""
    there = {step_of(path) for path in checkpoints_of(run)}
    rows = [row for row in _rows(run / "evaluations.jsonl")[0] if row["step"] in there and row["accuracy"] is not None]
    return max(rows, key=lambda row: (row["accuracy"], row["step"]))["step"] if rows else None


def set_aside(checkpoint: Path) -> Path:
    """Give a checkpoint that the run does not go on from a name that is in nobody's way."""
    target = _free_name(checkpoint.with_name(f"old-{checkpoint.name}"))
    os.replace(checkpoint, target)
    return target


def _free_name(path: Path) -> Path:
    """A path, with a number behind it where it is there already."""
    names = itertools.chain([path.name], (f"{path.name}-{n}" for n in itertools.count(2)))
    return next(free for free in map(path.with_name, names) if not os.path.lexists(free))


def _rollout_rows(group: Group) -> list[dict[str, Any]]:
    prompt = group.draw.prompt
    return [
        {
            "row": prompt.row,
            "draw": group.draw.number,
            "sample": sample,
            "prompt": prompt.said,
            "answer": prompt.answer,
            "completion": text,
            "tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason.value,
            "reward": _plain(score.value),
            "status": score.status.value,
            "why": why_told(score),
        }
        for sample, (completion, text, score) in enumerate(
            zip(group.completions, group.texts, group.scores, strict=True)
        )
    ]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
