"""A signal at a chosen moment of a run: nothing is lost, nothing is sampled twice, no process stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.waiting import wait_for

from upweight.rewards.workers.tree import below

SOURCES = Path(__file__).resolve().parents[2] / "src"

DRIVER = """
import importlib, sys, time
from pathlib import Path

import upweight.train.step  # before the run imports what is changed below

moment, mark, *words = sys.argv[1:]
module, _, name = {
    "warm-up": "upweight.train.run:warm_up_cached",
    "rollout": "upweight.rollout.engine:draw_tokens",
    "backward": "torch.autograd:backward",
    "save": "upweight.train.saving.keeper:save_training",
}[moment].partition(":")
room = importlib.import_module(module)
real, calls = getattr(room, name), [0]
steps = importlib.import_module("upweight.train.run")
step_real, step = steps.training_step, [0]


def training_step(learner, number):
    step[0] = number
    return step_real(learner, number)


def slow(*args, **options):
    if step[0] in (0, 2) and (moment == "warm-up" or step[0] == 2):
        Path(mark).touch()
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline and not Path(mark + ".go").exists():
            time.sleep(0.01)
    return real(*args, **options)


setattr(room, name, slow)
steps.training_step = training_step
from upweight.cli.main import main

sys.exit(main(["train", *words]))
"""

REWARD = '''
import os, subprocess, sys


def vowels(completions, **_):
    """Leaves a child behind that would outlive its worker."""
    if os.environ.get("WITH_CHILD"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    return [float(sum(letter in "aeiou0123456789" for letter in text)) for text in completions]
'''

WORDS = [
    *("--model tiny --sft_steps 0 --max_steps 4 --prompts_per_step 4 --group_size 4 --save_every 1".split()),  # noqa: SIM905
    *("--device cpu --kl_coef 0 --max_new_tokens 6 --task arithmetic:digits=1".split()),  # noqa: SIM905
]


@contextlib.contextmanager
def running(tmp_path: Path, moment: str, *flags: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own that takes twenty seconds over the chosen moment of step 2; gone at the end."""
    reward = tmp_path / "vowels.py"
    reward.write_text(REWARD)
    words = [*WORDS, "--reward", f"{reward}:vowels", "--output_dir", str(tmp_path / "run"), *flags]
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, moment, str(tmp_path / "mark"), *words],
        env={**os.environ, "PYTHONPATH": str(SOURCES), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def gone(pids: list[int], seconds: float = 10.0) -> list[int]:
    """Those of some processes that do not end in time."""
    deadline = time.monotonic() + seconds
    alive = pids
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if Path(f"/proc/{pid}").exists() and not zombie(pid)]
        time.sleep(0.05)
    return alive


def zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("*checkpoint-*"))


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if "second" not in key} for row in rows]


def finish(tmp_path: Path) -> None:
    """Go on from where a run was stopped, to its end."""
    words = ["--output_dir", str(tmp_path / "run"), "--resume", "auto"]
    reward = ["--reward", f"{tmp_path / 'vowels.py'}:vowels"]
    subprocess.run(
        [sys.executable, "-m", "upweight.cli.main", "train", *WORDS, *reward, *words],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        check=True,
        capture_output=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never stopped."""
    place = tmp_path_factory.mktemp("straight")
    (place / "mark.go").touch()
    with running(place, "rollout") as process:
        process.communicate(timeout=120)
        assert process.returncode == 0
    return place / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "code", "steps"),
    [
        ("rollout", signal.SIGTERM, 143, 1),
        ("rollout", signal.SIGINT, 130, 1),
        ("backward", signal.SIGTERM, 143, 2),
        ("save", signal.SIGTERM, 143, 2),
        ("save", signal.SIGINT, 130, 2),
    ],
)
def test_a_signal_finishes_or_drops_the_step_and_the_next_run_goes_on_as_if_nothing_had_been(
    tmp_path: Path, straight: Path, moment: str, number: signal.Signals, code: int, steps: int
) -> None:
    """Trial 5: dropped while it samples, finished from there on; the group of the terminal gets it, workers included.

    The run that goes on ends with the rows and the rollouts of one that was never stopped.
    """
    run = tmp_path / "run"
    with running(tmp_path, moment, "--isolate_rewards", "true") as process:
        wait_for(tmp_path / "mark", process)
        children = below(process.pid)
        sent = time.monotonic()
        os.killpg(process.pid, number)
        (tmp_path / "mark.go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert time.monotonic() - sent < 20
    assert f"stopped by {number.name} after step {steps}" in out
    assert "Traceback" not in err
    assert [row["step"] for row in rows_of(run)] == list(range(1, steps + 1))
    assert checkpoints(run)[-1] == f"checkpoint-{steps}"
    assert len(checkpoints(run)) == steps
    assert len(children) >= 1
    assert gone(children) == []
    finish(tmp_path)
    stopped = timeless(rows_of(run))
    assert stopped == timeless(rows_of(straight))
    for name in ("step-00001.jsonl", "step-00002.jsonl", "step-00004.jsonl"):
        ours, theirs = ((place / "rollouts" / name).read_text() for place in (run, straight))
        assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["rollout", "backward", "save"])
def test_a_second_signal_leaves_at_once_and_leaves_nothing_half_written(tmp_path: Path, moment: str) -> None:
    """Trial 5: neither the step nor the save is waited for; the checkpoint before is whole, and no process stays."""
    with running(tmp_path, moment, "--isolate_rewards", "true", WITH_CHILD="1") as process:
        wait_for(tmp_path / "mark", process)
        children = below(process.pid)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - sent < 15  # the moment itself takes twenty
    assert process.returncode == 143
    assert "Traceback" not in err
    assert checkpoints(tmp_path / "run") == ["checkpoint-1"]
    assert len(children) >= 1
    assert gone(children) == []
    finish(tmp_path)
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_warm_up_ends_the_run_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Nothing has been trained, so there is nothing to save, and the folder is free again."""
    with running(tmp_path, "warm-up", "--sft_steps", "20", UPWEIGHT_CACHE=str(tmp_path / "cache")) as process:
        wait_for(tmp_path / "mark", process)
        sent = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 15
    assert (process.returncode, "Traceback" in err) == (code, False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_no_worker_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL: nobody can clean up any more; the workers and their children see that the run is gone."""
    with running(tmp_path, "rollout", "--isolate_rewards", "true", WITH_CHILD="1") as process:
        wait_for(tmp_path / "mark", process)
        children = below(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=20)
        assert len(children) >= 1
        assert gone(children) == []
