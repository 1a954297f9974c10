"""`verify`: whether a completion's answer is the gold answer. Exact, bounded, the same from every thread."""

import re
from collections.abc import Sequence
from typing import Literal

from upweight.objective.errors import bad_parameter
from upweight.rewards.maths.answers import Reading, Value, read_answer, read_gold
from upweight.rewards.maths.compare import same_answer
from upweight.rewards.maths.find import find_answer, find_gold
from upweight.rewards.quantities import plain_number
from upweight.rewards.score import Score, Status
from upweight.rewards.symbolic_pool import ask_symbolic

SHOWN = 200
"""Characters of an answer or a gold answer that a score carries along."""

_CHOICE = re.compile(r"\s*\(?([A-J])(?:\)|[.:])\s*\S")


def verify(completion: str, gold: str | int | float | None, *, mode: Literal["strict", "flexible"] = "strict") -> Score:
    r"""Judge a completion against a gold answer.

    The last marked answer outside the thinking part decides: `\boxed{}`, `\fbox{}`, `####`, else a phrase such as
    "the answer is". Strict mode gives no credit without a mark; flexible mode then takes the last number. Values are
    compared exactly, by rational arithmetic with radicals, pi, e, i and letters; what takes a named function to decide
    is asked of sympy in a process that can be killed. Nothing is rounded and nothing in an answer is executed.
    docs/verifier.md is the policy, rule by rule.

    Args:
        completion: everything the model wrote.
        gold: the gold answer: a value, LaTeX, or a whole solution whose last mark counts.
        mode: "strict" or "flexible".

    Returns:
        Value 1 or 0, with what was extracted and what the gold answer was read as. Status `unparsable-gold` where the
        gold answer has no value or is not understood; `timeout` or `error` where the symbolic comparison did not come
        to an end: no score, which is not a zero.

    Raises:
        UsageError: another mode.

    Example:
        >>> verify("So it is \\boxed{\\frac{2}{4}}.", "0.5").value, verify("0.5", "0.5").why
        (1.0, 'no marked answer')
        >>> verify("\\boxed{5}", "").status
        <Status.UNPARSABLE_GOLD: 'unparsable-gold'>
    """
    if mode not in ("strict", "flexible"):
        raise bad_parameter("mode", "verify", "'strict' or 'flexible'", mode)
    expected = _gold(gold)
    if isinstance(expected, Score):
        return expected
    found = find_answer(completion, flexible=mode == "flexible")
    shown = expected.cleaned.text[:SHOWN]
    if found.text is None:
        return Score(value=0.0, why=found.why, gold_parsed=shown)
    extracted = found.text.strip()
    verdict = _compare(extracted, expected)
    if isinstance(verdict, Score):
        return verdict
    right, why = verdict
    return Score(value=float(right), why=f"{found.why}: {why}", extracted=extracted[:SHOWN], gold_parsed=shown)


def unreadable_golds(golds: Sequence[object]) -> list[int]:
    """Places of the gold answers that give no score: blank, without a value, or not understood.

    A gold answer that only math-verify could read counts as readable here; it is asked when an answer is judged.

    Example:
        >>> unreadable_golds(["5", "", "\\\\frac{1}{0}"])
        [1, 2]
    """
    return [i for i, gold in enumerate(golds) if isinstance(_gold(gold), Score)]


def _gold(gold: object) -> Reading | Score:
    text = "" if gold is None else str(gold)
    reading = read_gold(find_gold(text).strip())
    if gold is None or reading.undefined or (reading.answer is None and not _balanced(reading.cleaned.text)):
        why = "the row has no answer" if gold is None else f"the gold answer cannot be read: {text[:40]!r}"
        return Score(value=float("nan"), status=Status.UNPARSABLE_GOLD, why=why)
    return reading


def _compare(extracted: str, expected: Reading) -> tuple[bool, str] | Score:
    """Right or wrong and why; a score where it could not be judged."""
    value = plain_number(extracted)
    if (
        value is not None
        and isinstance(expected.answer, Value)
        and not (expected.cleaned.percent or expected.cleaned.scale)
    ):
        known = expected.answer.form.rational
        if known is not None:
            return (True, "the same number") if value == known else (False, "another number")
    given = read_answer(extracted)
    same_kind = (given.cleaned.unit, given.cleaned.percent, given.cleaned.scale) == (
        expected.cleaned.unit,
        expected.cleaned.percent,
        expected.cleaned.scale,
    )
    if not given.undefined and same_kind and given.key == expected.key:
        return True, "the same text"
    if _is_choice(expected) and (choice := _CHOICE.match(given.cleaned.text)):
        return (True, "the same choice") if choice[1] == expected.key.strip("()") else (False, "another choice")
    if given.undefined or given.too_large or expected.too_large:
        return False, given.why or expected.why
    if expected.answer is not None:
        if given.answer is None:
            return False, f"not understood: {given.why}"
        result = same_answer(given, expected)
        if result is not None:
            return (True, "equal") if result else (False, "not equal")
    return _symbolic(extracted, expected)


def _symbolic(extracted: str, expected: Reading) -> tuple[bool, str] | Score:
    reply = ask_symbolic(extracted, expected.raw)
    if reply.status is not Status.SCORED:
        return Score(value=float("nan"), status=reply.status, why=reply.why, extracted=extracted[:SHOWN])
    if reply.equal is None:
        why = f"the gold answer cannot be read: {expected.raw[:40]!r}"
        return Score(value=float("nan"), status=Status.UNPARSABLE_GOLD, why=why)
    return (True, "proved equal by sympy") if reply.equal else (False, "not proved equal")


def _is_choice(expected: Reading) -> bool:
    return re.fullmatch(r"\(?[A-J]\)?", expected.key) is not None


def _balanced(text: str) -> bool:
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth < 0:
            return False
    return depth == 0
