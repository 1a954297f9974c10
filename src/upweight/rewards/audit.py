"""A verifier held against cases with a known verdict: what it accepts wrongly, what it misses, how long it takes."""

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from upweight.objective.errors import UsageError
from upweight.rewards.builtin import BUILT_IN
from upweight.rewards.contract import RefusedReward, RewardError
from upweight.rewards.lookup import find_rewards
from upweight.rewards.runner import DEFAULT_TIMEOUT, make_runner
from upweight.rewards.score import FAILURES, Score, Status
from upweight.rewards.symbolic_pool import symbolic_pool
from upweight.rewards.verify import verify
from upweight.rewards.workers.pool import Pool
from upweight.tasks.prompt import Prompt

MATH_VERIFY = "math-verify"
"""The name under which that library is judged as its documentation calls it."""

CONFORMANCE = "maths.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One answer with its right verdict."""

    id: str
    """Unique in its file."""

    answer_text: str
    """Everything the model wrote."""

    gold: str
    """The gold answer."""

    expected: bool | None
    """Right or wrong; None = nothing can be judged against this gold answer."""

    category: str = ""
    """What it is about."""

    why: str = ""
    """The reason; "policy: ..." where another policy could be defended."""

    mode: Literal["strict", "flexible"] = "strict"
    """Of our own verifier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What a verifier made of the cases."""

    verifier: str
    """Its name."""

    n: int
    """Cases."""

    agree: int
    """Cases in which every repeat gave the right verdict."""

    false_positive: tuple[str, ...]
    """Ids: accepted, and wrong or not to be judged."""

    false_negative: tuple[str, ...]
    """Ids: right, and not accepted."""

    errors: tuple[str, ...]
    """Ids: raised or timed out; in none of the other lists, and no agreement."""

    first_error: str
    """Why the first of them failed; "" where none did."""

    not_to_be_judged: tuple[str, ...]
    """Ids: scored 0 where the gold answer has no value, so that there should be no score."""

    unstable: tuple[str, ...]
    """Ids: repeats gave different verdicts."""

    seconds: float
    """Wall time of all judging, the start of workers left out."""

    case_seconds: tuple[float, ...]
    """Of each case, in order: the longest of its repeats."""

    slowest: str
    """Id of the slowest case; "" where there is none."""

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        times = sorted(self.case_seconds) or [0.0]
        return {
            "verifier": self.verifier,
            "n": self.n,
            "agree": self.agree,
            "false_positive": list(self.false_positive),
            "false_negative": list(self.false_negative),
            "errors": list(self.errors),
            "first_error": self.first_error,
            "not_to_be_judged": list(self.not_to_be_judged),
            "unstable": list(self.unstable),
            "seconds": round(self.seconds, 6),
            "case_seconds": {
                "median": round(statistics.median(times), 6),
                "p99": round(times[math.ceil(0.99 * len(times)) - 1], 6),
                "max": round(times[-1], 6),
                "slowest": self.slowest,
            },
        }


Judge = Callable[[Case], Score]


def read_cases(path: str | None = None) -> list[Case]:
    """Read a cases file; the conformance set of this package where no path is given.

    Args:
        path: JSONL with `id`, `answer_text`, `gold` and `expected` (true, false, or null: no score) in each row, and
            optionally `category`, `why` and `mode`.

    Raises:
        UsageError: no such file, a row that is none, or an id given twice: file and line.

    Example:
        >>> len(read_cases()) >= 400
        True
    """
    if path is None:
        text, name = (resources.files("upweight.rewards") / "cases" / CONFORMANCE).read_text("utf-8"), CONFORMANCE
    else:
        try:
            text, name = Path(path).read_text("utf-8-sig"), path
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"The cases file '{path}' cannot be read: {why}.") from error
    cases: dict[str, Case] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        case = _case(line, f"{name}:{number}")
        if case.id in cases:
            raise UsageError(f"{name}:{number}: the id '{case.id}' is there already. Give each case its own.")
        cases[case.id] = case
    if not cases:
        raise UsageError(f"The cases file '{name}' has no cases.")
    return list(cases.values())


def audit(cases: Sequence[Case], verifier: str = "accuracy", *, repeat: int = 1) -> Audit:
    """Judge every case, one by one, and compare with what is expected.

    Args:
        cases: the cases.
        verifier: a built-in reward, "math-verify", a dotted path or file.py:function. Functions that are not ours run
            in a process of their own and may take ten seconds a case. A reward above 0.5 accepts.
        repeat: how often each case is judged; all verdicts have to agree.

    Raises:
        UsageError: an unknown verifier, or several at once.
        RefusedReward: the function returned something that is no reward.
    """
    judge, close = _judge_of(verifier)
    first_error = ""
    try:
        verdicts: list[list[bool | str | None]] = []
        times: list[float] = []
        start = time.perf_counter()
        for case in cases:
            one: list[bool | str | None] = []
            longest = 0.0
            for _ in range(repeat):
                before = time.perf_counter()
                score = judge(case)
                longest = max(longest, time.perf_counter() - before)
                one.append(_verdict(score))
                if score.status in FAILURES:
                    first_error = first_error or score.why
            verdicts.append(one)
            times.append(longest)
        seconds = time.perf_counter() - start
    except RewardError as error:
        raise RefusedReward(str(error)) from error
    finally:
        close()
    return _summary(verifier, cases, verdicts, times, seconds, first_error)


def _summary(
    verifier: str,
    cases: Sequence[Case],
    verdicts: Sequence[Sequence[object]],
    times: Sequence[float],
    seconds: float,
    first_error: str,
) -> Audit:
    false_positive, false_negative, errors, not_to_be_judged, unstable = [], [], [], [], []
    agree = 0
    for case, given in zip(cases, verdicts, strict=True):
        if len(set(given)) > 1:
            unstable.append(case.id)
        if "failed" in given:
            errors.append(case.id)
        elif True in given and case.expected is not True:
            false_positive.append(case.id)
        elif case.expected is True and any(verdict is not True for verdict in given):
            false_negative.append(case.id)
        elif case.expected is None and False in given:
            not_to_be_judged.append(case.id)
        else:
            agree += 1
    return Audit(
        verifier=verifier,
        n=len(cases),
        agree=agree,
        false_positive=tuple(false_positive),
        false_negative=tuple(false_negative),
        errors=tuple(errors),
        first_error=first_error,
        not_to_be_judged=tuple(not_to_be_judged),
        unstable=tuple(unstable),
        seconds=seconds,
        case_seconds=tuple(times),
        slowest=max(zip(times, (case.id for case in cases), strict=True), default=(0.0, ""))[1],
    )


def _verdict(score: Score) -> bool | str | None:
    """True, False, None for no score, "failed"."""
    if score.status in FAILURES:
        return "failed"
    return score.value > 0.5 if score.status is Status.SCORED else None


def _judge_of(verifier: str) -> tuple[Judge, Callable[[], None]]:
    """What judges a case, warmed up, and what ends its processes."""
    if verifier == MATH_VERIFY:
        pool = Pool("upweight.rewards.audit:make_math_verify", {}, seconds=30.0, memory=2 * 1024**3, processes=8)
        pool.start()
        pool.call({"answer_text": "\\boxed{\\frac{1}{2}}", "gold": "0.5"})  # its parser is built at the first call
        return lambda case: _ask_math_verify(pool, case), pool.close
    named = find_rewards(verifier)
    if len(named) != 1:
        raise UsageError(f"'{verifier}' names {len(named)} rewards: one verifier is judged at a time.")
    if named[0].function is BUILT_IN["accuracy"]:
        symbolic_pool().start()
        return lambda case: verify(case.answer_text, case.gold, mode=case.mode), lambda: None
    runner = make_runner(verifier, isolate=True, timeout=DEFAULT_TIMEOUT)

    def judge(case: Case) -> Score:
        return runner.score([Prompt(row=0, text="", answer=case.gold)], [case.answer_text])[0]

    try:
        runner.check(Prompt(row=0, text="", answer="1"))
    except UsageError:
        runner.close()
        raise
    return judge, runner.close


def _ask_math_verify(pool: Pool, case: Case) -> Score:
    reply = pool.call({"answer_text": case.answer_text, "gold": case.gold})
    if reply.status is not Status.SCORED:
        return Score(value=math.nan, status=reply.status, why=reply.why)
    equal = reply.content["equal"]
    if equal is None:
        return Score(value=math.nan, status=Status.UNPARSABLE_GOLD, why="math-verify reads nothing in the gold answer")
    return Score(value=float(equal))


def make_math_verify(_options: Mapping[str, Any]) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    """math-verify on a completion and a gold answer, with its defaults, its own clocks too; runs in a worker."""
    from math_verify import parse
    from math_verify import verify as theirs

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    def judge(job: Mapping[str, str]) -> dict[str, Any]:
        # A bare gold answer is told to be LaTeX, as its documentation asks for; a box around it reads the same.
        gold = parse(f"\\boxed{{{job['gold']}}}")
        return {"equal": bool(theirs(gold, parse(job["answer_text"]))) if gold else None}

    return judge


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON; a gold answer of that name is a string")


def _case(line: str, place: str) -> Case:
    try:
        row = json.loads(line, parse_constant=_no_number)
    except ValueError as error:
        raise UsageError(f"{place}: no JSON ({error}).") from error
    except RecursionError as error:
        raise UsageError(f"{place}: no JSON that can be read (nested too deeply).") from error
    if not isinstance(row, dict):
        raise UsageError(f"{place}: a case is an object, got {type(row).__name__}.")
    for field, kind, must in (
        ("id", (str, int), "a string"),
        ("answer_text", (str,), "a string"),
        ("gold", (str, int, float), "a string"),
        ("expected", (bool, type(None)), "true, false or null"),
    ):
        if field not in row:
            raise UsageError(f"{place}: '{field}' is missing. A case has id, answer_text, gold and expected.")
        if not isinstance(row[field], kind):
            raise UsageError(f"{place}: '{field}' must be {must}, got {json.dumps(row[field])[:60]}.")
    mode = row.get("mode", "strict")
    if mode not in ("strict", "flexible"):
        raise UsageError(f"{place}: 'mode' must be strict or flexible, got {json.dumps(mode)[:60]}.")
    return Case(
        id=str(row["id"]),
        answer_text=row["answer_text"],
        gold=str(row["gold"]),
        expected=row["expected"],
        category=str(row.get("category", "")),
        why=str(row.get("why", "")),
        mode=mode,
    )
