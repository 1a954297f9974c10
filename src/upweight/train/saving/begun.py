"""The configuration that a run was begun with, against the one it is to go on with. Imports no torch."""

import dataclasses
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError, nearest, shown
from upweight.objective.fields import must_be
from upweight.objective.paths import given_path
from upweight.objective.spec import Objective
from upweight.train.args import TrainArgs
from upweight.train.redact import redacted
from upweight.train.saving.checkpoint import CONFIG, MANIFEST, TENSORS, TRAINING, checkpoints_of
from upweight.train.saving.reading import read_object

AUTO = "auto"

MAY_CHANGE: Mapping[str, str] = {
    "output_dir": "a run goes on where its checkpoints are",
    "max_steps": "the learning rate follows its schedule over the new number of steps from here on",
    "save_every": "",
    "keep_checkpoints": "",
    "eval_every": "",
    "eval_data": "held-out accuracies before and after it are of different problems",
    "isolate_rewards": "",
    "reward_timeout": "",
    "max_reward_errors": "",
    "resample_budget": "steps differ from those of the run as it was begun",
    "when_starved": "steps differ from those of the run as it was begun",
    "learning_rate": "steps differ from those of the run as it was begun",
    "lr_warmup_steps": "steps differ from those of the run as it was begun",
    "lr_schedule": "steps differ from those of the run as it was begun",
    "weight_decay": "steps differ from those of the run as it was begun",
    "max_grad_norm": "steps differ from those of the run as it was begun",
    "micro_batch_tokens": "the same up to rounding, no longer to the bit",
    "device": "another device may round otherwise, and where that decides a sampled token, answers part",
}
"""Fields that a run may go on with at another value, and what that means; every other makes it another run."""

_DECIDED = ("max_new_tokens", "reward", "learning_rate", "lr_warmup_steps", "sft_steps", "output_dir")
"""Fields that the run fills in where they are not given: going on, they are what they were."""


_FIELDS: Mapping[str, object] = {
    name: hint
    for record in (TrainArgs, Objective)
    for name, hint in typing.get_type_hints(record).items()
    if name != "objective"
}
"""What a run's configuration has, with the type of each."""


def begun_config(resume: str, output_dir: str | None) -> tuple[list[Path], Path | None]:
    """The files that say how a run was begun, for flags that are not given, and the run's folder; nothing is checked.

    Args:
        resume: as the flag takes it.
        output_dir: as that flag says.

    Returns:
        The file of the checkpoint; or those of the run's checkpoints, the newest first, and RUN/config.json. The folder
        is None for `auto`, where it has been given.
    """
    if resume == AUTO and output_dir is None:
        return [], None
    path = as_path(str(output_dir), "--output_dir") if resume == AUTO else as_path(resume)
    one = resume != AUTO and is_checkpoint(path)
    checkpoints = [path] if one else checkpoints_of(path)
    files = [*(checkpoint / CONFIG for checkpoint in checkpoints), *([] if one else [path / "config.json"])]
    folder = None if resume == AUTO else path.parent if one else path
    return [file for file in files if file.is_file()], folder


def as_path(text: str, flag: str = "--resume") -> Path:
    """A path with a last part that is a name, also where it was given as `.`.

    Raises:
        UsageError: a path that cannot be looked at.
    """
    path = given_path(text, flag)
    return path.resolve() if path.name in ("", "..") else path


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is meant as a checkpoint, and not as a run with checkpoints in it."""
    return any((path / name).exists() for name in (MANIFEST, TRAINING, TENSORS)) or path.name.startswith("checkpoint-")


def read_config(file: Path, way_out: str) -> dict[str, Any]:
    """A flat configuration as a run writes it.

    Args:
        file: config.json of a run, or run.json of a checkpoint.
        way_out: the sentence after the one that says what is wrong.

    Raises:
        UsageError: it cannot be read, or is none: a field is missing, is none that there is, or of another type. Ranges
            are not checked.
    """
    found = read_object(file, way_out)
    for name in found:
        if name not in _FIELDS:
            near = nearest(name, _FIELDS)
            meant = f" (did you mean '{near}'?)" if near else ""
            raise UsageError(f"{str(file)!r}: a run's configuration has no '{name}'{meant}. {way_out}")
    for name, hint in _FIELDS.items():
        if name not in found:
            raise UsageError(f"{str(file)!r} lacks '{name}', which a run's configuration has. {way_out}")
        if must := must_be(hint, found[name]):
            raise UsageError(f"{str(file)!r}: '{name}' must be {must}. Got {shown(found[name])} instead. {way_out}")
    return found


def is_of_a_run(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is one that a run wrote, possibly edited since, and not a model's or another program's.

    Example:
        >>> is_of_a_run({"model_type": "llama", "hidden_size": 64}), is_of_a_run(flat_config(TrainArgs()))
        (False, True)
    """
    return 2 * len(_FIELDS.keys() & config.keys()) > len(_FIELDS)


def device_again(device: str, *, alone: bool) -> str:
    """The device of a run that goes on, where none is named now: one GPU by number is no choice for several processes.

    Args:
        device: of the run that was begun.
        alone: whether the one that goes on has one process.

    Example:
        >>> [device_again("cuda:1", alone=alone) for alone in (True, False)]
        ['cuda:1', 'cuda']
    """
    return device if alone else device.partition(":")[0]


def check_model(begun: Mapping[str, Any], now: Mapping[str, Any], checkpoint: Path) -> None:
    """Refuse a model by name that is not the run's: going on loads the checkpoint's weights, and never that one.

    Args:
        begun: the configuration that the run was begun with, flat.
        now: what is asked for, likewise.
        checkpoint: that it goes on from.

    Raises:
        UsageError: another name.
    """
    if begun.get("model", now["model"]) != now["model"]:
        raise UsageError(
            f"--model {now['model']} is not loaded: the run goes on with the weights of {str(checkpoint)!r}, which "
            f"began as {begun['model']}. Go on with --model {begun['model']}, or start a new run without --resume."
        )


def as_begun(args: TrainArgs, config: Mapping[str, Any] | None) -> TrainArgs:
    """The configuration with what is not given, and what the run decides, as it was decided when the run was begun."""
    if config is None:
        return args
    decided = {name: config[name] for name in _DECIDED if getattr(args, name) is None and name in config}
    if args.objective.overlong_buffer is None and "overlong_buffer" in config:
        objective = dataclasses.replace(args.objective, overlong_buffer=config["overlong_buffer"])
        return dataclasses.replace(args, objective=objective, **decided)
    return dataclasses.replace(args, **decided)


def differences(begun: Mapping[str, Any], now: Mapping[str, Any], *, override: bool) -> list[str]:
    """Hold the configuration of a run that goes on against the one it was begun with.

    Args:
        begun: what it was begun with, resolved and flat.
        now: what is asked for, likewise.
        override: whether to go on whatever differs.

    Returns:
        A line for each field that differs: `max_steps: 4 -> 8 (what it means)`.

    Raises:
        UsageError: fields that make it another run; all of them, with both values.

    Example:
        >>> differences({"max_steps": 4, "seed": 0}, {"max_steps": 8, "seed": 0}, override=False)
        ['max_steps: 4 -> 8 (the learning rate follows its schedule over the new number of steps from here on)']
    """
    changed = [name for name in now if name in begun and begun[name] != now[name]]
    if "output_dir" in changed and os.path.realpath(str(begun["output_dir"])) == os.path.realpath(
        str(now["output_dir"])
    ):
        changed.remove("output_dir")
    other = [name for name in changed if name not in MAY_CHANGE]
    if other and not override:
        fields = "; ".join(f"{name}: {spelled(begun[name])} -> {spelled(now[name])}" for name in other)
        raise UsageError(
            f"This is not the run that was begun: {fields}. Leave these flags out to go on as before, or set "
            "--resume_override to go on all the same."
        )
    return [
        f"{name}: {spelled(begun[name])} -> {spelled(now[name])}" + (f" ({why})" if (why := _why(name)) else "")
        for name in changed
    ]


def check_identity(begun: Mapping[str, Any], now: Mapping[str, Any], *, override: bool) -> list[str]:
    """Hold model, tokenizer, data and reference, as hashes, against those that the run was begun with.

    Returns:
        A line for each that differs and was overridden.

    Raises:
        UsageError: one differs.
    """
    other = [name for name in now if begun.get(name) != now[name]]
    if other and not override:
        raise UsageError(
            f"This is not the run that was begun: another {' and another '.join(other)} (compared by SHA-256). Give "
            "back what it was begun with, or set --resume_override to go on all the same."
        )
    return [f"another {name} than the run was begun with" for name in other]


def no_longer_exact(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each thing that decides the last bit of a step and is not what it was."""
    return [
        f"{name}: {begun.get(name)} -> {now[name]} (the same up to rounding, no longer to the bit)"
        for name in now
        if begun.get(name) != now[name]
    ]


def _why(name: str) -> str:
    return MAY_CHANGE.get(name, "overridden: this is another run than the one that was begun")


def flat_config(args: TrainArgs) -> dict[str, Any]:
    """The configuration as one flat mapping, the flags' names and values, without the secrets in them."""
    config: Mapping[str, Any] = dataclasses.asdict(args)
    flat = {**{k: v for k, v in config.items() if k != "objective"}, **config["objective"]}
    return {name: redacted(value) for name, value in flat.items()}


def spelled(value: object) -> str:
    """A value as its flag takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
