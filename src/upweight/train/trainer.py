"""`Trainer`: a run from the first check to the last line."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upweight.evaluate.accuracy import Accuracy, greedy_accuracy
from upweight.objective.advantage import uninformative_share
from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.remarks import notes
from upweight.policy.load import load_policy, resolve_device
from upweight.policy.policy import Policy
from upweight.policy.warmup import TINY_WARM_UP, WarmUp, warm_up_cached
from upweight.rewards.lookup import all_built_in
from upweight.rewards.runner import RewardRunner, make_runner
from upweight.rollout.completion import Engine, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.data import DataTask
from upweight.tasks.registry import make_task
from upweight.tasks.rows import PromptsTask, RowsTask
from upweight.tasks.task import Task, reward_of
from upweight.train.args import TrainArgs
from upweight.train.check import check_args
from upweight.train.console import Console
from upweight.train.curve import draw_curve
from upweight.train.folder import RunFolder, check_free
from upweight.train.handshake import shake_hands
from upweight.train.intake import fitting, judgeable
from upweight.train.optimizer import MasterAdamW
from upweight.train.records import StepReport
from upweight.train.resolve import TINY, known, resolve_args
from upweight.train.signals import GracefulStop
from upweight.train.source import SamplingSource
from upweight.train.step import Learner, training_step
from upweight.train.tally import RewardTally

WARM_UP_BATCH_SIZE = 16
"""Worked answers a step of a warm-up of any model but tiny."""

WARM_UP_EXAMPLES = 20_000
"""Worked answers that the supervised warm-up draws from."""

RewardFuncs = str | Callable[..., Any] | Sequence[str | Callable[..., Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What a run came to."""

    folder: Path
    """The run folder."""

    checkpoint: Path
    """The last checkpoint."""

    steps: int
    """Steps taken."""

    before: Accuracy | None
    """Held-out greedy accuracy before the first step; None where the task holds nothing out."""

    after: Accuracy | None
    """And after the last."""


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
    ) -> None:
        args = TrainArgs() if args is None else args
        if not isinstance(args, TrainArgs):
            raise bad_parameter("args", "Trainer", "a TrainArgs", args, "The data set is train_dataset.")
        if isinstance(train_dataset, str | Path):
            raise bad_parameter(
                "train_dataset", "Trainer", "rows", str(train_dataset), "A file is TrainArgs(data=...), or --data."
            )
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

    def check(self) -> None:
        """Everything that can be refused before a model is loaded: configuration, run folder, data, rewards.

        Raises:
            UsageError: the first thing that cannot work.
            RewardError: a reward function returned something that is no reward.
        """
        check_args(self.args)
        if self.args.output_dir is not None:
            check_free(self.args.output_dir)
        resolve_device(self.args.device)
        task = self._task(chat=False)
        self._judgeable(task, self._runner(task, self.args.reward))
        if (self._loaded is None and self.args.model == TINY) or self._data is not None:
            # The budget cannot change with a chat template any more, so what depends on it can be checked.
            check_args(resolve_args(self.args, task, self.args.device))
        if self._loaded is None and self.args.model == TINY:
            _check_templates(task, self.args)
        if self.args.sft_steps and not task.demonstrations(1, self.args.seed):
            raise UsageError(f"The task {task.name!r} has no worked answers to warm up on. Set --sft_steps 0.")

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
            KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came; the step was finished and saved.
        """
        self.check()
        policy = self._policy()
        task = self._task(chat=policy.has_chat_template)
        parameters = sum(p.numel() for p in policy.model.parameters())
        args = resolve_args(self.args, task, str(policy.device), parameters)
        check_args(args)
        runner = self._runner(task, args.reward)
        task = self._judgeable(fitting(task, policy, args), runner)
        folder = RunFolder(str(args.output_dir))
        try:
            return _Run(args=args, task=task, policy=policy, runner=runner, folder=folder).go()
        finally:
            runner.close()
            folder.release()
            folder.discard_if_unused()

    def _task(self, *, chat: bool) -> Task:
        if self._data is None and self.args.data is not None:
            self._data = DataTask(self.args.data, self.args.eval_data)
        if self._data is not None:
            return self._data.for_model(chat=chat)
        if self.args.eval_data is not None:
            raise UsageError("--eval_data goes with --data: a built-in task holds out its own problems.")
        return make_task(self.args.task, chat=chat)

    def _policy(self) -> Policy:
        if self._loaded is not None:
            return Policy(model=self._loaded, tokenizer=self._tokenizer, name=type(self._loaded).__name__)
        return load_policy(self.args.model, dtype=self.args.dtype, device=self.args.device, seed=self.args.seed)

    def _runner(self, task: Task, reward: str | None) -> RewardRunner:
        """The reward functions, tried on one row of each part of the data."""
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


class _Run:
    """One run under way: everything is loaded and claimed."""

    def __init__(self, *, args: TrainArgs, task: Task, policy: Policy, runner: RewardRunner, folder: RunFolder) -> None:
        self.args = args
        self.task = task
        self.policy = policy
        self.runner = runner
        self.folder = folder
        self.engine: Engine = LocalEngine(policy)
        self.sampling = Sampling(
            max_new_tokens=known(args.max_new_tokens),
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
        )
        self.console = Console(args.max_steps)
        self._starved = False
        self.tally = RewardTally(runner)

    def go(self) -> TrainResult:
        announce(self.args, self.task)
        self.folder.write_config(flat_config(self.args))
        self._warm_up()
        reference = self.policy.frozen_copy() if self.args.objective.needs_reference else None
        before = self._evaluate(0)
        self._shake_hands()
        learner = Learner(
            policy=self.policy,
            reference=reference,
            optimizer=MasterAdamW(self.policy.model.parameters(), weight_decay=self.args.weight_decay),
            source=self._source(),
            args=self.args,
        )
        steps, checkpoint, after = self._steps(learner)
        draw_curve(self.folder.path)
        self.console.say(f"run folder: {self.folder.path}")
        if before is not None and after is not None:
            self.console.say(f"held-out accuracy before: {before.value:.2f}")
            self.console.say(f"held-out accuracy after: {after.value:.2f}")
        return TrainResult(folder=self.folder.path, checkpoint=checkpoint, steps=steps, before=before, after=after)

    def _steps(self, learner: Learner) -> tuple[int, Path, Accuracy | None]:
        args = self.args
        step, checkpoint, after = 0, None, None
        with GracefulStop() as stop, self.console:
            while step < args.max_steps and stop.received is None:
                step += 1
                with (
                    self._saving_what_there_is(step),
                    self.tally.of_step(step, self.folder.write_rewards, self.console.say),
                ):
                    report, batch = training_step(learner, step)
                self.folder.write_metrics(report)
                if args.rollouts_every and step % args.rollouts_every == 0:
                    self.folder.write_rollouts(step, batch)
                self.console.step(report)
                self._warn(report)
                last = step == args.max_steps
                # Saved first: an evaluation takes time, and its reward functions may raise.
                if last or (args.save_every and step % args.save_every == 0):
                    checkpoint = self.folder.write_checkpoint(step, self.policy.save)
                if stop.received is None and (last or (args.eval_every and step % args.eval_every == 0)):
                    after = self._evaluate(step)
            # After the loop, as a signal may come at any place in it, or before it.
            if checkpoint is None or checkpoint.name != f"checkpoint-{step}":
                checkpoint = self.folder.write_checkpoint(step, self.policy.save)
        if stop.received is not None:
            self.console.say(f"stopped by {stop.received.name} after step {step}; saved {checkpoint}")
            stop.leave()
        return step, checkpoint, after

    @contextlib.contextmanager
    def _saving_what_there_is(self, step: int) -> Iterator[None]:
        """Save the weights before an exception ends the run: a reward that returned nonsense, memory that ran out."""
        version = self.policy.version
        try:
            yield
        except Exception:
            # With an update behind it, they are no longer those of the step before.
            done = step - 1 if self.policy.version == version else step
            if not (self.folder.path / f"checkpoint-{done}").exists():
                saved = self.folder.write_checkpoint(done, self.policy.save)
                self.console.say(f"step {step} failed; saved {saved}")
            raise

    def _source(self) -> SamplingSource:
        objective = self.args.objective
        return SamplingSource(
            stream=self.task.stream(self.args.seed),
            engine=self.engine,
            encode=self.policy.encode,
            decode=self.policy.decode,
            runner=self.runner,
            sampling=self.sampling,
            group_size=self.args.group_size,
            context_length=self.policy.context_length,
            only_informative=objective.resample,
            budget=self.args.resample_budget,
        )

    def _warm_up(self) -> None:
        steps, seed = known(self.args.sft_steps), self.args.seed
        if steps == 0:
            return
        plan = dataclasses.replace(TINY_WARM_UP, steps=steps, seed=seed)
        if self.args.model != TINY:
            rate = known(self.args.learning_rate)
            plan = WarmUp(steps=steps, batch_size=WARM_UP_BATCH_SIZE, learning_rate=rate, seed=seed)
        self.console.say(f"warm-up: up to {steps} supervised steps on worked answers, unless they are in the cache")
        report = warm_up_cached(self.policy, worked_examples(self.task, self.policy, seed), plan)
        where = "from the cache" if report.from_cache else f"{report.steps} steps in {report.seconds:.0f} s"
        self.console.say(f"warm-up on worked answers: {where}, loss {report.loss:.2f} nats per token")

    def _evaluate(self, step: int) -> Accuracy | None:
        prompts = list(self.task.held_out)[: self.args.eval_prompts]
        if not prompts:
            return None
        accuracy = greedy_accuracy(
            self.engine, self.policy.encode, self.policy.decode, prompts, self.runner, self.sampling.max_new_tokens
        )
        self.folder.write_evaluation(
            {
                "step": step,
                "accuracy": accuracy.value,
                "low": accuracy.low,
                "high": accuracy.high,
                "n": accuracy.n,
                "unscored": accuracy.unscored,
            }
        )
        self.console.say(
            f"step {step}: held-out greedy accuracy {accuracy.value:.3f} "
            f"[{accuracy.low:.3f}, {accuracy.high:.3f}] on {accuracy.n} problems"
        )
        return accuracy

    def _shake_hands(self) -> None:
        prompts = [self.policy.encode(draw.prompt) for draw in self.task.stream(self.args.seed).take(4)]
        tolerance = known(self.args.handshake_tolerance)
        result = shake_hands(self.policy, self.engine, prompts, self.sampling, tolerance)
        self.console.say(
            f"handshake: sampler and trainer differ by {result.gap:.1e} nats on average over {result.tokens} tokens "
            f"(allowed {tolerance:.0e})"
        )

    def _warn(self, report: StepReport) -> None:
        """Once each: most groups carry no signal at the start; dynamic sampling used up its budget."""
        budget = self.args.resample_budget
        if self.args.objective.resample and report.rounds == budget and not self._starved:
            self._starved = True
            self.console.say(
                f"note: step {report.step} used up the budget of {budget} rounds of sampling (--resample_budget) and "
                "trains on the informative groups there are; so will every later step that does"
            )
        if report.step != 1 or report.informative >= 0.5 or report.reward is None:
            return
        if report.informative == 0.0:
            self.console.say(
                f"note: no group carries a signal: the answers to each prompt earned the same, {report.reward:.2f} on "
                f"average. {self.folder.path / 'rollouts'} shows what was answered and why it was judged so. An easier "
                "task, a warm-up, an example in the prompt or a larger --group_size gives rewards that differ"
            )
            return
        expected = ""
        if 0.0 <= report.reward <= 1.0:
            share = uninformative_share(report.reward, self.args.group_size)
            expected = (
                f"; at a success rate of {report.reward:.2f}, G={self.args.group_size} leads one to expect {share:.0%}"
            )
        self.console.say(f"note: {1 - report.informative:.0%} of the groups carry no signal{expected}")


def worked_examples(task: Task, policy: Policy, seed: int) -> list[tuple[list[int], list[int]]]:
    """Prompt and answer ids, end token included, of a task's worked answers."""
    end = policy.tokenizer.eos_token_id
    return [
        (
            policy.encode(prompt),
            [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], *([] if end is None else [end])],
        )
        for prompt, text in task.demonstrations(WARM_UP_EXAMPLES, seed)
    ]


def announce(args: TrainArgs, task: Task) -> None:
    """Print what a run is going to do."""
    console = Console(args.max_steps)
    updates = args.minibatches * args.epochs_per_batch
    rows = "endless" if task.size is None else f"{task.size} rows"
    console.say("configuration: " + " ".join(f"{name}={_spelled(value)}" for name, value in flat_config(args).items()))
    evaluated, answers = min(len(task.held_out), args.eval_prompts), args.prompts_per_step * args.group_size
    console.say(
        f"task {task.name} ({rows}, {len(task.held_out)} held out, {evaluated} of them in an evaluation); "
        f"{args.prompts_per_step} prompts x {args.group_size} answers = {answers} answers and {updates} updates a step"
    )
    for remark in task.remarks:
        console.say(f"data: {remark}")
    for note in notes(args.objective, updates_per_step=updates, group_size=args.group_size, preset=args.preset):
        console.say(f"note: {note}")


def _spelled(value: object) -> str:
    """As the flag takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def flat_config(args: TrainArgs) -> dict[str, Any]:
    """The configuration as one flat mapping, the flags' names and values."""
    config: Mapping[str, Any] = dataclasses.asdict(args)
    return {**{k: v for k, v in config.items() if k != "objective"}, **config["objective"]}
