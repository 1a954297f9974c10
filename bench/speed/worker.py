"""Sides in processes of their own, and the turns that they take: ours, theirs, ours, theirs."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed.machine import tree_peak

HERE = Path(__file__).resolve().parent


class SideFailed(RuntimeError):
    """A side's process ended; the message has its last lines."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one request came to."""

    seconds: float
    """Wall time from the request to the reply, by the same clock for every side."""

    said: dict[str, Any]
    """The reply."""


class Worker:
    """A process that answers one request after the other, and has nothing to do in between."""

    def __init__(self, python: str | Path, script: str, setup: Mapping[str, Any], *, threads: int, own: bool) -> None:
        """Start it and wait until it is ready.

        Args:
            python: of the environment it runs in.
            script: a file beside this one.
            setup: its first request, answered once everything is loaded; `variables` in it are its environment's too.
            threads: that it may compute with.
            own: keep PYTHONPATH, which names this checkout's packages; a peer takes its own.

        Raises:
            SideFailed: it ended before it was ready.
        """
        started = time.perf_counter()
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        # -P: the scripts' folder holds names of its own, which no library may import by mistake.
        self._process = subprocess.Popen(
            [python, "-P", HERE / script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=environment(threads, own=own) | setup.get("variables", {}),
        )
        try:
            self.ready = self.ask(setup).said
        except SideFailed:
            self.close()
            raise
        self.startup = time.perf_counter() - started

    def ask(self, request: Mapping[str, Any]) -> Turn:
        """Send a request and wait for the reply.

        Raises:
            SideFailed: the process ended.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both ends are pipes")
        started = time.perf_counter()
        line = ""
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass  # The process has ended, and what it wrote last says why.
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise SideFailed("".join(self._errors.readlines()[-30:]).strip() or "it ended without a word")
        return Turn(seconds=time.perf_counter() - started, said=json.loads(line))

    def peak(self) -> int | None:
        """Bytes, so far, of the process and of those it started."""
        return tree_peak(self._process.pid)

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment(threads: int, *, own: bool) -> dict[str, str]:
    """Variables of a side's process: so many threads, nothing fetched, no PYTHONPATH of ours for a peer."""
    kept = {key: value for key, value in os.environ.items() if own or key != "PYTHONPATH"}
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return kept | dict.fromkeys(names, str(threads)) | quiet


Ask = Callable[[int], Turn]
"""Turn number, from 0, warm-up included -> what it came to."""


def in_turn(sides: Mapping[str, Ask], *, steps: int, warmup: int) -> tuple[dict[str, list[Turn]], dict[str, float]]:
    """Every side once a turn, in the order given, `warmup` turns thrown away.

    Returns:
        The turns that count of each side, and the seconds of each side's very first, which holds what is compiled,
        allocated and cached once.
    """
    every: dict[str, list[Turn]] = {name: [] for name in sides}
    for number in range(warmup + steps):
        for name, ask in sides.items():
            every[name].append(ask(number))
    return {name: turns[warmup:] for name, turns in every.items()}, {
        name: turns[0].seconds for name, turns in every.items()
    }


def seconds(turns: Sequence[Turn]) -> list[float]:
    """Of each turn."""
    return [turn.seconds for turn in turns]
