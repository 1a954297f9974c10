"""The run folder: claimed by one run, written row by row, never over another run."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError, bad_parameter
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Batch, Group, StepReport
from upweight.train.redact import redacted
from upweight.train.saving.checkpoint import TEMPORARY, checkpoints_of, prune, remove_whole, step_of, sync, write_whole
from upweight.train.saving.held import why_told
from upweight.train.saving.lock import FolderLock, Taken, owner_of

LOCK = "lock"

REFERENCE = "reference"
"""The folder that keeps the reference policy of a run with a KL."""


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
    if (folder / "config.json").exists() or checkpoints_of(folder):
        raise UsageError(
            f"The run folder {str(folder)!r} is not empty: it holds a run, and a run never writes over another. Go on "
            "with that one (--resume auto), choose another --output_dir (or leave it out for a new name), or move the "
            "folder away."
        )
    raise UsageError(
        f"The run folder {str(folder)!r} is not empty, and a run never writes over another. Choose another "
        "--output_dir, leave it out for a new name, or move the folder away."
    )


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that a living process has claimed."""
    owner = owner_of(folder / LOCK)
    if owner is not None:
        raise _in_use(folder, owner)


def _in_use(folder: Path, owner: str) -> UsageError:
    return UsageError(
        f"The run folder {str(folder)!r} is in use by process {owner}. Choose another --output_dir, or leave it "
        "out for a new name."
    )


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
        self.ranks = ranks
        self._lock: FolderLock | None = None
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
            raise _in_use(self.path, str(taken)) from taken
        except OSError as error:
            raise UsageError(
                f"The run folder {str(path)!r} cannot be written to: {error.strerror}. Choose another --output_dir."
            ) from error
        (self.path / "rollouts").mkdir(exist_ok=True)

    def release(self) -> None:
        """Give the claim back; the folder stays."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def discard_if_unused(self) -> None:
        """Remove the folder of a run that ended before its first step and left no checkpoint, and give the claim back.

        Called while it is claimed: what another process has in it by then would be removed with it.
        """
        if not self.ranks.first or (self.path / "metrics.jsonl").exists() or checkpoints_of(self.path):
            return
        for name in ("config.json", "evaluations.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / REFERENCE, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.path / "rollouts").rmdir()
        self.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """The resolved configuration, flat, as the flags are spelled."""
        self._replace("config.json", json.dumps(redacted(config), indent=2, allow_nan=False) + "\n")

    def write_metrics(self, report: StepReport) -> None:
        """Append a row to metrics.jsonl; numbers that are not finite become null."""
        self._append("metrics.jsonl", metrics_row(report))

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Append a row to evaluations.jsonl."""
        self._append("evaluations.jsonl", {name: _plain(value) for name, value in row.items()})

    def write_rewards(self, rewards: Mapping[str, Mapping[str, Any]]) -> None:
        """Each reward function's weight and counts in rewards.json, in place of those of the step before."""
        self._replace("rewards.json", json.dumps(redacted(rewards), indent=2, allow_nan=False) + "\n")

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
            for name in ("metrics.jsonl", "evaluations.jsonl"):  # a power failure may not leave them behind it
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
            step: the last that stays; -1 = none, for a run that starts afresh.
            row: of metrics.jsonl at that step, written again where a power failure has lost it.
        """
        if not self.ranks.first:
            return
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            rows = [found for found in _parsed(self.path / name)[0] if found["step"] <= step]
            if name == "metrics.jsonl" and row is not None and (not rows or rows[-1]["step"] != step):
                rows.append(dict(row))
            if rows:
                self._replace(name, "".join(json.dumps(found, allow_nan=False) + "\n" for found in rows))
            else:
                (self.path / name).unlink(missing_ok=True)
        if step < 0:
            (self.path / "rewards.json").unlink(missing_ok=True)
        for path in (self.path / "rollouts").glob("step-*.jsonl"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        for path in (self.path / "dumps").glob("step-*"):
            if int(path.name.removeprefix("step-")) > step:
                remove_whole(path)
        for checkpoint in checkpoints_of(self.path):
            if step_of(checkpoint) > step:
                set_aside(checkpoint)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        if not self.ranks.first:
            return
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(redacted(row), allow_nan=False) + "\n")

    def _replace(self, name: str, text: str) -> None:
        """Write a file that is the old one or the new one, whatever happens."""
        if not self.ranks.first:
            return
        partial = self.path / f"{TEMPORARY}{name}"
        partial.write_text(text, encoding="utf-8")
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
    rows, half = _parsed(path)
    if half:
        warnings.warn(f"{path}: the last line is half written and is skipped.", stacklevel=2)
    return rows


def _parsed(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The whole rows of a file, and whether a half written line follows them."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{path}, line {number} is no row of a run: {error}. Take it out: the run goes on without that row."
            ) from error
    return rows, lines[-1] != b""


def best_step(run: Path) -> int | None:
    """Of the steps with a checkpoint the one with the best held-out accuracy, the later of two equal ones."""
    there = {step_of(path) for path in checkpoints_of(run)}
    rows = [
        row for row in _parsed(run / "evaluations.jsonl")[0] if row["step"] in there and row["accuracy"] is not None
    ]
    return max(rows, key=lambda row: (row["accuracy"], row["step"]))["step"] if rows else None


def set_aside(checkpoint: Path) -> Path:
    """Give a checkpoint that the run does not go on from a name that is in nobody's way."""
    names = (
        f"old-{checkpoint.name}{suffix}" for suffix in itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    )
    target = next(path for path in map(checkpoint.with_name, names) if not path.exists())
    os.replace(checkpoint, target)
    return target


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
