"""`Keeper`: writes a run's checkpoints, and brings a run back from one."""

import contextlib
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.tasks.task import Task
from upweight.train.args import TrainArgs
from upweight.train.guards import MAX_IN_A_ROW, first_nonfinite
from upweight.train.saving.begun import check_identity, differences, no_longer_exact
from upweight.train.saving.checkpoint import (
    TEMPORARY,
    CheckpointError,
    DamagedCheckpoint,
    bytes_of,
    check_whole,
    checkpoints_of,
    fingerprint_of,
    free_bytes,
    in_units,
    leftovers_of,
    remove_leftovers,
    remove_whole,
    step_of,
    write_whole,
)
from upweight.train.saving.folder import REFERENCE, RunFolder, check_names, check_rows
from upweight.train.saving.resume import Start, names_of
from upweight.train.saving.state import (
    Progress,
    checkpoint_bytes,
    identity_of,
    load_progress,
    load_weights,
    made_with,
    random_state,
    save_training,
    set_random_state,
    weights_bytes,
)
from upweight.train.shard import PARTS, read_state, write_part
from upweight.train.step import Learner
from upweight.train.tally import RewardTally


class Keeper:
    """What a run saves and comes back from.

    Attributes:
        begun: where the run stood at the checkpoint it goes on from; None where it starts afresh.
    """

    def __init__(
        self,
        *,
        folder: RunFolder,
        args: TrainArgs,
        config: Mapping[str, Any],
        start: Start,
        policy: Policy,
        override: bool,
        shard: str,
        say: Callable[[str], None],
    ) -> None:
        """Read where the run stood; nothing is changed before `take_over`.

        Args:
            folder: claimed.
            args: resolved.
            config: the same, flat.
            start: where the run starts.
            policy: with the weights of the start.
            override: go on also with another model, tokenizer, data or objective.
            shard: as the flag takes it.
            say: takes a line of text.
        """
        self.folder = folder
        self.args = args
        self.config = config
        self.start = start
        self.policy = policy
        self.override = override
        self.say = say
        self.begun = None if start.checkpoint is None else load_progress(start.checkpoint)
        self._identity: Mapping[str, Any] = {}
        self._aside: Path | None = None
        self._made_with = made_with(folder.ranks.world, shard)
        self._bytes = checkpoint_bytes(policy)

    def check(self, task: Task) -> None:
        """Refuse what is another run, or not as a run left it, and say what differs; nothing on the disk is changed.

        Args:
            task: the data.

        Raises:
            DamagedCheckpoint: the reference is not whole.
            UsageError: another configuration, model, tokenizer, data or reference than the run was begun with, another
                process was at it, files that no run wrote, or no room for the checkpoints.
        """
        if not self.folder.ranks.first:
            return
        start, override = self.start, self.override
        if start.folder is not None:
            if start.seen != names_of(start.folder):
                raise UsageError(
                    f"Another process has gone on with the run in {str(start.folder)!r} while this one was loading. "
                    "Give the command again."
                )
            check_names(start.folder)
        changed = differences(start.config or {}, self.config, override=override)
        if self.begun is not None:
            check_rows(self.folder.path)
            self._identity = identity_of(self.policy, task, self.args.seed, self._reference_of(self.begun))
            changed += check_identity(self.begun.identity, self._identity, override=override)
            self._check_position(self.begun, task)
            changed += no_longer_exact(self.begun.made_with, self._made_with)
        self._check_room()
        for remark in start.remarks:
            self.say(remark)
        for line in changed:
            self.say(f"changed: {line}")
        if self.begun is not None and len(self.begun.random) != self.folder.ranks.world:
            self.say("changed: rewards that draw on Python's, numpy's or torch's noise draw otherwise from here on")
        if self.begun is not None:
            self.say(f"going on from {start.checkpoint}")

    def take_over(self) -> None:
        """Make the folder this run's: clear away what it will write again, and write its configuration.

        Called once nothing can be refused any more. A run that starts afresh sets aside what an earlier start has left
        there; one that goes on cuts everything back to where it stood.
        """
        if self.folder.ranks.first:
            for name in remove_leftovers(self.folder.path):
                self.say(f"removed {name}, which a run that was killed had left half written")
            if self.begun is not None:
                self.folder.cut_back(self.begun.step, self.begun.row)
            elif self.start.folder is not None:
                self._aside = self.folder.set_start_aside()
                left = f"; what an earlier start left there is in {self._aside}" if self._aside else ""
                self.say(f"{self.start.folder} has no checkpoint yet{left}")
        self.folder.write_config(self.config)

    def reference(self) -> Policy | None:
        """The policy that the KL is taken to: as it is now at the start of a run, and as it was then ever after.

        It is kept in RUN/reference, so that going on does not depend on where the model came from, or on a warm-up that
        another machine would round differently. `check` has looked at it.
        """
        if not self.args.objective.needs_reference:
            return None
        kept = self.folder.path / REFERENCE
        reference = self.policy.frozen_copy()
        if self.begun is not None:
            load_weights(reference, kept)
            reference.version = 0
        elif self.folder.ranks.first:
            if kept.exists():
                remove_whole(kept)
            write_whole(kept, self.policy.save, bytes_needed=weights_bytes(self.policy))
            self._drop_copy(kept)
        return reference

    def restore(self, learner: Learner, task: Task, tally: RewardTally) -> Progress | None:
        """Bring everything but the weights, which are loaded, to where it stood, in memory alone.

        Args:
            learner: fresh.
            task: the data.
            tally: fresh.

        Returns:
            Where the run stands; None where it starts afresh.

        Raises:
            UsageError: the optimiser's state is not that of this model.
        """
        ranks = self.folder.ranks
        if self.begun is None or self.start.checkpoint is None:
            if ranks.first:
                kept = None if learner.reference is None else fingerprint_of(self.folder.path / REFERENCE)
                self._identity = identity_of(self.policy, task, self.args.seed, kept)
            return None
        tensors = read_state(self.start.checkpoint, ranks, whole=learner.whole is None)
        learner.optimizer.load_state_tensors(tensors)
        learner.policy.version = self.begun.version
        try:
            learner.source.load_state_dict(self.begun.source)
        except UsageError as error:
            if not self.override:
                raise
            self.say(f"changed: the data start anew, as the old position means nothing in them ({error})")
        tally.go_on(self.begun.rewards)
        set_random_state(self.begun.random[ranks.rank % len(self.begun.random)])
        # A run that has ended over it, and goes on all the same, has all its steps again.
        learner.guard.in_a_row = self.begun.in_a_row % MAX_IN_A_ROW
        return self.begun

    def _reference_of(self, begun: Progress) -> str | None:
        """SHA-256 of the run's reference policy, which is whole; None without a KL."""
        if not self.args.objective.needs_reference:
            return None
        kept, checkpoint = self.folder.path / REFERENCE, self.start.checkpoint
        if begun.identity["reference"] is None:
            raise UsageError(
                f"The run in {str(self.start.folder)!r} has no reference policy that a KL could be taken to: it began "
                "without a KL. Leave --kl_coef at 0; a new run that starts from its weights is --model "
                f"{checkpoint}."
            )
        try:
            check_whole(kept)
        except DamagedCheckpoint as damage:
            what = str(damage).partition(" is damaged: ")[2] if kept.exists() else "it is not there."
            raise DamagedCheckpoint(
                f"The run's reference policy {str(kept)!r} is damaged: {what} The KL is taken to it and to no "
                "other. Put it back from a copy of the run's folder; a new run that starts from the weights of now is "
                f"--model {checkpoint}."
            ) from damage
        return fingerprint_of(kept)

    def _check_position(self, begun: Progress, task: Task) -> None:
        """Refuse a position that means nothing in the data, on a stream that nobody draws from."""
        try:
            task.stream(self.args.seed).load_state_dict(begun.source["stream"])
        except UsageError:
            if not self.override:
                raise

    def _drop_copy(self, kept: Path) -> None:
        """Of two references that are the same, file by file, one is enough: that of this start, not that of one before.

        Starts that come to no checkpoint would fill the disk with them.
        """
        old = None if self._aside is None else self._aside / REFERENCE
        if old is None or not old.exists():
            return
        with contextlib.suppress(DamagedCheckpoint):
            check_whole(old)
            if fingerprint_of(old) == fingerprint_of(kept):
                remove_whole(old)

    def progress(
        self, learner: Learner, tally: RewardTally, notes: Collection[str], step: int, row: Mapping[str, Any] | None
    ) -> Progress:
        """Where the run stands now, between two steps; a collective.

        Args:
            learner: after `step` steps.
            tally: likewise.
            notes: that have been said.
            step: steps taken.
            row: the last of metrics.jsonl.
        """
        return Progress(
            step=step,
            version=learner.policy.version,
            source=learner.source.state_dict(),
            rewards=tally.rows(),
            in_a_row=learner.guard.in_a_row,
            notes=tuple(notes),
            row=row,
            random=self.folder.ranks.gather(random_state()),
            identity=self._identity,
            made_with=self._made_with,
        )

    def write(self, learner: Learner, progress: Progress) -> Path:
        """Write checkpoint-N; called by all ranks, as the state may be spread over them.

        Args:
            learner: its weights and moments are those of `progress`.
            progress: where the run stands.

        Raises:
            CheckpointError: it could not be written, or is not worth it as a weight is not finite; the ones before it
                are as they were.
        """
        check_finite(self.policy)
        tensors, parts = learner.optimizer.state_tensors(), None
        if learner.whole is not None:  # each rank writes its own, and the first takes them in
            parts = self.folder.path / f"{TEMPORARY}parts-{progress.step}"
            write_part(parts, tensors, learner.policy.model, learner.ranks)

        def save(folder: Path) -> None:
            self.policy.save(folder)
            save_training(folder, progress, tensors if parts is None else {}, self.config)
            if parts is not None:
                shutil.move(parts, folder / PARTS)

        try:
            return self.folder.write_checkpoint(
                progress.step, save, keep=self.args.keep_checkpoints, bytes_needed=self._bytes
            )
        finally:
            if parts is not None and learner.ranks.first:
                shutil.rmtree(parts, ignore_errors=True)  # there only where the checkpoint was not written

    def write_failed(self, step: int) -> Path:
        """The weights in the middle of a step, as failed-step-N: a model, and nothing to go on from."""
        target = self.folder.path / f"failed-step-{step}"
        check_finite(self.policy)
        if self.folder.ranks.first:
            if target.exists():  # of an attempt before, that failed in this step too
                remove_whole(target)
            write_whole(target, self.policy.save, bytes_needed=weights_bytes(self.policy))
        return target

    def _check_room(self) -> None:
        """Refuse to start where the disk cannot hold the checkpoints that the run will write."""
        args = self.args
        done = 0 if self.begun is None else self.begun.step
        saves = 1 + (max(0, args.max_steps - 1 - done) // args.save_every if args.save_every else 0)
        # Later ones are set aside, and stay on the disk.
        there = [] if self.begun is None else [c for c in checkpoints_of(self.folder.path) if step_of(c) <= done]
        # The newest are kept, the best, and a new one is whole before the oldest goes.
        most = args.keep_checkpoints + 2 - len(there)
        new = saves if args.keep_checkpoints == 0 else min(saves, max(1, most))
        reference = weights_bytes(self.policy) if args.objective.needs_reference and self.begun is None else 0
        freed = sum(map(bytes_of, leftovers_of(self.folder.path)))
        needed, free = new * self._bytes + reference, free_bytes(self.folder.path) + freed
        if needed > free:
            raise UsageError(
                f"The disk of {str(self.folder.path)!r} has {in_units(free)} free, and the run will write "
                f"{in_units(needed)}: {new} checkpoints of {in_units(self._bytes)}"
                + (f" and the reference of {in_units(reference)}" if reference else "")
                + ". Make room, choose an --output_dir on another disk, or lower --keep_checkpoints."
            )


def check_finite(policy: Policy) -> None:
    """Refuse to save weights that are not finite: a checkpoint that nothing can go on from must not look like one.

    Raises:
        CheckpointError: naming the parameter.
    """
    broken = first_nonfinite(policy.model.named_parameters())
    if broken is not None:
        raise CheckpointError(
            f"The weights of {broken} are not finite after update {policy.version}, so they were not saved; the "
            "checkpoints before are as they were. Go on from the last one with --resume, and a lower --learning_rate."
        )
