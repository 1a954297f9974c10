"""Runs a person's file in a process of its own, and outlives whatever that does."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from judging.case import PRACTICE

START_SECONDS = 120.0
"""For the interpreter and, where needed, PyTorch to start from a cold disk; the person's time starts after it."""

MOST_PRINTED = 1_000_000
PRINTED_KEPT = 2_000

# A thread count that suits small tensors on a busy machine; set before PyTorch starts.
SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}


@dataclass
class Run:
    """What a process reported, and how it ended."""

    events: list[dict[str, object]] = field(default_factory=list)
    """In order: ready, start, value or raised, ..., end."""

    ending: str = "died"
    """end, no-torch, timeout (of the person's file), slow-start, flood or died."""

    exit_code: int | None = None
    """Of a process that died; negative = ended by that signal."""

    printed: str = ""
    """Beginning of what the person's file printed."""


def run_file(name: str, file: Path, seconds: float) -> Run:
    """Run all cases of an exercise on a file, within a time limit that starts when the interpreter is up.

    Args:
        name: the exercise.
        file: the person's file.
        seconds: wall-clock limit for loading the file and all its cases.
    """
    path = os.pathsep.join(filter(None, [str(PRACTICE), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from judging.worker import main; main()", name, str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **SETTINGS, "PYTHONPATH": path},
        start_new_session=True,
    )
    lines: queue.Queue[bytes | int | None] = queue.Queue()
    printed = bytearray()
    assert process.stdout is not None
    assert process.stderr is not None
    readers = {
        threading.Thread(target=_read_reports, args=(process.stdout, lines), daemon=True): process.stdout,
        threading.Thread(target=_read_print, args=(process.stderr, printed, lines), daemon=True): process.stderr,
    }
    for reader in readers:
        reader.start()
    run = Run()
    try:
        _follow(run, lines, seconds)
        if run.ending == "died":
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.exit_code = process.wait(timeout=1.0)
    finally:
        _end(process)
    # A grandchild in a session of its own may hold the pipe open; it does not keep the judge waiting.
    for reader, stream in readers.items():
        reader.join(timeout=1.0)
        if not reader.is_alive():
            stream.close()
    run.printed = bytes(printed).decode("utf-8", "replace")
    return run


def _follow(run: Run, lines: "queue.Queue[bytes | int | None]", seconds: float) -> None:
    deadline, started = time.monotonic() + START_SECONDS, False
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            run.ending = "timeout" if started else "slow-start"
            return
        if line is None:
            return
        if isinstance(line, int):
            run.ending = "flood"
            return
        event = _parse(line)
        if event is None:
            continue
        if event["event"] in ("end", "no-torch"):
            run.ending = str(event["event"])
            return
        if event["event"] == "ready":
            deadline, started = time.monotonic() + seconds, True
        run.events.append(event)


def _parse(line: bytes) -> dict[str, object] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _read_reports(stream: IO[bytes], lines: "queue.Queue[bytes | int | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _read_print(stream: IO[bytes], printed: bytearray, lines: "queue.Queue[bytes | int | None]") -> None:
    total = 0
    while chunk := os.read(stream.fileno(), 65_536):
        total += len(chunk)
        printed += chunk[: PRINTED_KEPT - len(printed)]
        if total > MOST_PRINTED:
            lines.put(total)
            return


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
