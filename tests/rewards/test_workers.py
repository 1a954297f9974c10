"""Workers that can be killed: whatever a call does, it costs that call alone and leaves nothing behind."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from upweight.rewards.score import Status
from upweight.rewards.workers.frames import Closed, read_frame, take_frame, write_frame
from upweight.rewards.workers.pool import Pool
from upweight.rewards.workers.tree import below

HANDLER = """
import ctypes, itertools, os, shutil, subprocess, sys, time

def fork(n, sleep=60):
    for _ in range(n):
        if os.fork() == 0:
            time.sleep(sleep)
            os._exit(0)

def escape():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.wait()

def eat():
    kept = []
    while True:
        kept.append(bytearray(64 * 1024**2))

def loop():
    while True:
        pass

def print_much():
    while True:
        print("x" * 100_000)

def delete():
    shutil.rmtree(os.getcwd())

def shout():
    print("a last word", file=sys.stderr, flush=True)
    os._exit(7)

def raises():
    raise ValueError("a reason\\nin two lines")

def eat_together():
    for _ in range(6):
        if os.fork() == 0:
            kept = bytearray(100 * 1024**2)
            for i in range(0, len(kept), 4096):
                kept[i] = 1
            time.sleep(60)
    time.sleep(60)

CALLS = {
    "fine": lambda: None,
    "exit": lambda: os._exit(0),
    "sys.exit": sys.exit,
    "segfault": lambda: ctypes.string_at(0),
    "eat": eat,
    "eat together": eat_together,
    "fork 200": lambda: fork(200) or time.sleep(60),
    "leave one": lambda: fork(1),
    "escape": escape,
    "escape and hang": lambda: escape() or loop(),
    "print": print_much,
    "delete": delete,
    "shout": shout,
    "raise": raises,
    "loop": loop,
    "sum": lambda: sum(itertools.repeat(1)),
    "power": lambda: 9**9**9,
    "child": lambda: subprocess.run(["sleep", "60"]),
    "where": os.getcwd,
    "kill the warden": lambda: os.kill(os.getppid(), 9) or time.sleep(60),
    "fork and return": os.fork,
}

def make(options):
    def call(job):
        result = CALLS[job["do"]]()
        return {"result": result if isinstance(result, (int, str)) else None, "pid": os.getpid()}
    return call

def broken(options):
    raise RuntimeError("cannot be loaded")
"""


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hostile_calls.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    return "hostile_calls:make"


@pytest.fixture
def others() -> set[int]:
    """Processes that were there before the test."""
    return set(below(os.getpid()))


@pytest.fixture
def pool(handler: str, others: set[int]) -> Iterator[Pool]:
    with Pool(handler, {}, seconds=0.5, memory=512 * 1024**2, processes=16) as made:
        made.start()
        yield made
    assert set(below(os.getpid())) <= others


def new_processes(others: set[int]) -> list[int]:
    """What the test has started and still runs; what was killed may take a moment to go."""
    deadline = time.monotonic() + 3
    while len(found := sorted(set(below(os.getpid())) - others)) > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("do", "status", "why"),
    [
        ("exit", Status.ERROR, "left with exit code 0"),
        ("sys.exit", Status.ERROR, "SystemExit"),
        ("segfault", Status.ERROR, "ended by signal 11"),
        ("eat", Status.ERROR, "MemoryError"),
        ("eat together", Status.ERROR, "together with what it started"),
        ("fork 200", Status.ERROR, "more than 16 processes"),
        ("print", Status.ERROR, "printed more than 4 MiB"),
        ("shout", Status.ERROR, "exit code 7: a last word"),
        ("raise", Status.ERROR, "ValueError: a reason"),
        ("loop", Status.TIMEOUT, "longer than 0.5 s"),
        ("sum", Status.TIMEOUT, "longer than 0.5 s"),
        ("power", Status.TIMEOUT, "longer than 0.5 s"),
        ("child", Status.TIMEOUT, "longer than 0.5 s"),
        ("escape and hang", Status.TIMEOUT, "longer than 0.5 s"),
        ("kill the warden", Status.ERROR, "the worker was lost"),
        ("delete", Status.SCORED, ""),
        ("leave one", Status.SCORED, ""),
        ("escape", Status.SCORED, ""),
        ("fork and return", Status.SCORED, ""),
    ],
)
def test_a_hostile_call_costs_itself_alone(pool: Pool, others: set[int], do: str, status: Status, why: str) -> None:
    limit = 0.5 if status is Status.TIMEOUT else 10.0
    start = time.monotonic()
    reply = pool.call({"do": do}, limit)
    assert time.monotonic() - start < limit + 1.0
    assert reply.status is status, reply
    assert why in reply.why
    assert pool.call({"do": "fine"}).status is Status.SCORED
    assert len(new_processes(others)) == 2  # the warden and its worker


def test_a_deadline_is_kept(pool: Pool) -> None:
    start = time.monotonic()
    pool.call({"do": "loop"})
    assert 0.5 <= time.monotonic() - start < 1.5


def test_a_worker_lives_on_after_an_exception_and_is_replaced_after_a_crash(pool: Pool) -> None:
    first = pool.call({"do": "fine"}).content["pid"]
    pool.call({"do": "raise"})
    assert pool.call({"do": "fine"}).content["pid"] == first
    pool.call({"do": "exit"})
    assert pool.call({"do": "fine"}).content["pid"] != first


def test_a_worker_runs_in_an_empty_folder_of_its_own_that_goes_with_it(pool: Pool) -> None:
    folder = Path(str(pool.call({"do": "where"}).content["result"]))
    assert folder != Path.cwd()
    assert list(folder.iterdir()) == []
    pool.close()
    assert not folder.exists()


def test_several_workers_run_side_by_side(handler: str) -> None:
    with Pool(handler, {}, seconds=0.5, size=4) as pool:
        pool.start()
        start = time.monotonic()
        replies = pool.map([{"do": "loop"}] * 4 + [{"do": "fine"}])
    assert [reply.status for reply in replies] == [Status.TIMEOUT] * 4 + [Status.SCORED]
    assert time.monotonic() - start < 8 * 0.5


def test_what_cannot_be_loaded_says_so_at_every_call(handler: str) -> None:
    with Pool("hostile_calls:broken", {}, seconds=1.0) as pool:
        for _ in range(2):
            reply = pool.call({"do": "fine"})
            assert (reply.status, reply.why) == (Status.ERROR, "RuntimeError: cannot be loaded")
            assert "cannot be loaded" in reply.trace


def test_a_pool_of_a_forked_process_is_its_own(pool: Pool) -> None:
    assert pool.call({"do": "fine"}).status is Status.SCORED
    code = textwrap.dedent("""
        import os, sys
        from upweight.rewards.workers.pool import Pool
        pool = Pool("upweight.rewards.workers.pool:echo", {}, seconds=5.0)
        assert pool.call({"x": 1}).content == {"x": 1}
        child = os.fork()
        if child == 0:
            ok = pool.call({"x": 2}).content == {"x": 2}
            pool.close()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.call({"x": 3}).content == {"x": 3}
    """)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_workers_end_when_the_process_that_uses_them_is_killed(tmp_path: Path, handler: str) -> None:
    code = textwrap.dedent("""
        import os, signal
        from upweight.rewards.workers.pool import Pool
        from upweight.rewards.workers.tree import below
        pool = Pool("hostile_calls:make", {}, seconds=60.0)
        pool.start()
        print(*below(os.getpid()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_frames_are_read_back_and_what_is_none_is_refused() -> None:
    reading, writing = os.pipe()
    write_frame(writing, {"a": [1, None]})
    assert read_frame(reading) == {"a": [1, None]}
    os.close(writing)
    with pytest.raises(Closed):
        read_frame(reading)
    os.close(reading)
    for junk in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x02xy"):
        with pytest.raises(Closed):
            take_frame(bytearray(junk))
