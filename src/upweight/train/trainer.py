"""`Trainer`: a run from the first check to the last line."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from upweight.objective.errors import UsageError, bad_parameter
from upweight.policy.load import load_policy, resolve_device
from upweight.policy.policy import Policy
from upweight.policy.variants import head_in_float32, layers_recomputed
from upweight.rewards.lookup import all_built_in
from upweight.rewards.runner import RewardRunner, make_runner
from upweight.tasks.data import DataTask
from upweight.tasks.registry import make_task
from upweight.tasks.rows import PromptsTask, RowsTask
from upweight.tasks.task import Task, reward_of
from upweight.train.args import TrainArgs
from upweight.train.check import check_args, check_room
from upweight.train.console import announce
from upweight.train.intake import fitting, judgeable
from upweight.train.launch import Launch, check_launch
from upweight.train.ranks import ALONE, Ranks, device_of, joined_ranks
from upweight.train.redact import redact_logs
from upweight.train.resolve import TINY, resolve_args
from upweight.train.run import Run, TrainResult
from upweight.train.saving.begun import as_begun, check_identity, check_model, differences, flat_config
from upweight.train.saving.folder import RunFolder, check_free
from upweight.train.saving.resume import AFRESH, Start, find_start
from upweight.train.saving.state import data_of, load_weights

RewardFuncs = str | Callable[..., Any] | Sequence[str | Callable[..., Any]]


class Trainer:
    """Trains a policy by reinforcement learning on checked answers.

    Args:
        model: a name as `--model` takes it, or a causal LM that is loaded already; args.model where None.
        reward_funcs: a built-in reward's name, a function, or several. Functions are called with keywords:
            prompts, completions and every data column as lists; they return a list of numbers or None, and may be
            async. The task's own reward where None.
        reward_weights: what each function's rewards are multiplied by before they are added up, one number a
            function, in order; those in the names (`0.2*format`), else 1, where None.
        args: the configuration; the defaults where None.
        train_dataset: rows (dicts with `prompt` and, where the reward needs it, `answer`); the task of `args` where
            None.
        eval_dataset: held-out rows of the same form.
        processing_class: the tokenizer of a `model` that is loaded already.
        launch: how it is started: resumed, sharded; afresh and in one piece where None.

    Raises:
        UsageError: a configuration that cannot work, in one sentence.

    Example:
        >>> from upweight import Trainer, TrainArgs  # doctest: +SKIP
        >>> def closeness(completions, answer, **_):
        ...     return [-abs(float(c or 0) - float(a)) for c, a in zip(completions, answer)]
        >>> Trainer(model="tiny", reward_funcs=closeness, args=TrainArgs(max_steps=20)).train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any = None,
        reward_funcs: RewardFuncs | None = None,
        args: TrainArgs | None = None,
        train_dataset: Iterable[Any] | None = None,
        eval_dataset: Iterable[Any] | None = None,
        processing_class: Any = None,
        *,
        reward_weights: Sequence[float] | None = None,
        launch: Launch | None = None,
    ) -> None:
        args = TrainArgs() if args is None else args
        if not isinstance(args, TrainArgs):
            raise bad_parameter("args", "Trainer", "a TrainArgs", args, "The data set is train_dataset.")
        if isinstance(train_dataset, str | Path):
            raise bad_parameter(
                "train_dataset", "Trainer", "rows", str(train_dataset), "A file is TrainArgs(data=...), or --data."
            )
        self.launch = Launch() if launch is None else launch
        check_launch(self.launch)
        self._start = AFRESH
        self._loaded = None if model is None or isinstance(model, str) else model
        self._tokenizer = processing_class
        self._reward_funcs = reward_funcs
        self._data: PromptsTask | None = None if train_dataset is None else RowsTask(train_dataset, eval_dataset)
        if self._loaded is not None and self._tokenizer is None:
            raise UsageError("A model that is loaded already needs its tokenizer: pass processing_class as well.")
        if self._data is None and eval_dataset is not None:
            raise UsageError("eval_dataset goes with train_dataset: a task holds out its own problems.")
        if self._data is not None and args.data is not None:
            raise UsageError(f"train_dataset and data={args.data!r} both say what to train on: leave one out.")
        if self._data is not None and args.eval_data is not None:
            raise UsageError("eval_data goes with data; beside train_dataset, held-out rows are eval_dataset.")
        if reward_funcs is not None and not isinstance(reward_funcs, str) and not callable(reward_funcs):
            make_runner(reward_funcs)  # an empty list is refused, not taken for "the task's own"
        self._reward_weights = _weights_of(reward_funcs, reward_weights)
        self.args = dataclasses.replace(args, **self._handed_in(model))

    def _handed_in(self, model: Any) -> dict[str, Any]:
        """Fields of the configuration that what was handed in decides: config.json says what ran."""
        fields: dict[str, Any] = {}
        if self._loaded is not None:
            fields["model"] = type(model).__name__
            fields["dtype"] = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
        elif model is not None:
            fields["model"] = model
        if self._data is not None:
            fields["task"] = self._data.name
        if self._reward_funcs:
            fields["reward"] = make_runner(self._reward_funcs, self._reward_weights).spelled
        return fields

    def check(self, ranks: Ranks = ALONE) -> None:
        """Everything that can be refused before a model is loaded: configuration, run folder, data, rewards.

        Args:
            ranks: the processes of the run; the first looks at the run folder, for all of them.

        Raises:
            UsageError: the first thing that cannot work.
            RewardError: a reward function returned something that is no reward.
        """
        check_args(self.args)
        check_room(self.args)
        self._start = start = ranks.from_first(self._find_start)
        if self._loaded is None and start.checkpoint is not None and start.config is not None:
            check_model(start.config, flat_config(self.args), start.checkpoint)
        resolve_device(device_of(self.args.device, ranks))
        task = self._task(chat=False)
        if ranks.first:
            self._check_begun(task)
        self._judgeable(task, self._runner(task, self.args.reward))
        if (self._loaded is None and self.args.model == TINY) or self._data is not None:
            # The budget cannot change with a chat template any more, so what depends on it can be checked.
            check_args(resolve_args(self.args, task, self.args.device))
        if self._loaded is None and self.args.model == TINY:
            _check_templates(task, self.args)
        if self.args.sft_steps and not task.demonstrations(1, self.args.seed):
            raise UsageError(f"The task {task.name!r} has no worked answers to warm up on. Set --sft_steps 0.")

    def _check_begun(self, task: Task) -> None:
        """Refuse a run that is another than the one that was begun, as far as that is known without the model."""
        start, override = self._start, self.launch.resume_override
        if start.config is None:
            return
        args = resolve_args(as_begun(self.args, start.config), task, self.args.device)
        differences(start.config, flat_config(args), override=override)
        # Without a model, neither which form its prompts have is known, nor which rows are too long for it.
        if start.data is not None and args.prompt_too_long == "error":
            forms = [data_of(self._task(chat=chat), args.seed) for chat in (False, True)]
            if start.data not in forms:
                check_identity({"data": start.data}, {"data": forms[0]}, override=override)

    def _find_start(self) -> Start:
        start = find_start(self.launch.resume, self.args.output_dir)
        if start.folder is None and self.args.output_dir is not None:
            check_free(self.args.output_dir)
        return start

    def describe(self) -> None:
        """Print the resolved configuration and what is worth knowing about it, for a dry run.

        A budget or a reward that depends on the model's chat template is shown as for a model without one.
        """
        task = self._task(chat=False)
        announce(resolve_args(self.args, task, str(resolve_device(self.args.device))), task)

    def train(self) -> TrainResult:
        """Run it: warm-up, handshake, steps, evaluation, checkpoint.

        Returns:
            Where everything is, and the held-out accuracy before and after.

        Raises:
            UsageError: a configuration that cannot work; nothing has been written then.
            HandshakeError: sampler and trainer disagree at equal weights.
            RankError: another process of the run is missing.
            KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came; the step was finished and saved.
        """
        with joined_ranks(timeout=self.launch.rank_timeout) as ranks:
            return self._train(ranks)

    def _train(self, ranks: Ranks) -> TrainResult:
        self.check(ranks)
        with ranks.in_turn():  # a download, an unpacked file
            policy = self._policy(device_of(self.args.device, ranks))
        if self.args.fp32_head:
            head_in_float32(policy.model)
        if self.launch.gradient_checkpointing:
            layers_recomputed(policy.model)
        task = self._task(chat=policy.has_chat_template)
        parameters = sum(p.numel() for p in policy.model.parameters())
        start = self._start
        device = _named(self.args.device, policy.device)
        args = resolve_args(as_begun(self.args, start.config), task, device, parameters)
        if start.folder is not None:
            args = dataclasses.replace(args, output_dir=str(start.folder))
        args = dataclasses.replace(args, output_dir=ranks.from_first(lambda: args.output_dir))
        check_args(args)
        if start.config is not None:  # before anything is claimed; the run says what differs
            differences(start.config, flat_config(args), override=self.launch.resume_override)
        runner = self._runner(task, args.reward)
        task = self._judgeable(fitting(task, policy, args), runner)
        folder = RunFolder(str(args.output_dir), going_on=start.folder is not None, ranks=ranks)
        try:
            return Run(
                args=args,
                task=task,
                policy=policy,
                runner=runner,
                folder=folder,
                launch=self.launch,
                start=start,
                ranks=ranks,
            ).go()
        finally:
            runner.close()
            folder.discard_if_unused()
            folder.release()

    def _task(self, *, chat: bool) -> Task:
        if self._data is None and self.args.data is not None:
            self._data = DataTask(self.args.data, self.args.eval_data)
        if self._data is not None:
            return self._data.for_model(chat=chat)
        if self.args.eval_data is not None:
            raise UsageError("--eval_data goes with --data: a built-in task holds out its own problems.")
        return make_task(self.args.task, chat=chat)

    def _policy(self, device: str) -> Policy:
        checkpoint = self._start.checkpoint
        if self._loaded is not None:
            policy = Policy(model=self._loaded, tokenizer=self._tokenizer, name=type(self._loaded).__name__)
            if checkpoint is not None:
                load_weights(policy, checkpoint)
            return policy
        if checkpoint is None:
            return load_policy(self.args.model, dtype=self.args.dtype, device=device, seed=self.args.seed)
        policy = load_policy(str(checkpoint), dtype=self.args.dtype, device=device, seed=self.args.seed)
        policy.name = self.args.model
        return policy

    def _runner(self, task: Task, reward: str | None) -> RewardRunner:
        """The reward functions, tried on one row of each part of the data."""
        redact_logs()
        runner = make_runner(
            self._reward_funcs or reward_of(task, reward),
            self._reward_weights,
            isolate=self.args.isolate_rewards,
            timeout=self.args.reward_timeout,
            max_errors=self.args.max_reward_errors,
        )
        runner.check(task.stream(self.args.seed).take(1)[0].prompt, task.columns)
        if task.held_out:
            runner.check(task.held_out[0])
        return runner

    def _judgeable(self, task: Task, runner: RewardRunner) -> Task:
        """The task, every gold answer tried on its reward where that is built in; others may be costly to call."""
        asked = self._reward_funcs or reward_of(task, self.args.reward)
        return judgeable(task, runner) if all_built_in(asked) else task


def _named(device: str, place: torch.device) -> str:
    """The device that config.json says: which of several GPUs only where that was asked for, as it binds who goes on.

    Args:
        device: as it was asked for.
        place: where the model is.
    """
    return device if device == str(place) else place.type


def _weights_of(functions: RewardFuncs | None, weights: Sequence[float] | None) -> list[float] | None:
    """The weights as numbers, one for each function; refused before anything is loaded where they are not."""
    if weights is None:
        return None
    if functions is None:
        raise UsageError("reward_weights go with reward_funcs; a reward by name has its weight in front, 0.2*format.")
    names = make_runner(functions).names
    try:
        found = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        found = []
    if len(found) != len(names) or isinstance(weights, str) or not all(map(math.isfinite, found)):
        must = f"finite numbers, one for each of the {len(names)} reward functions ({', '.join(names)})"
        raise bad_parameter("reward_weights", "Trainer", must, weights)
    return found


def _check_templates(task: Task, args: TrainArgs) -> None:
    """tiny has no chat template: say so before it is made."""
    for prompt in [draw.prompt for draw in task.stream(args.seed).take(task.size or 1)] + list(task.held_out):
        if not isinstance(prompt.text, str):
            raise UsageError(
                f"The prompt of {prompt.place} is a list of messages, and tiny has no chat template: give prompts as "
                "strings, or choose an instruct model with --model."
            )
