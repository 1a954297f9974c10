"""What a reward function is, and the one place where what it returned is believed or refused."""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence

from upweight.objective.errors import UsageError
from upweight.rewards.score import Score, Status
from upweight.tasks.prompt import Message

LARGEST_REWARD = 1e30
"""Rewards beyond it, in size, are refused: their squares leave float32."""

Completion = str | Sequence[Message]
"""What a reward function sees of an answer: its text, or for a chat prompt a list of one assistant message."""


def text_of(completion: Completion) -> str:
    """The text of a completion, string or chat.

    Example:
        >>> text_of("4"), text_of([{"role": "assistant", "content": "4"}])
        ('4', '4')
    """
    return completion if isinstance(completion, str) else completion[-1]["content"]


class RewardError(ValueError):
    """A reward function returned something that is no reward, or failed on too many answers."""


class RefusedReward(RewardError, UsageError):
    """A reward function returned something that is no reward when it was tried, before anything depended on it."""


RewardFunction = Callable[..., object]
"""A reward function as TRL calls it: `function(prompts=..., completions=..., <column>=..., ...)`.

Everything is a list with one entry per completion. Chat prompts and their completions are lists of messages. It
returns a list with one number per completion, None where it has nothing to say about one, or a `Score` where it wants
to say how judging ended. It may be a coroutine function.
"""


def read_rewards(name: str, returned: object, rows: Sequence[int]) -> list[Score]:
    """Turn what a reward function returned into scores.

    Args:
        name: of the function, for the error.
        returned: what it returned.
        rows: row ids of the completions, for the error.

    Returns:
        One score per completion. Numbers of any kind (bool, NumPy scalars, tensors without dimensions, with or
        without a gradient) become floats.

    Raises:
        RewardError: not a list, the wrong length, or an entry that is no finite number of sensible size: naming the
            function, the index and the value.

    Example:
        >>> [score.value for score in read_rewards("mine", [True, 0.5], rows=[0, 1])]
        [1.0, 0.5]
    """
    if (
        not hasattr(returned, "__len__")
        or not hasattr(returned, "__getitem__")
        or isinstance(returned, str | bytes | Mapping)
    ):
        raise RewardError(
            f"The reward function '{name}' must return a list with one reward per completion. "
            f"Got {_shown(returned)} instead."
        )
    if getattr(returned, "shape", None) == ():
        raise RewardError(f"The reward function '{name}' must return a list. Got the single value {_shown(returned)}.")
    if len(returned) != len(rows):
        raise RewardError(
            f"The reward function '{name}' returned {len(returned)} rewards for {len(rows)} completions: "
            f"{_shown(returned)}."
        )
    return [_score(name, index, row, returned[index]) for index, row in enumerate(rows)]


def _score(name: str, index: int, row: int, value: object) -> Score:
    if isinstance(value, Score) and value.status is not Status.SCORED:
        return value
    if value is None:
        return Score(value=math.nan, status=Status.NOT_APPLICABLE, why="nothing to say about this answer")
    number = value.value if isinstance(value, Score) else _number(value)
    if number is None or not abs(number) <= LARGEST_REWARD:
        raise RewardError(
            f"The reward function '{name}' must return finite numbers of at most {LARGEST_REWARD:g} in size, or None. "
            f"Got {_shown(value)} at index {index} (row {row}) instead."
        )
    return value if isinstance(value, Score) else Score(value=number)


def _number(value: object) -> float | None:
    """The number that a value is; None where it is none. Text that looks like a number is not one."""
    # .item() and not float(): it takes a tensor with a gradient without a warning, and tells complex from real.
    item = getattr(value, "item", None)
    plain = item() if getattr(value, "shape", None) == () and callable(item) else value
    if not isinstance(plain, numbers.Real):
        return None
    try:
        return float(plain)
    except OverflowError:
        return math.inf


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer beyond Python's limit on digits
        text = "a number too large to print"
    return (text if len(text) <= 80 else text[:77] + "...") + f" ({type(value).__name__})"
