"""A run under way: everything is loaded and claimed, and the steps are taken."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from upweight.evaluate.accuracy import Accuracy
from upweight.policy.policy import Policy
from upweight.policy.warmup import TINY_WARM_UP, WarmUp, warm_up_cached
from upweight.rewards.runner import RewardRunner
from upweight.rollout.completion import Engine, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.task import Task
from upweight.train.args import TrainArgs
from upweight.train.console import Console, announce, remarks_on
from upweight.train.curve import draw_curve
from upweight.train.divided import on_all_ranks
from upweight.train.handshake import TOLERANCE, shake_hands
from upweight.train.held_out import HeldOut
from upweight.train.launch import Launch
from upweight.train.optimizer import MasterAdamW
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Batch, StepReport
from upweight.train.resolve import TINY, known
from upweight.train.saving.begun import flat_config
from upweight.train.saving.checkpoint import CheckpointError
from upweight.train.saving.folder import RunFolder, metrics_row
from upweight.train.saving.keeper import Keeper
from upweight.train.saving.resume import AFRESH, Start
from upweight.train.saving.state import Progress
from upweight.train.shard import sharded
from upweight.train.signals import GracefulStop, SamplingDropped
from upweight.train.source import SamplingSource
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
        self.held_out = HeldOut(
            task=task,
            policy=policy,
            engine=self.engine,
            runner=runner,
            folder=folder,
            max_new_tokens=self.sampling.max_new_tokens,
            say=self.console.say,
        )
        self.keeper = Keeper(
            folder=folder,
            args=args,
            config=flat_config(args),
            start=start,
            policy=policy,
            override=launch.resume_override,
            shard=launch.shard,
            say=self.console.say,
        )

    def go(self) -> TrainResult:
        if self.ranks.first:
            announce(self.args, self.task)
        self.keeper.check(self.task)
        if self.keeper.begun is None:
            self.keeper.take_over()
            with self.ranks.in_turn():  # the others find it in the cache
                self._warm_up()
        self.ranks.same(self.policy.model.parameters())
        reference = self.keeper.reference()
        trained, whole = self.policy, None
        if self.launch.shard == "full" and self.ranks.world > 1:
            trained, whole = sharded(self.policy, self.ranks), self.policy
            reference = None if reference is None else sharded(reference, self.ranks)
        before = self.held_out.evaluate(0) if self.keeper.begun is None else None
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
        values = [self.held_out.known(step) for step in (0, steps)]
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
            if step and self._due(step, last) and self.held_out.known(step) is None:
                after = self._look(learner, here)
            while not last and not stop.agreed(self.ranks):
                step += 1
                try:
                    with (
                        self._saving_what_there_is(learner, here, f"step {step}"),
                        self.tally.of_step(step, self.folder.write_rewards, self.console.say),
                        stop.dropping(),
                    ):
                        report, batch = training_step(learner, step)
                        learner.guard.end(
                            step, batch, self.folder.path / "dumps", self.console.say, write=self.ranks.first
                        )
                except SamplingDropped:
                    step -= 1
                    break
                last = step == args.max_steps or learner.guard.has_enough or self._ends_starved(report)
                remarks = remarks_on(report, args, self.folder.path / "rollouts", self.notes)
                here = self.keeper.progress(learner, self.tally, self.notes, step, metrics_row(report))
                with self._saving_what_there_is(learner, here, f"what comes after step {step}"):
                    self._record(report, batch, remarks)
                # Saved first: an evaluation takes time, and its reward functions may raise.
                if last or (args.save_every and step % args.save_every == 0):
                    checkpoint = self.keeper.write(learner, here)
                if self._due(step, last) and not learner.guard.has_enough and not stop.agreed(self.ranks):
                    after = self._look(learner, here)
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
        self.keeper.take_over()
        self.folder.write_rewards(self.tally.rows())
        self.policy.version = begun.version
        self.notes.update(begun.notes)
        self.console.done = begun.step
        if begun.step >= self.args.max_steps:
            self.console.say(
                f"the run has taken its {begun.step} steps and is done; a larger --max_steps takes it further"
            )
        return begun

    @contextlib.contextmanager
    def _saving_what_there_is(self, learner: Learner, stood: Progress, what: str) -> Iterator[None]:
        """Save before an exception ends the run: a reward that returned nonsense, memory that ran out.

        Args:
            learner: what is saved.
            stood: where the run stood after the last step that was finished.
            what: happens within, for the message.
        """
        try:
            yield
        except Exception as error:
            if learner.whole is not None and not on_all_ranks(error):
                raise  # the parts that the others hold may be out of reach
            try:
                # With an update behind it, the weights are no longer those of that step.
                unchanged = self.policy.version == stood.version
                saved = self.keeper.write(learner, stood) if unchanged else self.keeper.write_failed(stood.step + 1)
                self.console.say(f"{what} failed; saved {saved}")
            except CheckpointError as why:
                self.console.say(f"{what} failed, and so did saving: {why}")
            if on_all_ranks(error):
                self.ranks.agree(True)  # whoever leaves first ends the others, and one of them may still be writing
            raise

    def _record(self, report: StepReport, batch: Batch, remarks: Sequence[str]) -> None:
        """Write down and show a finished step."""
        self.folder.write_metrics(report)
        self.folder.write_rollouts(report.step, batch)
        self.console.step(report)
        for remark in remarks:
            self.console.say(f"note: {remark}")

    def _look(self, learner: Learner, here: Progress) -> Accuracy | None:
        """Evaluate after a step; a signal ends it while it samples in one process, and going on makes up for it."""
        with (
            contextlib.suppress(SamplingDropped),
            self._saving_what_there_is(learner, here, f"the evaluation after step {here.step}"),
            self.stop.dropping(),
        ):
            return self.held_out.evaluate(here.step)
        return None

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
