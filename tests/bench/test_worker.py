"""Sides in processes of their own: what is asked and answered, whose variables, whose memory, in which order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from speed.machine import descendants, status_bytes, tree_peak
from speed.worker import HERE, SideFailed, Turn, Worker, environment, in_turn, seconds

BENCH = HERE.parent

SIDE = f"""
import sys
sys.path.append({str(BENCH)!r})
from speed.channel import serve

def make(setup):
    print("a library says hello")
    if setup.get("broken"):
        raise RuntimeError("the model is not there")
    def handle(request):
        if request.get("die"):
            raise RuntimeError("out of memory")
        block = bytearray(request.get("bytes", 0))
        return {{"twice": request["number"] * 2, "held": len(block), "modules": sorted(set(sys.modules) & {{"torch"}})}}
    return {{"name": setup["name"]}}, handle

serve(make)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "side.py"
    path.write_text(SIDE, encoding="utf-8")
    return str(path)


def start(script: str, **setup: object) -> Worker:
    return Worker(sys.executable, script, {"name": "x", **setup}, threads=1, own=False)


def test_a_side_says_who_it_is_and_answers_whatever_libraries_print(script: str) -> None:
    with start(script) as worker:
        assert worker.ready == {"name": "x"}
        turns = [worker.ask({"number": number}) for number in (1, 2)]
    assert [turn.said["twice"] for turn in turns] == [2, 4]
    assert all(turn.seconds > 0 for turn in turns)
    assert worker.startup > turns[0].seconds


def test_what_all_sides_import_loads_no_torch(script: str) -> None:
    with start(script) as worker:
        assert worker.ask({"number": 0}).said["modules"] == []


def test_a_side_that_cannot_start_says_why(script: str) -> None:
    with pytest.raises(SideFailed, match="the model is not there"):
        start(script, broken=True)


def test_a_side_that_ends_says_why_and_stays_ended(script: str) -> None:
    with start(script) as worker:
        with pytest.raises(SideFailed, match="out of memory"):
            worker.ask({"die": True})
        with pytest.raises(SideFailed):
            worker.ask({"number": 1})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_the_peak_is_the_sides_own_and_outlives_what_was_freed(script: str) -> None:
    size = 200_000_000
    with start(script) as worker:
        before = worker.peak()
        worker.ask({"number": 1, "bytes": size})
        after = worker.peak()
    assert before is not None
    assert after is not None
    assert before < size / 2
    assert after - before > 0.9 * size


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are reset through /proc")
def test_a_peak_that_is_forgotten_starts_again_from_what_is_held() -> None:
    code = (
        f"import sys; sys.path.append({str(BENCH)!r})\n"
        "from speed.machine import forget_peak, own_bytes\n"
        "del [bytearray(200_000_000)][0]\n"
        "first = own_bytes('VmHWM'); assert forget_peak(); print(first, own_bytes('VmHWM'), own_bytes('VmRSS'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, later, held = map(int, done.stdout.split())
    assert first > 200_000_000
    assert later < first / 2
    assert later >= held


def test_a_status_without_the_field_is_unknown() -> None:
    assert status_bytes("Name:\tx\nVmRSS:\t 12 kB\n", "VmHWM") is None
    assert status_bytes("Name:\tx\nVmRSS:\t 12 kB\n", "VmRSS") == 12 * 1024


def test_children_of_children_belong_to_a_side_and_strangers_do_not() -> None:
    assert descendants(10, {1: 0, 10: 1, 11: 10, 12: 11, 20: 1}) == [10, 11, 12]


def test_a_process_that_is_gone_has_no_peak() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert tree_peak(done.pid) is None


def test_a_peer_gets_as_many_threads_and_none_of_our_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    assert environment(3, own=True)["PYTHONPATH"] == "somewhere"
    assert "PYTHONPATH" not in environment(3, own=False)
    assert environment(3, own=False)["OMP_NUM_THREADS"] == environment(3, own=True)["OMP_NUM_THREADS"] == "3"
    assert os.environ["PYTHONPATH"] == "somewhere"


def test_sides_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str) -> object:
        def ask(number: int) -> Turn:
            order.append((name, number))
            return Turn(seconds=10.0 + number if name == "ours" else 20.0 + number, said={})

        return ask

    turns, first = in_turn({"ours": side("ours"), "theirs": side("theirs")}, steps=2, warmup=1)
    assert order == [(name, number) for number in range(3) for name in ("ours", "theirs")]
    assert {name: seconds(side) for name, side in turns.items()} == {"ours": [11.0, 12.0], "theirs": [21.0, 22.0]}
    assert first == {"ours": 10.0, "theirs": 20.0}
