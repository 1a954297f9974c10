"""Rewards for how an answer is written: a thinking block that thinks, and lengths. Numbers, no verdicts."""

import re
from collections.abc import Callable, Sequence

from upweight.objective.errors import bad_parameter
from upweight.rewards.contract import Completion, RewardFunction, text_of

_OPENING = re.compile(r"<think>", re.IGNORECASE)
_CLOSING = re.compile(r"</think>", re.IGNORECASE)


def think_format(
    completions: Sequence[Completion], prompts: Sequence[object] | None = None, **_: object
) -> list[float]:
    """Reward 1 for one thinking block with something in it and an answer behind it, 0 for anything else.

    The block opens the completion, or stands open at the end of the prompt, as chat templates of reasoning models
    leave it. A string prompt shows which; for a chat prompt the template is not seen here, so both are accepted. An
    empty block earns nothing: it is what a model writes that has learned the form and not the thinking.

    Args:
        completions: strings, or chats of one assistant message.
        prompts: what was asked; None where it is not known.

    Returns:
        One reward per completion.

    Example:
        >>> think_format(["2+2\\n</think>\\n4", "2+2 = 4"], prompts=["2+2? <think>\\n"] * 2)
        [1.0, 0.0]
        >>> think_format(["<think>2+2</think>4", "<think></think>4"], prompts=["2+2?"] * 2)
        [1.0, 0.0]
    """
    asked = [None] * len(completions) if prompts is None else prompts
    return [float(_thinks(text_of(c), prompt)) for c, prompt in zip(completions, asked, strict=True)]


def _thinks(text: str, prompt: object) -> bool:
    opened = [] if not isinstance(prompt, str) else _OPENING.findall(prompt.rstrip()[-len("<think>") :])
    written = _OPENING.findall(text)
    starts = text.lstrip()[: len("<think>")].lower() == "<think>"
    if written and (not starts or len(written) > 1 or opened):
        return False
    if not written and isinstance(prompt, str) and not opened:
        return False
    parts = _CLOSING.split(text)
    return len(parts) == 2 and bool(_OPENING.sub("", parts[0]).strip()) and bool(parts[1].strip())


def make_overlong(*, max_length: int, buffer: int) -> RewardFunction:
    """DAPO's soft overlong punishment as a reward function (arXiv 2503.14476, equation 13).

    0 up to max_length - buffer tokens, linear down to -1 at max_length, never below. The flag --overlong_buffer does
    the same to the shaped reward, after filtering has looked at the task reward; as a reward function it is part of
    the task reward.

    Args:
        max_length: L_max, in tokens.
        buffer: tokens over which the penalty grows.

    Raises:
        UsageError: a buffer outside [0, max_length].

    Example:
        >>> make_overlong(max_length=100, buffer=20)(completion_ids=[[0] * 80, [0] * 90, [0] * 120])
        [0.0, -0.5, -1.0]
    """
    if not 0 <= buffer <= max_length:
        raise bad_parameter("buffer", "overlong", f"between 0 and max_length ({max_length})", buffer)

    def overlong(completion_ids: Sequence[Sequence[int]], **_: object) -> list[float]:
        excess = [len(ids) - (max_length - buffer) for ids in completion_ids]
        if buffer == 0:
            return [-1.0 if e > 0 else 0.0 for e in excess]
        return [0.0 - min(max(e / buffer, 0.0), 1.0) for e in excess]

    return overlong


def make_length(*, max_length: int) -> RewardFunction:
    """The share of a budget that an answer left unused: 1 for an empty answer, 0 from max_length tokens on.

    With a small or negative weight it asks for shorter or longer answers.

    Args:
        max_length: the budget, in tokens.

    Raises:
        UsageError: a budget below 1.

    Example:
        >>> make_length(max_length=100)(completion_ids=[[0] * 25, [0] * 300])
        [0.75, 0.0]
    """
    if max_length < 1:
        raise bad_parameter("max_length", "length", "at least 1, in tokens", max_length)

    def length(completion_ids: Sequence[Sequence[int]], **_: object) -> list[float]:
        return [max(1.0 - len(ids) / max_length, 0.0) for ids in completion_ids]

    return length


WITH_PARAMETERS: dict[str, tuple[Callable[..., RewardFunction], tuple[str, ...]]] = {
    "overlong": (make_overlong, ("max_length", "buffer")),
    "length": (make_length, ("max_length",)),
}
"""Rewards that need to be told a number: what makes them, and its parameters, each a whole number."""
