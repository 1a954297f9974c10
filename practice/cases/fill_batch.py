"""Cases of fill_batch: what is kept, and how often the sampler was asked."""

from collections.abc import Callable

from judging.case import Case

NAN = float("nan")
TITLE = "Dynamic sampling: fill the batch, within a budget"
HINTS = (
    "A group teaches something where its scored rewards are not all equal: compare min and max, not the mean.",
    "Drop the NaN first; fewer than two scores have no spread.",
    "One loop over range(budget): stop before a call when the batch is full, and cut what is too much.",
)


class OverBudget(Exception):
    """The sampler was asked more often than the budget allows."""


def call(function: Callable[..., object], rounds: list[list[list[float]]], wanted: int, budget: int) -> object:
    """Give the person's function a sampler that plays the rounds, repeats the last, and counts."""
    calls = 0

    def sample() -> list[list[float]]:
        nonlocal calls
        calls += 1
        if calls > budget:
            raise OverBudget(f"sample() was called {calls} times, and the budget is {budget}")
        return rounds[min(calls, len(rounds)) - 1]

    return {"kept": function(sample, wanted, budget), "calls": calls}


def at(rounds: list[list[list[float]]], wanted: int, budget: int) -> dict[str, object]:
    """Inputs in their order."""
    return {"rounds": rounds, "wanted": wanted, "budget": budget}


CASES = (
    Case(
        name="all wrong, all right, mixed",
        inputs=at([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]], 1, 3),
        right={"kept": [[1.0, 0.0]], "calls": 1},
        why="only the mixed group has a spread",
    ),
    Case(
        name="half right everywhere",
        inputs=at([[[0.5, 0.5], [0.2, 0.8]]], 1, 1),
        right={"kept": [[0.2, 0.8]], "calls": 1},
        why="(0.5, 0.5) has no spread, whatever its mean",
        traps={"that filtered by the mean": {"kept": [[0.5, 0.5]], "calls": 1}},
    ),
    Case(
        name="two rounds until full",
        inputs=at([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]], 2, 5),
        right={"kept": [[1.0, 0.0], [0.0, 1.0]], "calls": 2},
    ),
    Case(
        name="more than was wanted",
        inputs=at([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0, 0.0]]], 2, 5),
        right={"kept": [[1.0, 0.0], [0.0, 1.0]], "calls": 1},
        why="the batch has two places, and the first come first",
    ),
    Case(
        name="the budget is used up",
        inputs=at([[[0.0, 0.0], [0.0, 0.0]]], 2, 3),
        right={"kept": [], "calls": 3},
        why="exactly three calls, and then the loop says so instead of running for ever",
    ),
    Case(
        name="the budget leaves a part",
        inputs=at([[[1.0, 0.0]], [[0.0, 0.0]]], 4, 2),
        right={"kept": [[1.0, 0.0]], "calls": 2},
        why="what was found is kept; the caller decides what to do with it",
    ),
    Case(
        name="answers without a score",
        inputs=at([[[1.0, NAN], [NAN, NAN], [1.0, NAN, 0.0]]], 1, 1),
        right={"kept": [[1.0, NAN, 0.0]], "calls": 1},
        why="(1) alone has no spread, and no score is not a zero; a kept group stays as it was drawn",
        traps={"a missing score was taken as another value": {"kept": [[1.0, NAN]], "calls": 1}},
    ),
    Case(
        name="an answer without a score comes first",
        inputs=at([[[NAN, 1.0, 0.0], [NAN, 0.5, 0.5], [NAN, 1.0]]], 3, 1),
        right={"kept": [[NAN, 1.0, 0.0]], "calls": 1},
        why="comparing anything with NaN is False, so min and max of a list that holds one depend on the order",
        traps={
            "a missing score was taken as another value": {
                "kept": [[NAN, 1.0, 0.0], [NAN, 0.5, 0.5], [NAN, 1.0]],
                "calls": 1,
            }
        },
    ),
    Case(name="nothing wanted", inputs=at([[[1.0, 0.0]]], 0, 3), right={"kept": [], "calls": 0}, why="full already"),
    Case(name="no budget", inputs=at([[[1.0, 0.0]]], 2, 0), right={"kept": [], "calls": 0}),
)
