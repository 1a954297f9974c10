"""Judge your solutions of the exercises: python practice/judge.py [NAME ...].

Exit codes: 0 all passed, 1 some failed, 2 the call was wrong, 130 stopped by Ctrl-C.
"""

import argparse
import difflib
import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

from judging.case import PRACTICE, exercise_file, exercise_names, load_sheet
from judging.process import run_file
from judging.score import Score, read_score, write_score
from judging.verdict import Verdict, verdict

SHOWN_FAILURES = 3
LONGEST = 3600

EPILOG = """examples:
  python practice/judge.py                        judge everything
  python practice/judge.py group_advantages       judge one exercise
  python practice/judge.py --hint cispo           the next hint
  python practice/judge.py cispo --file mine.py   judge another file
"""


class CallError(Exception):
    """The call was wrong; the text says how."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        code = _dispatch(options)
        sys.stdout.flush()
        return code
    except CallError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, say head, has gone: what is still buffered has nowhere to go, and Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(options: argparse.Namespace) -> int:
    names = _known([*options.names, *([options.hint] if options.hint else [])])
    if options.list:
        return _list(options)
    if options.hint:
        return _hint(options)
    if options.file is not None and len(names) != 1:
        raise CallError("--file judges one file: name one exercise with it, as in judge.py cispo --file mine.py.")
    if options.file is not None and options.solutions:
        raise CallError("--file and --solutions both say what to judge: leave one of them out.")
    verdicts = []
    for name in names or exercise_names():
        verdicts.append(_judge(name, options))
        if not options.json:
            print(_words(verdicts[-1]))
    _close(verdicts, options)
    return 0 if all(one.status == "passed" for one in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="judge.py",
        description="Judge solutions of the exercises, each in a process of its own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises; all where none is named")
    parser.add_argument("--file", type=Path, help="judge this file instead of practice/exercises/NAME.py")
    parser.add_argument("--solutions", action="store_true", help="judge the solutions that are shipped")
    parser.add_argument("--seconds", type=_seconds, default=10.0, help="time limit per exercise (default 10)")
    parser.add_argument("--hint", metavar="NAME", help="show the next hint for an exercise")
    parser.add_argument("--list", action="store_true", help="list the exercises and what has been passed")
    parser.add_argument("--score", type=Path, default=PRACTICE / ".score.json", metavar="FILE",
                        help="where the score is kept (default practice/.score.json)")  # fmt: skip
    parser.add_argument("--no-score", action="store_true", help="neither read nor write the score")
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, at most {LONGEST}, got {text!r}")
    return value


def _known(names: list[str]) -> list[str]:
    every = exercise_names()
    for name in names:
        if name not in every:
            near = difflib.get_close_matches(name.removesuffix(".py").replace("-", "_"), every, n=1, cutoff=0.4)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise CallError(f"There is no exercise named {name!r}. {guess}--list shows all of them.")
    return list(dict.fromkeys(names))


def _judge(name: str, options: argparse.Namespace) -> Verdict:
    sheet = load_sheet(name)
    file = options.file or exercise_file(name, "solutions" if options.solutions else "exercises")
    if not file.is_file():
        if options.file is not None:
            raise CallError(f"There is no file {file} to judge.")
        note = f"{_near(file)} is missing: write it anew, or get it back with git checkout"
        return Verdict(name=name, status="failed", passed=0, cases=len(sheet.cases), note=note)
    return verdict(sheet, _near(file), run_file(name, file.resolve(), options.seconds), options.seconds)


def _near(path: Path) -> Path:
    """The path as the person would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path


def _words(result: Verdict) -> str:
    if result.status in ("unwritten", "unjudged"):
        return f"{result.name}: {result.note}"
    lines = [f"{result.name}: {result.passed} of {result.cases} cases passed"]
    if result.note:
        lines.append(f"  {result.note}")
    for failure in result.failures[:SHOWN_FAILURES]:
        lines.append(f"  case {failure.number}, {failure.case}")
        lines.append(f"    input  {failure.input}")
        lines.append(f"    got    {failure.got}")
        lines.append(f"    right  {failure.right}")
        if failure.message != result.note:
            lines.append(f"    {failure.message}")
        if failure.why:
            lines.append(f"    because {failure.why}")
    if len(result.failures) > SHOWN_FAILURES:
        lines.append(f"  and {len(result.failures) - SHOWN_FAILURES} more; --json lists all")
    if result.printed and result.status != "passed":
        lines.append("  it printed:")
        lines.extend(f"    {line}" for line in result.printed.splitlines()[:20])
    return "\n".join(lines)


def _close(verdicts: list[Verdict], options: argparse.Namespace) -> None:
    """Keep the score, and say what it is."""
    every = exercise_names()
    passed = sum(one.status == "passed" for one in verdicts)
    keep = not (options.no_score or options.solutions)
    score = read_score(options.score) if keep else Score()
    if keep:
        score.passed.update({one.name: one.status == "passed" for one in verdicts if one.status != "unjudged"})
        _say(write_score(options.score, score))
    total = sum(score.passed.get(name, False) for name in every)
    if options.json:
        answer = {"exercises": [asdict(one) for one in verdicts], "passed": passed, "judged": len(verdicts)}
        if keep:
            answer["score"] = {"passed": total, "of": len(every), "file": str(options.score)}
        print(json.dumps(answer, allow_nan=False, indent=1))
        return
    print(f"{passed} of {len(verdicts)} exercises passed")
    if keep:
        print(f"score: {total} of {len(every)}, kept in {_near(options.score)}")


def _say(sentence: str | None) -> None:
    if sentence:
        print(sentence, file=sys.stderr)


def _list(options: argparse.Namespace) -> int:
    score = Score() if options.no_score else read_score(options.score)
    rows = [
        {
            "name": sheet.name,
            "title": sheet.title,
            "cases": len(sheet.cases),
            "hints": len(sheet.hints),
            "needs_torch": sheet.needs_torch,
            "passed": score.passed.get(sheet.name, False),
        }
        for sheet in map(load_sheet, exercise_names())
    ]
    if options.json:
        print(json.dumps({"exercises": rows}, indent=1))
        return 0
    for row in rows:
        torch = " (needs PyTorch)" if row["needs_torch"] else ""
        print(f"{'passed' if row['passed'] else '      '}  {row['name']:<20} {row['title']}{torch}")
    return 0


def _hint(options: argparse.Namespace) -> int:
    sheet = load_sheet(options.hint)
    score = Score() if options.no_score else read_score(options.score)
    seen = score.hints.get(sheet.name, 0)
    number = min(seen, len(sheet.hints) - 1)
    left = len(sheet.hints) - number - 1
    score.hints[sheet.name] = number + 1
    if not options.no_score:
        _say(write_score(options.score, score))
    if options.json:
        print(json.dumps({"name": sheet.name, "number": number + 1, "left": left, "hint": sheet.hints[number]}))
        return 0
    print(f"{sheet.name}, hint {number + 1} of {len(sheet.hints)}: {sheet.hints[number]}")
    if not left:
        print(f"That was the last one. A solution is in {_near(exercise_file(sheet.name, 'solutions'))}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
