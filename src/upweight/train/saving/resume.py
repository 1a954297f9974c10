"""Where a run starts: afresh, or from a checkpoint that is whole."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError
from upweight.objective.paths import given_path
from upweight.train.saving.begun import AUTO, as_path, is_checkpoint, read_config
from upweight.train.saving.checkpoint import (
    CONFIG,
    TENSORS,
    TRAINING,
    DamagedCheckpoint,
    check_whole,
    checkpoints_of,
    step_of,
)
from upweight.train.saving.folder import REFERENCE, check_free, refuse_taken

_OF_A_RUN = ("config.json", "rollouts", "lock", REFERENCE)
"""What tells a run's folder from any other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a run starts."""

    folder: Path | None = None
    """The run folder that it goes on in; None = a new one."""

    checkpoint: Path | None = None
    """The whole checkpoint it goes on from; None = it starts afresh."""

    config: Mapping[str, Any] | None = None
    """The configuration that the run was begun with, flat; None = nothing says."""

    seen: tuple[str, ...] = ()
    """The run's checkpoints when it was looked at, before the folder was claimed."""

    remarks: tuple[str, ...] = ()
    """What a person should know about the choice: damaged checkpoints that were passed over."""


AFRESH = Start()
"""A new run."""


def find_start(resume: str | None, output_dir: str | None) -> Start:
    """Find and check what `--resume` names; nothing is loaded or written.

    Args:
        resume: as the flag takes it; None = a new run.
        output_dir: the run folder that was asked for; None = the run's own choice.

    Raises:
        DamagedCheckpoint: a checkpoint that was named is not whole, or none of a run's is.
        UsageError: there is nothing there to go on from, or another process is at it.
    """
    if resume is None:
        return AFRESH
    if resume != AUTO:
        return _named(as_path(resume), output_dir)
    if output_dir is None:
        raise UsageError(
            "--resume auto looks for checkpoints in --output_dir, which is not given. Name the run folder, or the "
            "checkpoint: --resume RUN/checkpoint-N."
        )
    folder = given_path(output_dir, "--output_dir")
    if not any((folder / name).exists() for name in _OF_A_RUN) and not checkpoints_of(folder):
        check_free(folder)
        return AFRESH
    refuse_taken(folder)
    remarks = []
    for checkpoint in checkpoints_of(folder):
        try:
            check_checkpoint(checkpoint)
        except DamagedCheckpoint as damage:
            remarks.append(f"WARNING: {damage} It is passed over, and the one before it is taken.")
            continue
        return Start(
            folder=folder,
            checkpoint=checkpoint,
            config=read_config(checkpoint / CONFIG),
            seen=names_of(folder),
            remarks=tuple(remarks),
        )
    if remarks:
        raise DamagedCheckpoint(
            f"No checkpoint of {output_dir!r} is whole, the last of them: {remarks[-1].partition(': ')[2]} "
            "Move the folder away to start afresh, or name a model to start from with --model."
        )
    config = read_config(folder / "config.json") if (folder / "config.json").exists() else None
    return Start(folder=folder, config=config, seen=names_of(folder))


def _named(path: Path, output_dir: str | None) -> Start:
    if path.is_file():
        raise UsageError(
            f"--resume {path} is a file, and a checkpoint is a folder, RUN/checkpoint-N: safetensors and JSON under a "
            "manifest. Files that have to be unpickled are never loaded."
        )
    if not path.is_dir():
        raise UsageError(f"--resume {path}: there is no such folder. Give RUN/checkpoint-N, or RUN for its newest.")
    checkpoint = path if is_checkpoint(path) else next(iter(checkpoints_of(path)), None)
    if checkpoint is None:
        raise UsageError(
            f"--resume {path} holds no checkpoint. --resume auto --output_dir {path} starts that run afresh; a model "
            "without the state of a run is --model."
        )
    folder = path.parent if checkpoint is path else path
    if output_dir is not None and os.path.realpath(output_dir) != os.path.realpath(folder):
        raise UsageError(
            f"A run goes on in its own folder, {str(folder)!r}, and --output_dir says {output_dir!r}. Leave it out; a "
            f"new run that starts from these weights is --model {checkpoint}."
        )
    refuse_taken(folder)
    check_checkpoint(checkpoint)
    return Start(folder=folder, checkpoint=checkpoint, config=read_config(checkpoint / CONFIG), seen=names_of(folder))


def names_of(run: Path) -> tuple[str, ...]:
    """Names of a run's checkpoints, the newest first."""
    return tuple(path.name for path in checkpoints_of(run))


def check_checkpoint(checkpoint: Path) -> None:
    """Refuse a checkpoint that is not whole, or that holds no state of a run.

    Raises:
        DamagedCheckpoint: the file, and the check that failed.
    """
    step_of(checkpoint)
    check_whole(checkpoint, needed=("config.json", CONFIG, TRAINING, TENSORS))
