"""A pool of killable workers, as the run sees it."""

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from upweight.objective.errors import UsageError
from upweight.rewards.score import Status
from upweight.rewards.workers.frames import Closed, read_frame, write_frame

START_SECONDS = 120.0
"""For a worker's interpreter and imports, from a cold disk; a call's time starts after it."""

GRACE_SECONDS = 10.0
"""Beyond a call's limit, for the warden to end what the call started. A warden that takes longer is ended itself."""

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from upweight.rewards.workers.warden import main; main()"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came of one call."""

    status: Status
    """`scored` where the call came to an end, else `timeout` or `error`."""

    content: Mapping[str, Any] = field(default_factory=dict)
    """What the call returned."""

    why: str = ""
    """What went wrong: one line."""

    trace: str = ""
    """The traceback, where it raised."""


class Pool:
    """Runs calls in processes that end at a deadline, with limits on memory, processes and output.

    A call that hangs, crashes or exceeds a limit costs its own result alone: the worker is ended with everything it
    started and another takes its place. Calls may come from any thread. The workers end with `close`, at the
    interpreter's exit, and when the process that uses them is killed.

    Example:
        >>> with Pool("upweight.rewards.workers.pool:echo", {}, seconds=5.0) as pool:
        ...     pool.call({"x": 1}).content
        {'x': 1}
    """

    def __init__(
        self,
        handler: str,
        options: Mapping[str, Any],
        *,
        seconds: float,
        size: int = 1,
        memory: int = 4 * 1024**3,
        processes: int = 64,
        preload: Sequence[str] = (),
    ) -> None:
        """Take over the settings; nothing is started before the first call or `start`.

        Args:
            handler: "module:function"; the function takes `options` and returns what takes a job and returns a result,
                all of them JSON objects.
            options: for the handler.
            seconds: one call may take.
            size: workers, and so calls at a time.
            memory: bytes of address space of one process, and of resident memory of all that a worker starts.
            processes: a worker may have running at a time, itself included.
            preload: "module:function" to call once per warden, before workers are forked from it: shared imports.

        Raises:
            UsageError: a system that cannot fork.
        """
        if not hasattr(os, "fork"):
            raise UsageError("Workers that can be killed need a system with fork, such as Linux or macOS.")
        self._settings = {
            "handler": handler,
            "options": dict(options),
            "memory": memory,
            "processes": processes,
            "preload": list(preload),
        }
        self.seconds = seconds
        self.size = size
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[_Warden | None] = queue.LifoQueue()
        self._owner = 0
        self._all: list[_Warden] = []
        _POOLS.add(self)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every worker now and wait until they are ready, so that no call has to.

        Raises:
            RuntimeError: a worker could not be started.
        """
        wardens = [self._take() for _ in range(self.size)]
        for warden in wardens:
            self._idle.put(warden)

    def call(self, job: Mapping[str, Any], seconds: float | None = None) -> Reply:
        """Run one job.

        Args:
            job: a JSON object.
            seconds: this call may take; the pool's limit where None.

        Returns:
            Its result, or why there is none. Never raises for what the job did.
        """
        limit = self.seconds if seconds is None else seconds
        try:
            warden = self._take()
        except (RuntimeError, OSError) as error:
            return Reply(status=Status.ERROR, why=f"no worker could be started: {error}")
        kept: _Warden | None = None
        try:
            answer = warden.ask({"job": dict(job), "seconds": limit}, limit + GRACE_SECONDS)
            kept = warden
        except Closed as error:
            return Reply(status=Status.ERROR, why=f"the worker was lost: {error}")
        finally:
            if kept is None:
                self._forget(warden)
            self._idle.put(kept)
        if answer["status"] == "timeout":
            return Reply(status=Status.TIMEOUT, why=answer["why"])
        if answer["status"] == "error" or "raised" in answer:
            why = str(answer.get("raised") or answer["why"])
            return Reply(status=Status.ERROR, why=why, trace=str(answer.get("trace", "")))
        return Reply(status=Status.SCORED, content={k: v for k, v in answer.items() if k != "status"})

    def map(self, jobs: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """Run jobs side by side, as many at a time as there are workers; replies in the order of the jobs."""
        if self.size == 1 or len(jobs) < 2:
            return [self.call(job) for job in jobs]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(self.call, jobs))

    def close(self) -> None:
        """End all workers and whatever they started. The pool starts anew at the next call."""
        with self._lock:
            wardens, self._all, self._owner = self._all, [], 0
        for warden in wardens:
            warden.close()

    def _take(self) -> "_Warden":
        with self._lock:
            if self._owner != os.getpid():
                # The first call, or a fork of the process that made the pool: its workers are not ours to talk to.
                self._all = []
                self._owner = os.getpid()
                self._idle = queue.LifoQueue()
                for _ in range(self.size):
                    self._idle.put(None)
        warden = self._idle.get()
        if warden is None or not warden.is_running():
            if warden is not None:
                self._forget(warden)
            try:
                warden = _Warden(self._settings)
            except BaseException:
                self._idle.put(None)
                raise
            with self._lock:
                self._all.append(warden)
        return warden

    def _forget(self, warden: "_Warden") -> None:
        with self._lock:
            if warden in self._all:
                self._all.remove(warden)
        warden.close()


class _Warden:
    """The run's end of one warden process."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        path = [os.path.abspath(entry or os.curdir) for entry in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        try:
            ready = self.ask(dict(settings), START_SECONDS)
        except Closed as error:
            self.close()
            raise RuntimeError(f"the worker did not start ({error})") from error
        if "ready" not in ready:
            self.close()
            raise RuntimeError("the worker did not start")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, content: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and wait for the answer; a process that gives none in time is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        clock = threading.Timer(seconds, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            write_frame(self._process.stdin.fileno(), content)
            return read_frame(self._process.stdout.fileno())
        finally:
            clock.cancel()

    def close(self) -> None:
        """Let the warden end its worker, which it does when its input closes; kill it where it does not."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def echo(_options: Mapping[str, Any]) -> Any:
    """A handler that returns every job as it is: what a pool costs, and whether it works."""
    return dict


_POOLS: "weakref.WeakSet[Pool]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        if pool._owner == os.getpid():
            pool.close()
