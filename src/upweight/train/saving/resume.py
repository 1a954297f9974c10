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
from upweight.train.saving.folder import check_free, check_names, check_rows, has_run, refuse_taken
from upweight.train.saving.state import Progress, load_progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a run starts."""

    folder: Path | None = None
    """The run folder that it goes on in; None = a new one."""

    checkpoint: Path | None = None
    """The whole checkpoint it goes on from; None = it starts afresh."""

    config: Mapping[str, Any] | None = None
    """The configuration that the run was begun with, flat; None = nothing says."""

    data: str | None = None
    """SHA-256 of the data that the run was begun with; None where it starts afresh."""

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
        UsageError: there is nothing there to go on from, it is not as a run left it, or another process is at it.
    """
    if resume is None:
        return AFRESH
    try:
        return _auto(output_dir) if resume == AUTO else _named(as_path(resume), output_dir)
    except OSError as error:  # a folder that may not be looked into, a disk that fails
        where = output_dir if resume == AUTO else resume
        raise UsageError(f"The run in {where!r} cannot be read: {error.strerror or error}.") from error


def _auto(output_dir: str | None) -> Start:
    if output_dir is None:
        raise UsageError(
            "--resume auto looks for checkpoints in --output_dir, which is not given. Name the run folder, or the "
            "checkpoint: --resume RUN/checkpoint-N."
        )
    folder = given_path(output_dir, "--output_dir")
    if not has_run(folder):
        check_free(folder)
        return AFRESH
    refuse_taken(folder, going_on=True)
    damages: list[str] = []
    for checkpoint in checkpoints_of(folder):
        try:
            state = check_checkpoint(checkpoint)
        except DamagedCheckpoint as damage:
            damages.append(str(damage))
            continue
        remarks = (f"WARNING: {damage} It is passed over, and the one before it is taken." for damage in damages)
        return _start(folder, checkpoint, state, tuple(remarks))
    if damages:
        raise DamagedCheckpoint(
            f"No checkpoint of {output_dir!r} is whole. Of the newest: {damages[0]} Move the folder away to start "
            "afresh, or name a model to start from with --model."
        )
    check_names(folder)
    file = folder / "config.json"
    way_out = "Nothing else says how the run was begun: put it back as it was, or move the folder away."
    return Start(folder=folder, config=read_config(file, way_out) if file.exists() else None)


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
    refuse_taken(folder, going_on=True)
    return _start(folder, checkpoint, check_checkpoint(checkpoint))


def _start(folder: Path, checkpoint: Path, state: Progress, remarks: tuple[str, ...] = ()) -> Start:
    """To go on from a checkpoint that is whole, in a folder that has nothing in the way."""
    check_names(folder)
    check_rows(folder)
    way_out = f"Go on from another checkpoint, or start a new run from its weights with --model {checkpoint}."
    return Start(
        folder=folder,
        checkpoint=checkpoint,
        config=read_config(checkpoint / CONFIG, way_out),
        data=state.identity["data"],
        seen=names_of(folder),
        remarks=remarks,
    )


def names_of(run: Path) -> tuple[str, ...]:
    """Names of a run's checkpoints, the newest first."""
    return tuple(path.name for path in checkpoints_of(run))


def check_checkpoint(checkpoint: Path) -> Progress:
    """Refuse a checkpoint that is not whole, that holds no state of a run, or that has another one's name.

    Returns:
        Its state.

    Raises:
        DamagedCheckpoint: the file, and the check that failed.
        UsageError: it is whole, and its state is of another step than its name says, or of another form.
    """
    named = step_of(checkpoint)
    check_whole(checkpoint, needed=("config.json", CONFIG, TRAINING, TENSORS))
    state = load_progress(checkpoint)
    if state.step != named:
        raise UsageError(
            f"{str(checkpoint)!r} holds step {state.step}, and its name says {named}: a run takes what is called by a "
            f"later step for what came after. Give it back its name, checkpoint-{state.step}."
        )
    return state
