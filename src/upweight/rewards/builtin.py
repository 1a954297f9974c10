"""The built-in verifiers: maths answers, exact answers, and GSM8K's final line."""

from collections.abc import Callable, Sequence

from upweight.rewards.contract import Completion, RewardFunction, text_of
from upweight.rewards.formats import think_format
from upweight.rewards.quantities import plain_number, quantity
from upweight.rewards.score import Score, Status
from upweight.rewards.verify import verify

MARKER = "####"
"""What GSM8K writes before a final answer."""


def accuracy(completions: Sequence[Completion], answer: Sequence[str | None], **_: object) -> list[Score]:
    """Reward 1 for the right maths answer, marked as the answer, 0 for any other; see `upweight.rewards.verify`.

    Args:
        completions: strings, or chats of one assistant message.
        answer: the gold answers, one each: a value, LaTeX, or a whole solution with a marked answer.

    Returns:
        One score per completion.
    """
    return _judge_all(verify, completions, answer)


def exact(completions: Sequence[Completion], answer: Sequence[str | None], **_: object) -> list[Score]:
    """Reward 1 for an answer that is the gold answer and nothing else, 0 for any other; see `judge_exact`.

    Args:
        completions: strings, or chats of one assistant message.
        answer: the gold answers, one each.

    Returns:
        One score per completion.
    """
    return _judge_all(judge_exact, completions, answer)


def gsm8k(completions: Sequence[Completion], answer: Sequence[str | None], **_: object) -> list[Score]:
    """Reward 1 for the right number after the last `####`, 0 for any other; see `judge_gsm8k`.

    Args:
        completions: strings, or chats of one assistant message.
        answer: the gold answers, one each: a number, or a whole solution with its own `####`.

    Returns:
        One score per completion.
    """
    return _judge_all(judge_gsm8k, completions, answer)


def judge_exact(text: str, gold: str | None) -> Score:
    """Judge one answer by its whole text.

    Right where the texts are equal up to blanks around them, or where both are plain numbers (integers, decimals,
    fractions) of exactly the same value. Nothing is searched for in the text, rounded or evaluated.

    Args:
        text: what the model answered.
        gold: the gold answer.

    Returns:
        1 or 0; `unparsable-gold` where there is no gold answer or it is blank.

    Example:
        >>> [judge_exact(text, "91").value for text in (" 91", "091", "91.0", "It is 91")]
        [1.0, 1.0, 1.0, 0.0]
    """
    if gold is None or not gold.strip():
        return _no_gold(gold)
    if text.strip() == gold.strip():
        return Score(value=1.0, why="the same text")
    value = plain_number(text)
    if value is None:
        return Score(value=0.0, why="another text")
    right = value == plain_number(gold)
    return Score(value=float(right), why="the same number" if right else "another number")


def judge_gsm8k(text: str, gold: str | None) -> Score:
    """Judge one answer by the number after its last `####`, as GSM8K writes final answers (arXiv 2110.14168).

    What counts is the first line with something on it after the last marker: one quantity as `quantity`
    reads it. Values are compared exactly, 42 and 42.0 are equal. An answer without a marker, or with anything but
    one number after it, is wrong.

    Args:
        text: what the model answered.
        gold: a number, or a whole GSM8K solution, of which the part after its last `####` counts.

    Returns:
        1 or 0; `unparsable-gold` where the gold answer cannot be read as a number.

    Example:
        >>> judge_gsm8k("48 and 24 more.\\n#### 72 clips", "72").value
        1.0
        >>> judge_gsm8k("72", "72").why
        'no #### in the answer'
    """
    expected = None if gold is None else quantity(_final_line(gold) if MARKER in gold else gold)
    if expected is None:
        return _no_gold(gold)
    if MARKER not in text:
        return Score(value=0.0, why=f"no {MARKER} in the answer")
    line = _final_line(text)
    value = quantity(line)
    if value is None:
        return Score(value=0.0, why=f"no number after {MARKER}: {line[:40]!r}")
    return Score(value=float(value == expected), why=f"read {line[:40]!r}")


def _judge_all(
    judge: Callable[[str, str | None], Score], completions: Sequence[Completion], golds: Sequence[str | None]
) -> list[Score]:
    return [judge(text_of(c), gold) for c, gold in zip(completions, golds, strict=True)]


def _final_line(text: str) -> str:
    return text.rpartition(MARKER)[2].lstrip().partition("\n")[0]


def _no_gold(gold: str | None) -> Score:
    why = "the row has no answer" if gold is None else f"the gold answer cannot be read: {gold[:40]!r}"
    return Score(value=float("nan"), status=Status.UNPARSABLE_GOLD, why=why)


BUILT_IN: dict[str, RewardFunction] = {
    "accuracy": accuracy,
    "exact": exact,
    "gsm8k": gsm8k,
    "format": think_format,
    "think_format": think_format,
}
"""Reward functions by name; `format` is the short name of `think_format`."""
