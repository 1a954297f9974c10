"""How often each reward function failed, over a run."""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from upweight.rewards.runner import RewardRunner
from upweight.train.ranks import ALONE, Ranks
from upweight.train.signals import SamplingDropped


class RewardTally:
    """Counts training answers and failures by reward function, over all ranks.

    What evaluations and dry runs ask does not count, nor what a signal made a step drop: the next run asks it again.
    """

    def __init__(self, runner: RewardRunner, ranks: Ranks = ALONE) -> None:
        self._runner = runner
        self._ranks = ranks
        self._judged: collections.Counter[str] = collections.Counter()
        self._failed: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def of_step(
        self, step: int, write: Callable[[Mapping[str, Mapping[str, Any]]], None], say: Callable[[str], None]
    ) -> Iterator[None]:
        """Count what is judged within.

        Args:
            step: its number, for messages.
            write: takes the counts of the run so far, by function; called also where the step raises, as a step that
                ends over one failure too many is the one whose counts matter most.
            say: takes a line for each function that failed in the step.
        """
        judged, failed = self._runner.judged.copy(), self._runner.failed.copy()
        together = False
        try:
            yield
            together = True
        except SamplingDropped:
            self._runner.judged, self._runner.failed = judged, failed
            raise
        finally:
            judged, failed = self._runner.judged - judged, self._runner.failed - failed
            if together:  # a step that raises may do so on this rank alone
                parts = self._ranks.gather((judged, failed))
                judged = sum((part for part, _ in parts), collections.Counter())
                failed = sum((part for _, part in parts), collections.Counter())
            self._judged += judged
            self._failed += failed
            write(self.rows())
            for name, count in failed.items():
                say(
                    f"step {step}: the reward function '{name}' failed on {count} of {judged[name]} answers; "
                    f"{self._failed[name]} of {self._judged[name]} so far"
                )

    def go_on(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Count on from what `rows` gave; a function that has gone is left out."""
        for name in self._runner.names:
            if name in rows:
                self._judged[name], self._failed[name] = int(rows[name]["answers"]), int(rows[name]["failed"])

    def rows(self) -> dict[str, dict[str, Any]]:
        """The contents of rewards.json; docs/glossary.md explains each key."""
        return {
            name: {
                "weight": weight,
                "answers": self._judged[name],
                "failed": self._failed[name],
                "error_rate": self._failed[name] / max(1, self._judged[name]),
            }
            for name, weight in zip(self._runner.names, self._runner.weights, strict=True)
        }
