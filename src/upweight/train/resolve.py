"""Fills in what a configuration leaves open, once task and model are known."""

import dataclasses
import itertools
import time
from pathlib import Path
from typing import TypeVar

from upweight.objective.presets import preset
from upweight.policy.warmup import TINY_WARM_UP
from upweight.tasks.task import Task
from upweight.train.args import TrainArgs

_T = TypeVar("_T")

TINY = "tiny"

TINY_LEARNING_RATE = 5e-4
LEARNING_RATE = 1e-5

SMALL = 10_000_000
"""Parameters below which a model takes tiny's learning rate."""


def resolve_args(args: TrainArgs, task: Task, device: str, parameters: int | None = None) -> TrainArgs:
    """The same configuration with every None that the run decides filled in.

    Args:
        args: as given.
        task: gives the generation budget and the reward.
        device: where the model is.
        parameters: how many the model has; None where it is not loaded yet.
    """
    tiny = args.model == TINY
    small = tiny if parameters is None else parameters < SMALL
    budget = task.max_new_tokens if args.max_new_tokens is None else args.max_new_tokens
    objective = args.objective
    if objective.overlong_buffer is None:
        buffer = preset(args.preset, max_new_tokens=budget).overlong_buffer
        objective = dataclasses.replace(objective, overlong_buffer=buffer or 0)
    return dataclasses.replace(
        args,
        objective=objective,
        task=args.task if args.data is None else task.name,
        max_new_tokens=budget,
        reward=task.reward if args.reward is None else args.reward,
        learning_rate=_or(args.learning_rate, TINY_LEARNING_RATE if small else LEARNING_RATE),
        lr_warmup_steps=_or(args.lr_warmup_steps, args.max_steps // 10),
        sft_steps=_or(args.sft_steps, TINY_WARM_UP.steps if tiny and task.demonstrations(1, args.seed) else 0),
        output_dir=run_folder(args, task) if args.output_dir is None else args.output_dir,
        device=device,
    )


def run_folder(args: TrainArgs, task: Task) -> str:
    """runs/MODEL-TASK-PRESET-TIME, with a number behind it where that is there already."""
    model = args.model.rstrip("/").rpartition("/")[2] or "model"
    name = f"runs/{model}-{task.name if args.data is None else 'data'}-{args.preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken = (f"{name}-{n}" for n in itertools.count(2))
    return name if not Path(name).exists() else next(n for n in taken if not Path(n).exists())


def known(value: _T | None) -> _T:
    """A field that `resolve_args` has filled in."""
    if value is None:
        raise AssertionError("the configuration is resolved before it is used")
    return value


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
