"""The processes below one, on Linux by /proc: found also after setsid and double forks, counted, weighed and ended."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SUBREAPER, PARENT_DEATH_SIGNAL = 36, 1
END_SECONDS = 5.0


def become_subreaper() -> None:
    """From now on, orphans below this process become its children, whatever session they are in (Linux)."""
    _prctl(SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed as soon as the parent is gone (Linux)."""
    _prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def below(pid: int) -> list[int]:
    """Every process below one, nearest first; none where the system has no /proc."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    return found


def resident_bytes(pids: list[int]) -> int:
    """Memory that processes hold, pages that they share counted for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def end(pids: list[int]) -> None:
    """Kill processes and what is below them, first stopping all so that none forks away meanwhile."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        alive = {p for pid in pids for p in (pid, *below(pid))}
        for kill in (signal.SIGSTOP, signal.SIGKILL):
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, kill)
        reap()
        if not any(_is_running(pid) for pid in alive):
            return
        time.sleep(0.002)


def end_children() -> None:
    """Kill everything below this process, also what became its child by being orphaned meanwhile."""
    deadline = time.monotonic() + END_SECONDS
    while (children := below(os.getpid())) and time.monotonic() < deadline:
        end(children)


def reap() -> None:
    """Take note of every child that has ended, so that none stays behind as a zombie."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
