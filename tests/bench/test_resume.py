"""bench/resume.py: a difference is seen, and on the tiny model there is none."""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import resume
from speed.worker import HERE


def run_with(folder: Path, weights: bytes, moments: bytes, **row: float) -> Path:
    checkpoint = folder / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(weights)
    (checkpoint / "optimizer.safetensors").write_bytes(moments)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n' + json.dumps({"step": 2, **row}) + "\n")
    return folder


def test_the_hashes_are_of_weights_moments_and_the_last_row_without_its_times(tmp_path: Path) -> None:
    one = resume.hashes(run_with(tmp_path / "a", b"w", b"m", loss=0.5, seconds=1.0), 2)
    other = resume.hashes(run_with(tmp_path / "b", b"w", b"x", loss=0.5, tokens_per_second=3.0), 2)
    third = resume.hashes(run_with(tmp_path / "c", b"w", b"m", loss=0.25), 2)
    assert one["weights"] == hashlib.sha256(b"w").hexdigest() == other["weights"]
    assert one["moments"] != other["moments"]
    assert one["metrics row"] == other["metrics row"] != third["metrics row"]


def test_what_is_not_equal_is_said() -> None:
    hashes = dict.fromkeys(resume.PARTS, "0" * 64)
    found = {"model": "tiny", "ranks": 2, "steps": [5, 5], "straight": hashes, "killed": hashes, "equal": False}
    assert "NOT EQUAL" in resume.show(found)
    assert "NOT" not in resume.show({**found, "equal": True})


def test_two_processes_are_started_by_torchrun() -> None:
    assert resume.launch(1, ["--seed", "1"])[1:] == ["-m", "upweight", "train", "--seed", "1"]
    assert "--nproc_per_node" in resume.launch(2, [])


def test_every_step_of_the_runs_can_be_rewarded(tmp_path: Path) -> None:
    """Strings and chats, empty ones as well."""
    options = argparse.Namespace(model="tiny", prompts=2, answers=4, new_tokens=6, steps=1)
    flags = resume.flags_of(options, str(tmp_path))
    assert flags[flags.index("--reward") + 1] == f"{tmp_path}/mine.py:letters"
    space: dict[str, object] = {}
    exec((tmp_path / "mine.py").read_text(), space)
    assert space["letters"](["ab", "", [{"content": "a"}]])[:2] == [1.0, 0.0]  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_on_the_tiny_model_both_runs_are_one(ranks: str) -> None:
    """Two processes are both killed, and two others go on."""
    words = ["--ranks", ranks, "--steps", "1", "--prompts", "2", "--answers", "4", "--json"]
    done = subprocess.run(
        [sys.executable, str(HERE.parent / "resume.py"), *words], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["equal"]
    assert found["straight"] == found["killed"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_a_kill_reaches_what_has_a_session_of_its_own() -> None:
    """As torchrun's workers have: a kill of its process group alone lets them train on."""
    call = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", call], stdin=subprocess.PIPE) as parent:
        while not (children := resume.below(parent.pid)):
            assert parent.poll() is None
        resume.kill_all(parent)
    assert not any(resume.is_running(pid) for pid in children)
