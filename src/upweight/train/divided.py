"""Sampling and judging, divided over the processes of a run: each gets all of it, and fails where one does."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from upweight.rewards.runner import Failures, RewardRunner
from upweight.train.ranks import Ranks, share_of

_T = TypeVar("_T")

_MARK = "_on_all_ranks"


def divided(
    costs: Sequence[int],
    answer: Callable[[list[int]], tuple[list[_T], Failures]],
    runner: RewardRunner,
    ranks: Ranks,
) -> list[_T]:
    """Every piece of some work, in order, on every rank; each rank does its share. A collective.

    Args:
        costs: of each piece, as `share_of` takes it.
        answer: samples and judges the pieces at these places, which may be none; what came of each, and what reward
            functions failed on.
        runner: says whether they failed on too much, over all ranks.
        ranks: who shares the work.

    Raises:
        Exception: what `answer` raised on this rank.
        RuntimeError: it raised on another, which is named with its cause.
        RewardError: a reward function failed on a larger share of all answers than it may.

    Whichever it is, every rank raises, and none before all have answered: `on_all_ranks` is True for it.
    """
    mine = share_of(costs, ranks)
    made: list[_T] = []
    failures: Failures = {}
    failure: Exception | None = None
    try:
        made, failures = answer(mine)
    except Exception as error:  # noqa: BLE001 - raised below, once all ranks know of it
        failure = error
    problem = None if failure is None else (type(failure).__name__, str(failure))
    told = ranks.gather((dict(zip(mine, made, strict=True)) if failure is None else {}, failures, problem))
    try:
        if failure is not None:
            raise failure
        for rank, (_, _, problem) in enumerate(told):
            if problem is not None:
                raise RuntimeError(f"Rank {rank} failed while sampling or judging: {problem[0]}: {problem[1]}")
        runner.check_failures([failures for _, failures, _ in told])
    except Exception as error:
        setattr(error, _MARK, True)
        raise
    everything = {place: piece for pieces, _, _ in told for place, piece in pieces.items()}
    return [everything[place] for place in range(len(costs))]


def on_all_ranks(error: BaseException) -> bool:
    """Whether every rank raises for the same cause, so that each may still count on the others in a collective."""
    return bool(getattr(error, _MARK, False))
