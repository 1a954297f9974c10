"""Reward functions of users in processes that can be killed, one answer a call."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from upweight.objective.errors import UsageError
from upweight.rewards.contract import RewardError, RewardFunction, read_rewards
from upweight.rewards.lookup import load_function
from upweight.rewards.score import Score, Status
from upweight.rewards.waiting import resolved
from upweight.rewards.workers.pool import Pool

MOST_WORKERS = 8


class IsolatedFunction:
    """A reward function in a pool of workers.

    Each answer is a call of its own, with lists of one, so that one that hangs or crashes costs its own reward alone.
    A function that compares the answers of a batch with each other cannot be run so.
    """

    def __init__(self, name: str, source: str, *, seconds: float) -> None:
        """Take over where the function is; the workers start with the first answers.

        Args:
            name: of the function, for messages.
            source: `module:function` or `file.py:function`.
            seconds: one answer may take.
        """
        self.name = name
        self._pool = Pool(
            "upweight.rewards.isolated:make_call",
            {"name": name, "source": source},
            seconds=seconds,
            size=max(1, min(MOST_WORKERS, os.cpu_count() or 1)),
        )

    def judge(self, arguments: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> tuple[list[Score], str]:
        """Judge answers side by side.

        Args:
            arguments: of one call each.
            rows: row ids, for messages.

        Returns:
            One score per answer, and the first traceback, "" where nothing raised.

        Raises:
            RewardError: the function returned something that is no reward, or cannot be loaded.
            UsageError: a column holds something that cannot be handed to another process.
        """
        for one in arguments:
            self._check_plain(one)
        jobs = [{"arguments": dict(one), "row": row} for one, row in zip(arguments, rows, strict=True)]
        scores: list[Score] = []
        trace = ""
        for reply in self._pool.map(jobs):
            if reply.content.get("kind") == "refused":
                raise RewardError(str(reply.content["why"]))
            if reply.status is Status.SCORED:
                value = reply.content["value"]
                status = Status(reply.content["score_status"])
                value = float("nan") if value is None else float(value)
                scores.append(Score(value=value, status=status, why=str(reply.content["why"])))
                continue
            raised = " raised" if reply.trace else ":"
            scores.append(Score(value=float("nan"), status=reply.status, why=f"{self.name}{raised} {reply.why}"[:300]))
            trace = trace or reply.trace
        return scores, trace

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _check_plain(self, arguments: Mapping[str, Any]) -> None:
        for column, values in arguments.items():
            try:
                json.dumps(values)
            except (TypeError, ValueError) as error:
                raise UsageError(
                    f"The column '{column}' cannot be handed to the reward function '{self.name}' in a process of its "
                    f"own, because it is no JSON ({error}). Leave the column or --isolate_rewards out."
                ) from error


def make_call(options: Mapping[str, Any]) -> Any:
    """What runs in a worker: the function loaded, then called with the arguments of each job."""
    name = str(options["name"])
    function: RewardFunction = load_function(str(options["source"]))

    def call(job: Mapping[str, Any]) -> dict[str, Any]:
        returned = resolved(function(**job["arguments"]))
        try:
            (score,) = read_rewards(name, returned, [int(job["row"])])
        except RewardError as error:
            return {"kind": "refused", "why": str(error)}
        value = score.value if score.status is Status.SCORED else None
        return {"value": value, "score_status": score.status.value, "why": score.why}

    return call
