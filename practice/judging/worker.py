"""The process in which a person's file runs: it calls the function case by case and reports what came out.

The right values are compared elsewhere. Reports go through a copy of standard output, one JSON line each; whatever
the person's file prints goes to standard error.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from judging.case import Sheet, load_module, load_sheet
from judging.values import encode, show

MEMORY = 2 * 1024**3
"""Bytes a person's file may take beyond what Python and PyTorch have; an endless list would take the rest."""


class Reports:
    """Writes one line per event, from this process only: a fork inside the person's file must not write them twice."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._pid = stream, os.getpid()

    def send(self, event: str, **content: object) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
        self._stream.write(json.dumps({"event": event, **content}) + "\n")
        self._stream.flush()


def main() -> None:
    """Run the exercise argv[1] on the file argv[2]."""
    name, file = sys.argv[1], Path(sys.argv[2])
    reports = Reports(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    sheet = load_sheet(name)
    if sheet.needs_torch and not _has_torch():
        reports.send("no-torch")
        return
    _bound_memory()
    reports.send("ready")
    function = _load(reports, file, name)
    if function is not None:
        _run(reports, sheet, file, function)
    reports.send("end")
    # Threads that the person's file left behind do not keep the judge waiting.
    os._exit(0)


def _has_torch() -> bool:
    try:
        importlib.import_module("torch")
    except ImportError:
        return False
    return True


def _bound_memory() -> None:
    try:
        resource = importlib.import_module("resource")
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, ValueError, OSError):
        # Not every system has such a limit, or lets it be set: the time limit still holds there.
        return


def _load(reports: Reports, file: Path, name: str) -> Callable[..., object] | None:
    try:
        module = load_module(file, name)
    except BaseException as error:  # noqa: BLE001 - whatever the person's file raises is reported to the person
        reports.send("not-loaded", **_explain(error, file))
        return None
    function = getattr(module, name, None)
    if not callable(function):
        reports.send("no-function")
        return None
    return function  # type: ignore[no-any-return]


def _run(reports: Reports, sheet: Sheet, file: Path, function: Callable[..., object]) -> None:
    for number in range(len(sheet.cases)):
        reports.send("start", case=number)
        try:
            # Read anew for each case: a function that changes its input must not change another case's.
            got = encode(sheet.call(function, **load_sheet(sheet.name).cases[number].inputs))
        except BaseException as error:  # noqa: BLE001 - whatever the person's function raises is reported to the person
            reports.send("raised", case=number, **_explain(error, file))
        else:
            reports.send("value", case=number, value=got)


def _explain(error: BaseException, file: Path) -> dict[str, object]:
    """Type, text, and the last line of the person's file that had a part in it."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    try:
        text = str(error)[:500]
    except Exception:  # noqa: BLE001 - an exception of the person's own may not even have a text
        text = ""
    if isinstance(error, KeyError) and error.args:
        text = f"no key {show(error.args[0])}"
    line, source = None, None
    if isinstance(error, SyntaxError) and error.filename == str(file):
        line, source = error.lineno, (error.text or "").strip()
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(file):
            line, source = frame.lineno, frame.line
    return {"kinds": kinds, "text": text, "line": line, "source": source}
