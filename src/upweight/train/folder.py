"""The run folder: claimed by one run, written row by row, never over another run."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError, bad_parameter
from upweight.train.records import Batch, Group, StepReport

LOCK = "lock"


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
    owner = _owner(folder / LOCK)
    if owner is not None:
        raise UsageError(
            f"The run folder {str(folder)!r} is in use by process {owner}. Choose another --output_dir, or leave it "
            "out for a new name."
        )
    raise UsageError(
        f"The run folder {str(folder)!r} is not empty, and a run never writes over another. Choose another "
        "--output_dir, leave it out for a new name, or move the folder away."
    )


def _owner(lock: Path) -> int | None:
    """The living process that holds a lock; None where there is none, or where it died."""
    try:
        owner = int(lock.read_text(encoding="ascii"))
    except (OSError, ValueError):  # none, or nothing that a run wrote
        return None
    if os.name == "nt":  # there, os.kill with 0 is a Ctrl-C
        return owner
    try:
        os.kill(owner, 0)  # signal 0 asks whether it is there
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:  # there, and somebody else's
        return owner
    return owner


class RunFolder:
    """A claimed run folder: config.json, metrics.jsonl, rollouts/, checkpoint-N/."""

    def __init__(self, path: str | Path) -> None:
        """Create and claim it.

        Raises:
            UsageError: it is not free, or cannot be made.
        """
        self.path = Path(path)
        check_free(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"The run folder {str(path)!r} cannot be made: {error.strerror}. Choose another --output_dir."
            ) from error
        try:
            descriptor = os.open(self.path / LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            check_free(self.path)
            raise
        except OSError as error:
            raise UsageError(
                f"The run folder {str(path)!r} cannot be written to: {error.strerror}. Choose another --output_dir."
            ) from error
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{os.getpid()}\n")
        (self.path / "rollouts").mkdir()

    def release(self) -> None:
        """Give the claim back; the folder stays."""
        (self.path / LOCK).unlink(missing_ok=True)

    def discard_if_unused(self) -> None:
        """Remove the folder of a run that ended before its first step and left no checkpoint."""
        if (self.path / "metrics.jsonl").exists() or any(self.path.glob("checkpoint-*")):
            return
        for name in ("config.json", "evaluations.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.path / "rollouts").rmdir()
            self.path.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """The resolved configuration, flat, as the flags are spelled."""
        text = json.dumps(config, indent=2, allow_nan=False)
        (self.path / "config.json").write_text(text + "\n", encoding="utf-8")

    def write_metrics(self, report: StepReport) -> None:
        """Append a row to metrics.jsonl; numbers that are not finite become null."""
        self._append("metrics.jsonl", {name: _plain(value) for name, value in dataclasses.asdict(report).items()})

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Append a row to evaluations.jsonl."""
        self._append("evaluations.jsonl", {name: _plain(value) for name, value in row.items()})

    def write_rewards(self, rewards: Mapping[str, Mapping[str, Any]]) -> None:
        """Each reward function's weight and counts in rewards.json, in place of those of the step before."""
        text = json.dumps(rewards, indent=2, allow_nan=False)
        (self.path / "rewards.json").write_text(text + "\n", encoding="utf-8")

    def write_rollouts(self, step: int, batch: Batch) -> None:
        """One file a step, an answer a line: the prompt, the text, the verdict."""
        with (self.path / "rollouts" / f"step-{step:05d}.jsonl").open("w", encoding="utf-8") as file:
            for group in batch.groups:
                for row in _rollout_rows(group):
                    file.write(json.dumps({"step": step, **row}, ensure_ascii=False, allow_nan=False) + "\n")

    def write_checkpoint(self, step: int, save: Callable[[Path], None]) -> Path:
        """checkpoint-N/, whole or not at all: written beside and renamed.

        Args:
            step: N.
            save: writes into the folder it is given.
        """
        target, partial = self.path / f"checkpoint-{step}", self.path / f"tmp-checkpoint-{step}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            save(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def _rollout_rows(group: Group) -> list[dict[str, Any]]:
    prompt = group.draw.prompt
    return [
        {
            "row": prompt.row,
            "draw": group.draw.number,
            "sample": sample,
            "prompt": prompt.text if isinstance(prompt.text, str) else [dict(message) for message in prompt.text],
            "answer": prompt.answer,
            "completion": text,
            "tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason.value,
            "reward": _plain(score.value),
            "status": score.status.value,
            "why": score.why,
        }
        for sample, (completion, text, score) in enumerate(
            zip(group.completions, group.texts, group.scores, strict=True)
        )
    ]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
