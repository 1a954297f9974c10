"""A run under way: everything is loaded and claimed, and the steps are taken."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upweight.evaluate.accuracy import Accuracy, accuracy_of, greedy_answers
from upweight.objective.advantage import uninformative_share
from upweight.objective.remarks import notes
from upweight.policy.policy import Policy
from upweight.policy.warmup import TINY_WARM_UP, WarmUp, warm_up_cached
from upweight.rewards.runner import RewardRunner
from upweight.rollout.completion import Engine, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.task import Task
from upweight.train.args import TrainArgs
from upweight.train.checkpoint import CheckpointError
from upweight.train.console import Console
from upweight.train.curve import draw_curve
from upweight.train.folder import RunFolder, metrics_row, read_rows
from upweight.train.handshake import TOLERANCE, shake_hands
from upweight.train.intake import EVAL_PROMPTS
from upweight.train.keeper import Keeper
from upweight.train.launch import Launch
from upweight.train.optimizer import MasterAdamW
from upweight.train.ranks import ALONE, Ranks, share_of
from upweight.train.records import StepReport
from upweight.train.redact import redacted
from upweight.train.resolve import TINY, known
from upweight.train.resume import AFRESH, Start
from upweight.train.shard import sharded
from upweight.train.signals import GracefulStop, SamplingDropped
from upweight.train.source import SamplingSource
from upweight.train.state import Progress, undisturbed
from upweight.train.step import Learner, training_step
from upweight.train.tally import RewardTally

WARM_UP_BATCH_SIZE = 16
"""Worked answers a step of a warm-up of any model but tiny."""

WARM_UP_EXAMPLES = 20_000
"""Worked answers that the supervised warm-up draws from."""


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
    """Held-out greedy accuracy before the first step; None where the task holds nothing out, or where the run went on
    from a checkpoint: evaluations.jsonl has it."""

    after: Accuracy | None
    """And after the last; None likewise, where nothing was left to do."""


class Run:
    """One run under way: everything is loaded and claimed."""

    def __init__(
        self,
        *,
        args: TrainArgs,
        task: Task,
        policy: Policy,
        runner: RewardRunner,
        folder: RunFolder,
        launch: Launch,
        start: Start = AFRESH,
        ranks: Ranks = ALONE,
    ) -> None:
        self.args = args
        self.task = task
        self.policy = policy
        self.runner = runner
        self.folder = folder
        self.launch = launch
        self.ranks = ranks
        self.stop = GracefulStop()
        # Of several ranks none may leave the sampling alone: they agree between two rounds.
        self.engine: Engine = LocalEngine(policy, between=self.stop.check if ranks.world == 1 else None)
        self.sampling = Sampling(
            max_new_tokens=known(args.max_new_tokens),
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
        )
        self.console = Console(args.max_steps, quiet=not ranks.first)
        self.notes: set[str] = set()
        self.tally = RewardTally(runner, ranks)
        self.keeper = Keeper(
            folder=folder,
            args=args,
            config=flat_config(args),
            start=start,
            policy=policy,
            override=launch.resume_override,
            say=self.console.say,
        )

    def go(self) -> TrainResult:
        if self.ranks.first:
            announce(self.args, self.task)
        self.keeper.take_over()
        self.folder.write_config(flat_config(self.args))
        if self.keeper.begun is None:
            with self.ranks.in_turn():  # the others find it in the cache
                self._warm_up()
        self.ranks.same(self.policy.model.parameters())
        reference = self.keeper.reference()
        trained, whole = self.policy, None
        if self.launch.shard == "full" and self.ranks.world > 1:
            trained, whole = sharded(self.policy, self.ranks), self.policy
            reference = None if reference is None else sharded(reference, self.ranks)
        before = self._evaluate(0) if self.keeper.begun is None else None
        self._shake_hands(trained)
        learner = Learner(
            policy=trained,
            whole=whole,
            reference=reference,
            optimizer=MasterAdamW(
                trained.model.named_parameters(), weight_decay=self.args.weight_decay, ranks=self.ranks
            ),
            source=self._source(),
            args=self.args,
            ranks=self.ranks,
        )
        steps, checkpoint, after = self._steps(learner)
        if self.ranks.first:
            draw_curve(self.folder.path)
        self.console.say(f"run folder: {self.folder.path}")
        values = [self._evaluated(step) for step in (0, steps)]
        if None not in values:
            self.console.say(f"held-out accuracy before: {values[0]:.2f}")
            self.console.say(f"held-out accuracy after: {values[1]:.2f}")
        return TrainResult(folder=self.folder.path, checkpoint=checkpoint, steps=steps, before=before, after=after)

    def _steps(self, learner: Learner) -> tuple[int, Path, Accuracy | None]:
        args = self.args
        here = self._go_on(learner)
        step, checkpoint, last = here.step, self.keeper.start.checkpoint, here.step >= args.max_steps
        after = None
        with self.stop as stop, self.console:
            if step and self._due(step, last) and self._evaluated(step) is None:
                after = self._evaluate(step)
            while not last and not stop.agreed(self.ranks):
                step += 1
                try:
                    with (
                        self._saving_what_there_is(learner, here),
                        self.tally.of_step(step, self.folder.write_rewards, self.console.say),
                        stop.dropping(),
                    ):
                        report, batch = training_step(learner, step)
                except SamplingDropped:
                    step -= 1
                    break
                self.folder.write_metrics(report)
                self.folder.write_rollouts(step, batch)
                self.console.step(report)
                learner.guard.end(step, batch, self.folder.path / "dumps", self.console.say, write=self.ranks.first)
                last = step == args.max_steps or learner.guard.has_enough or self._ends_starved(report)
                self._warn(report)
                here = self.keeper.progress(learner, self.tally, self.notes, step, metrics_row(report))
                # Saved first: an evaluation takes time, and its reward functions may raise.
                if last or (args.save_every and step % args.save_every == 0):
                    checkpoint = self.keeper.write(learner, here)
                if self._due(step, last) and not learner.guard.has_enough and not stop.agreed(self.ranks):
                    after = self._evaluate(step)
            # After the loop, as a signal may come at any place in it, or before it.
            if checkpoint is None or checkpoint.name != f"checkpoint-{step}":
                checkpoint = self.keeper.write(learner, here)
        learner.guard.refuse_to_go_on(checkpoint)
        if stop.agreed(self.ranks) and stop.received is not None:
            self.console.say(f"stopped by {stop.received.name} after step {step}; saved {checkpoint}")
            stop.leave()
        return step, checkpoint, after

    def _go_on(self, learner: Learner) -> Progress:
        """Bring everything to where the run stood; where it starts afresh, that is step 0."""
        begun = self.keeper.restore(learner, self.task, self.tally)
        if begun is None:
            return self.keeper.progress(learner, self.tally, self.notes, 0, None)
        self.policy.version = begun.version
        self.notes.update(begun.notes)
        self.console.done = begun.step
        if begun.step >= self.args.max_steps:
            self.console.say(
                f"the run has taken its {begun.step} steps and is done; a larger --max_steps takes it further"
            )
        return begun

    @contextlib.contextmanager
    def _saving_what_there_is(self, learner: Learner, before: Progress) -> Iterator[None]:
        """Save before an exception ends the run: a reward that returned nonsense, memory that ran out."""
        try:
            yield
        except Exception:
            step = before.step + 1
            if learner.whole is not None:
                raise  # the parts that the others hold may be out of reach
            try:
                # With an update behind it, the weights are no longer those of the step before.
                unchanged = self.policy.version == before.version
                saved = self.keeper.write(learner, before) if unchanged else self.keeper.write_failed(step)
                self.console.say(f"step {step} failed; saved {saved}")
            except CheckpointError as error:
                self.console.say(f"step {step} failed, and so did saving: {error}")
            raise

    def _due(self, step: int, last: bool) -> bool:
        """Whether a step is followed by an evaluation."""
        return last or (self.args.eval_every > 0 and step % self.args.eval_every == 0)

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
            when_starved=self.args.when_starved,
            version=lambda: self.policy.version,
            interrupted=self.stop.asked,
            ranks=self.ranks,
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
        prompts = list(self.task.held_out)[:EVAL_PROMPTS]
        if not prompts:
            return None
        self.ranks.at(f"in the evaluation after step {step}")
        policy, budget = self.policy, self.sampling.max_new_tokens
        mine = share_of([1] * len(prompts), self.ranks)
        with undisturbed():
            asked = [prompts[place] for place in mine]
            answers = greedy_answers(self.engine, policy.encode, policy.decode, asked, self.runner, budget)
        parts = self.ranks.gather(dict(zip(mine, answers, strict=True)))
        by_place = {place: answer for part in parts for place, answer in part.items()}
        accuracy = accuracy_of([by_place[place] for place in range(len(prompts))])
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

    def _evaluated(self, step: int) -> float | None:
        """Held-out accuracy after a step, as it was written down; None where it was not."""
        rows = self.ranks.from_first(lambda: read_rows(self.folder.path / "evaluations.jsonl"))
        return next((row["accuracy"] for row in rows if row["step"] == step), None)

    def _shake_hands(self, trained: Policy) -> None:
        prompts = [self.policy.encode(draw.prompt) for draw in self.task.stream(self.args.seed).take(4)]
        tolerance = TOLERANCE[self.args.dtype]
        result = shake_hands(trained, self.engine, prompts, self.sampling, tolerance)
        self.console.say(
            f"handshake: sampler and trainer differ by {result.gap:.1e} nats on average over {result.tokens} tokens "
            f"(allowed {tolerance:.0e})"
        )

    def _ends_starved(self, report: StepReport) -> bool:
        return self.args.when_starved == "stop" and report.missing_groups > 0

    def _warn(self, report: StepReport) -> None:
        """Once each: most groups carry no signal at the start; dynamic sampling used up its budget."""
        if report.missing_groups and "starved" not in self.notes:
            self.notes.add("starved")
            what = {
                "stop": "so the run ends here (--when_starved stop), saved",
                "train": "and trains on those there are; so will every later step that does",
                "skip": "and makes no update; they are kept for the next step (--when_starved skip)",
            }[self.args.when_starved]
            self.console.say(
                f"note: step {report.step} used up the budget of {self.args.resample_budget} rounds of sampling "
                f"(--resample_budget) and lacks {report.missing_groups} of {self.args.prompts_per_step} informative "
                f"groups, {what}. {report.informative:.0%} of {report.sampled_groups} sampled groups carry a signal"
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
    evaluated, answers = min(len(task.held_out), EVAL_PROMPTS), args.prompts_per_step * args.group_size
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
    """The configuration as one flat mapping, the flags' names and values, without the secrets in them."""
    config: Mapping[str, Any] = dataclasses.asdict(args)
    flat = {**{k: v for k, v in config.items() if k != "objective"}, **config["objective"]}
    return {name: redacted(value) for name, value in flat.items()}
