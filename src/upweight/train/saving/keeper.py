"""`Keeper`: writes a run's checkpoints, and brings a run back from one."""

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
    check_whole,
    checkpoints_of,
    fingerprint_of,
    free_bytes,
    in_units,
    remove_leftovers,
    remove_whole,
    step_of,
    write_whole,
)
from upweight.train.saving.folder import REFERENCE, RunFolder
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
        """Read where the run stood; nothing is changed yet.

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
        self._made_with = made_with(folder.ranks.world, shard)
        self._bytes = checkpoint_bytes(policy)

    def take_over(self) -> None:
        """Refuse what is another run, say what differs, and clear away what the run will write again.

        Raises:
            UsageError: the configuration makes it another run, or the disk has no room for the checkpoints.
        """
        if not self.folder.ranks.first:
            return
        say = self.say
        if self.start.folder is not None and self.start.seen != names_of(self.start.folder):
            raise UsageError(
                f"Another process has gone on with the run in {str(self.start.folder)!r} while this one was loading. "
                "Give the command again."
            )
        if self.begun is not None and self.args.objective.needs_reference and self.begun.identity["reference"] is None:
            raise UsageError(
                f"The run in {str(self.start.folder)!r} has no reference policy that a KL could be taken to: it began "
                "without a KL. Leave --kl_coef at 0; a new run that starts from its weights is --model "
                f"{self.start.checkpoint}."
            )
        for remark in self.start.remarks:
            say(remark)
        for line in differences(self.start.config or {}, self.config, override=self.override):
            say(f"changed: {line}")
        for name in remove_leftovers(self.folder.path):
            say(f"removed {name}, which a run that was killed had left half written")
        self._check_room()
        if self.start.folder is None:
            return
        step, row = (-1, None) if self.begun is None else (self.begun.step, self.begun.row)
        self.folder.cut_back(step, row)
        say(f"going on from {self.start.checkpoint}" if self.begun else f"{self.start.folder} has no checkpoint yet")

    def reference(self) -> Policy | None:
        """The policy that the KL is taken to: as it is now at the start of a run, and as it was then ever after.

        It is kept in RUN/reference, so that going on does not depend on where the model came from, or on a warm-up that
        another machine would round differently.
        """
        if not self.args.objective.needs_reference:
            return None
        kept = self.folder.path / REFERENCE
        reference = self.policy.frozen_copy()
        if self.begun is not None:
            check_whole(kept)
            load_weights(reference, kept)
            reference.version = 0
        elif self.folder.ranks.first:
            if kept.exists():
                remove_whole(kept)
            write_whole(kept, self.policy.save, bytes_needed=weights_bytes(self.policy))
        return reference

    def restore(self, learner: Learner, task: Task, tally: RewardTally) -> Progress | None:
        """Bring everything but the weights, which are loaded, to where it stood; hashes are compared first.

        Args:
            learner: fresh.
            task: the data.
            tally: fresh.

        Returns:
            Where the run stands; None where it starts afresh.

        Raises:
            UsageError: another model, tokenizer, data or reference than the run was begun with.
        """
        ranks = self.folder.ranks
        kept = self.folder.path / REFERENCE
        if ranks.first:
            fingerprint = None if learner.reference is None else fingerprint_of(kept)
            self._identity = identity_of(self.policy, task, self.args.seed, fingerprint)
        if self.begun is None or self.start.checkpoint is None:
            return None
        if ranks.first:
            exact = no_longer_exact(self.begun.made_with, self._made_with)
            for line in check_identity(self.begun.identity, self._identity, override=self.override) + exact:
                self.say(f"changed: {line}")
            if len(self.begun.random) != ranks.world:
                self.say("changed: rewards that draw on Python's, numpy's or torch's noise draw otherwise from here on")
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
        self.folder.write_rewards(tally.rows())
        set_random_state(self.begun.random[ranks.rank % len(self.begun.random)])
        # A run that has ended over it, and goes on all the same, has all its steps again.
        learner.guard.in_a_row = self.begun.in_a_row % MAX_IN_A_ROW
        return self.begun

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
        needed, free = new * self._bytes + reference, free_bytes(self.folder.path)
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
