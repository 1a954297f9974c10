"""The warden: a small process that keeps one worker, gives it jobs, and ends it with all that it started.

It is started by a clean exec, never by a fork of a process that has PyTorch loaded, and imports what the worker needs
once; a worker is a fork of it, so a dead one is replaced in milliseconds. Orphans of the worker become the warden's
children, whatever session they moved to, and are ended with it.
"""

import contextlib
import importlib
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from upweight.rewards.workers.frames import Closed, read_frame, take_frame, write_frame
from upweight.rewards.workers.tree import (
    become_subreaper,
    below,
    die_with_parent,
    end,
    end_children,
    reap,
    resident_bytes,
)

TICK = 0.05
"""Seconds between two looks at what the worker started."""

LOAD_SECONDS = 120.0
"""A worker may take to import what it runs."""

MOST_PRINTED = 4 * 1024**2
PRINTED_KEPT = 2_048

Job = Callable[[dict[str, Any]], dict[str, Any]]


def main() -> None:
    """Serve the process at the other end of standard input and output until it goes away."""
    orders, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which says what it wants by closing the pipe
    become_subreaper()
    try:
        settings = read_frame(orders)
        for name in settings["preload"]:
            module, _, function = name.partition(":")
            getattr(importlib.import_module(module), function)()
        warden = Warden(settings, orders)
        try:
            warden.replace()
            write_frame(replies, {"ready": True})
            while True:
                write_frame(replies, warden.run(read_frame(orders)))
        finally:
            warden.end()
    except Closed:
        pass
    finally:
        end_children()


class Warden:
    """Keeps one worker."""

    def __init__(self, settings: dict[str, Any], orders: int) -> None:
        self._settings = settings
        self._orders = orders
        self._parent = os.getppid()
        self._pid = 0
        self._jobs = self._results = self._printed = -1
        self._folder = ""
        self._loaded = False
        self._buffer = bytearray()
        self._output = bytearray()
        self._output_size = 0

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Give the worker a job and say what came of it; a worker that did not come through is replaced."""
        if self._pid == 0:
            self.replace()
        if not self._loaded:
            reply = self._wait(LOAD_SECONDS, "loading the function")
            if reply.get("loaded") is not True:
                self.replace()
                return reply
            self._loaded = True
        self._output.clear()
        self._output_size = 0
        try:
            write_frame(self._jobs, {"job": job["job"]})
            reply = self._wait(float(job["seconds"]), "the call")
        except Closed:
            reply = self._death()
        if reply["status"] != "done":
            self.replace()
            return reply
        if strays := [pid for pid in below(os.getpid()) if pid != self._pid]:
            end(strays)
            with contextlib.suppress(Closed):
                write_frame(self._jobs, {"reap": True})  # they were the worker's children: only it can take note
        return reply

    def replace(self) -> None:
        """End the worker, if there is one, and start another."""
        self.end()
        job_out, self._jobs = os.pipe()
        self._results, result_in = os.pipe()
        self._printed, printed_in = os.pipe()
        self._folder = tempfile.mkdtemp(prefix="upweight-worker-")
        self._loaded = False
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._orders)
                _serve(job_out, result_in, printed_in, self._folder, self._settings)
            finally:
                os._exit(1)
        for fd in (job_out, result_in, printed_in):
            os.close(fd)

    def end(self) -> None:
        """End the worker and everything it started; its folder goes too."""
        if self._pid == 0:
            return
        end([self._pid])
        end_children()
        for fd in (self._jobs, self._results, self._printed):
            os.close(fd)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._buffer.clear()
        self._pid = 0

    def _wait(self, seconds: float, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._results, selectors.EVENT_READ)
            selector.register(self._printed, selectors.EVENT_READ)
            look = time.monotonic() + TICK
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, TICK)):
                    chunk = os.read(key.fd, 65_536)
                    if not chunk:
                        selector.unregister(key.fd)
                        if key.fd == self._results:
                            return self._death()
                        continue
                    if key.fd == self._printed:
                        self._keep(chunk)
                        if self._output_size > MOST_PRINTED:
                            return self._failed(f"printed more than {MOST_PRINTED >> 20} MiB")
                        continue
                    self._buffer += chunk
                    try:
                        if reply := take_frame(self._buffer):
                            return reply
                    except Closed:
                        return self._failed("wrote what is no result")
                if time.monotonic() >= look:
                    look = time.monotonic() + TICK
                    if excess := self._excess():
                        return self._failed(excess)
                    self._check_parent()
        return {"status": "timeout", "why": f"{what} took longer than {seconds:g} s"}

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            raise Closed("the run is gone")

    def _excess(self) -> str:
        pids = below(os.getpid())
        if len(pids) > self._settings["processes"]:
            return f"started more than {self._settings['processes']} processes"
        # One process alone is held by its own limit; together they may hold no more than one may.
        if len(pids) > 1 and resident_bytes(pids) > self._settings["memory"]:
            return f"held more than {self._settings['memory'] >> 20} MiB together with what it started"
        reap()
        return ""

    def _keep(self, chunk: bytes) -> None:
        self._output += chunk[: PRINTED_KEPT - len(self._output)]
        self._output_size += len(chunk)

    def _failed(self, why: str) -> dict[str, Any]:
        return {"status": "error", "why": why}

    def _death(self) -> dict[str, Any]:
        """How the worker died, with the last line of what it printed."""
        code = None
        with contextlib.suppress(ChildProcessError):
            for _ in range(100):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    break
                time.sleep(0.002)
        how = "ended" if code is None else f"ended by signal {-code}" if code < 0 else f"left with exit code {code}"
        with contextlib.suppress(OSError):
            os.set_blocking(self._printed, False)
            self._keep(os.read(self._printed, PRINTED_KEPT))
        lines = bytes(self._output).decode("utf-8", "replace").strip().splitlines()
        return self._failed(f"the process {how}" + (f": {lines[-1][:150]}" if lines else ""))


def _serve(jobs: int, results: int, printed: int, folder: str, settings: dict[str, Any]) -> None:
    """The worker: load the function, then take job after job. Never returns to the warden's code."""
    os.setpgid(0, 0)
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for standard in (1, 2):
        os.dup2(printed, standard)
    os.chdir(folder)
    _limit(settings)
    pid = os.getpid()
    try:
        module, _, name = settings["handler"].partition(":")
        job: Job = getattr(importlib.import_module(module), name)(settings["options"])
    except BaseException as error:  # noqa: BLE001 - a user's module raises anything; it is reported to the run
        write_frame(results, {"status": "error", "kind": "load", "why": _line(error), "trace": _trace(error)})
        return
    write_frame(results, {"status": "loaded", "loaded": True})
    while True:
        content = read_frame(jobs)
        if "reap" in content:
            reap()
            continue
        try:
            reply = {"status": "done", **job(content["job"])}
        except BaseException as error:  # noqa: BLE001 - sys.exit() and MemoryError too: this call's error
            reply = {"status": "done", "raised": _line(error), "trace": _trace(error)}
        if os.getpid() != pid:
            os._exit(0)  # a fork that came back from the function: it must not answer as well
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        write_frame(results, reply)


def _limit(settings: dict[str, Any]) -> None:
    """Limits that the worker cannot lift again: soft = hard."""
    import resource

    def at_most(which: int, value: int) -> None:
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # a system that does not let it be set: the others hold
            resource.setrlimit(which, (value, value))

    at_most(resource.RLIMIT_CORE, 0)
    at_most(resource.RLIMIT_AS, settings["memory"])
    if hasattr(resource, "RLIMIT_NPROC"):
        at_most(resource.RLIMIT_NPROC, _threads_of_user() + settings["processes"])


def _threads_of_user() -> int:
    """The limit on processes counts all threads of a user, also those that run already."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                    total += len(os.listdir(f"/proc/{name}/task"))
    return total


def _line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception of a user's own may not even have a text
        text = ""
    return f"{type(error).__name__}: {text}".splitlines()[0][:300]


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-8_000:]
