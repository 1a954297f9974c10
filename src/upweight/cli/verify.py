"""`upweight verify`: a verifier held against cases with a known verdict. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from upweight.cli.words import read_call
from upweight.objective.errors import UsageError, bad_parameter
from upweight.rewards.audit import Audit, Case, audit, read_cases

PROGRAM = "upweight verify"

SHOWN = 12
"""Cases of a kind that are printed; --json has all of them."""

DESCRIPTION = """Hold a verifier against cases with a known verdict: what it accepts wrongly (false positives), what it
misses (false negatives), where it raises or hangs, how long it takes, and whether repeats agree.

Without --cases it runs the conformance set of this package; docs/verifier.md is the policy behind it. A cases file has
a JSON object a line: id, answer_text, gold, expected (true, false, or null where nothing can be judged).

examples:
  upweight verify --against math-verify
  upweight verify --cases mine.jsonl --verifier rewards.py:judge --repeat 3
  upweight verify --cases mine.jsonl --json"""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyCall:
    """One call of `upweight verify`."""

    cases: str | None = None
    """A JSONL file of cases; the conformance set where not given."""

    verifier: str = "accuracy"
    """What is judged: accuracy (ours), gsm8k, exact, math-verify, a dotted path or file.py:function."""

    against: str | None = None
    """A second verifier on the same cases, side by side."""

    repeat: int = 1
    """How often each case is judged; the verdicts have to agree."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as JSON."""


def run(argv: Sequence[str]) -> int:
    """Audit one verifier, or two side by side.

    Args:
        argv: what follows `upweight verify`.

    Returns:
        0, whatever the verdicts: the audit itself went through.

    Raises:
        UsageError: a flag, a file or a verifier that does not exist, a row that is no case, or a verifier that
            returned something that is no reward.
        SystemExit: 0 after `--help`.
    """
    call = read_call(argv, VerifyCall, PROGRAM, DESCRIPTION)
    if call.repeat < 1:
        raise bad_parameter("--repeat", PROGRAM, "at least 1", call.repeat)
    if call.against == call.verifier:
        raise UsageError(f"--against {call.against} is the verifier itself. Name another one.")
    cases = read_cases(call.cases)
    audits = [audit(cases, name, repeat=call.repeat) for name in (call.verifier, call.against) if name is not None]
    if call.json:
        print(json.dumps(as_json(audits), indent=2))
    else:
        print(as_text(cases, audits))
    return 0


def as_json(audits: Sequence[Audit]) -> dict[str, object]:
    """The first verifier's result, with the second's under "against"."""
    result: dict[str, object] = audits[0].as_json()
    if len(audits) > 1:
        result["against"] = audits[1].as_json()
    return result


def as_text(cases: Sequence[Case], audits: Sequence[Audit]) -> str:
    """A table with a column per verifier, then the cases that went wrong."""
    rows = [("", [a.verifier for a in audits]), ("cases", [str(a.n) for a in audits])]
    rows.append(("right", [f"{a.agree} ({a.agree / a.n:.1%})" for a in audits]))
    for label, ids in (
        ("false positives", [a.false_positive for a in audits]),
        ("false negatives", [a.false_negative for a in audits]),
        ("errors and time-outs", [a.errors for a in audits]),
        ("scored, should not be", [a.not_to_be_judged for a in audits]),
        ("repeats disagree", [a.unstable for a in audits]),
    ):
        rows.append((label, [str(len(one)) for one in ids]))
    numbers = [a.as_json() for a in audits]
    rows.append(("seconds in all", [f"{a.seconds:.2f}" for a in audits]))
    for key in ("median", "p99", "max"):
        rows.append((f"ms a case, {key}", [f"{n['case_seconds'][key] * 1e3:.2f}" for n in numbers]))
    rows.append(("slowest case", [a.slowest for a in audits]))
    width = [max(len(row[1][i]) for row in rows) for i in range(len(audits))]
    lines = [
        f"{label:<22}" + "  ".join(f"{c:>{w}}" for c, w in zip(cells, width, strict=True)) for label, cells in rows
    ]
    by_id = {case.id: case for case in cases}
    for one in audits:
        for label, wrong in (
            ("false positive", one.false_positive),
            ("false negative", one.false_negative),
            ("error", one.errors),
            ("should have no score", one.not_to_be_judged),
        ):
            lines += [f"{one.verifier}: {label}: {_shown(by_id[i])}" for i in wrong[:SHOWN]]
            if len(wrong) > SHOWN:
                lines.append(f"{one.verifier}: and {len(wrong) - SHOWN} more of these; --json lists all")
        if one.first_error:
            lines.append(f"{one.verifier}: the first error: {one.first_error}")
    return "\n".join(lines)


def _shown(case: Case) -> str:
    answer = case.answer_text if len(case.answer_text) <= 60 else "..." + case.answer_text[-57:]
    why = f"  ({case.why})" if case.why else ""
    return f"{case.id}  {answer!r} against {case.gold[:40]!r}{why}"
