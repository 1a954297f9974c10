"""From what a process reported to what the person is told."""

import signal
from dataclasses import dataclass
from pathlib import Path

from judging.case import Case, Raises, Sheet
from judging.compare import fault
from judging.process import MOST_PRINTED, Run
from judging.values import decode, show, show_inputs


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that failed, in words."""

    number: int
    """Counted from 1."""

    case: str
    input: str
    got: str
    right: str
    message: str
    """One sentence: what is wrong, and where."""

    why: str
    """How one gets to the right value."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one exercise went."""

    name: str
    status: str
    """passed, failed, unwritten (still the stub) or unjudged (PyTorch is missing)."""

    passed: int
    cases: int
    note: str = ""
    """What stopped the whole exercise, if anything did."""

    failures: tuple[Failure, ...] = ()
    printed: str = ""


def verdict(sheet: Sheet, file: Path, run: Run, seconds: float) -> Verdict:
    """Judge what a run reported.

    Args:
        sheet: the exercise.
        file: the person's file, named in what is said.
        run: what its process reported.
        seconds: the limit it ran under.
    """
    total = len(sheet.cases)
    events = [event for event in run.events if event["event"] in ("value", "raised")]
    if run.ending == "no-torch":
        note = (
            "needs PyTorch, which this Python does not have: run the judge with one that has (make install makes one)"
        )
        return Verdict(name=sheet.name, status="unjudged", passed=0, cases=total, note=note)
    if events and all("NotImplementedError" in _kinds(event) for event in events):
        note = f"not written yet: replace the raise in line {events[0]['line']} of {file}"
        return Verdict(name=sheet.name, status="unwritten", passed=0, cases=total, note=note)
    failures = [found for event in events if (found := _failure(sheet.cases[_number(event)], event, file))]
    passed = len(events) - len(failures)
    note = _note(sheet, file, run, seconds)
    stopped_at = _unfinished(run)
    if stopped_at is not None:
        failures.append(_describe(sheet.cases[stopped_at], stopped_at, "nothing", note))
    return Verdict(
        name=sheet.name,
        status="passed" if passed == total and not note else "failed",
        passed=passed,
        cases=total,
        note=note,
        failures=tuple(failures),
        printed=run.printed,
    )


def _number(event: dict[str, object]) -> int:
    number = event["case"]
    assert isinstance(number, int)
    return number


def _kinds(event: dict[str, object]) -> list[str]:
    kinds = event.get("kinds", [])
    assert isinstance(kinds, list)
    return kinds


def _unfinished(run: Run) -> int | None:
    """The case that was running when the process ended before its time."""
    last = run.events[-1] if run.events else {}
    return _number(last) if run.ending != "end" and last.get("event") == "start" else None


def _failure(case: Case, event: dict[str, object], file: Path) -> Failure | None:
    if event["event"] == "raised":
        if isinstance(case.right, Raises) and case.right.exception in _kinds(event):
            return None
        got = f"{_kinds(event)[0]}: {event['text']}" if event["text"] else _kinds(event)[0]
        message = f"it raised {_kinds(event)[0]}{_place(event, file)}"
        if isinstance(case.right, Raises):
            message += f", and must raise {case.right.exception}"
    else:
        value = decode(event["value"])
        got = show(value)
        if isinstance(case.right, Raises):
            message = f"it returned a value, and must raise {case.right.exception}"
        else:
            found = fault(value, case)
            if found is None:
                return None
            message = found
    return _describe(case, _number(event), got, message)


def _describe(case: Case, index: int, got: str, message: str) -> Failure:
    right = f"an exception: {case.right.exception}" if isinstance(case.right, Raises) else show(case.right)
    return Failure(
        number=index + 1,
        case=case.name,
        input=show_inputs(case.inputs),
        got=got,
        right=right + _tolerance(case),
        message=message,
        why=case.why,
    )


def _tolerance(case: Case) -> str:
    if isinstance(case.right, Raises | str | bool) or case.right is None:
        return ""
    if case.abs == 0 and case.rel == 0:
        return "   (exactly)"
    return f"   (to {case.rel:g} relative, {case.abs:g} absolute)"


def _place(event: dict[str, object], file: Path) -> str:
    if event.get("line") is None:
        return ""
    return f" in line {event['line']} of {file.name}: {event['source']}"


def _note(sheet: Sheet, file: Path, run: Run, seconds: float) -> str:
    for event in run.events:
        if event["event"] == "not-loaded":
            text = f"{_kinds(event)[0]}: {event['text']}"
            return f"{file} could not be loaded{_place(event, file)} ({text})"
        if event["event"] == "no-function":
            return f"{file} defines no function named {sheet.name}"
    if run.ending == "timeout":
        return f"not done after {seconds:g} s: an endless loop? --seconds allows more"
    if run.ending == "slow-start":
        return "Python itself did not start in time: the machine is too busy"
    if run.ending == "flood":
        return f"it printed more than {MOST_PRINTED:,} characters, and was stopped: take the print out of the loop"
    if run.ending == "died":
        return _last_words(run.exit_code)
    return ""


def _last_words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
        return f"its process was ended by {name}: out of memory, or a crash below Python"
    return f"it ended its own process with exit code {exit_code}: os._exit has no place in an exercise"
