"""A run that is stopped from outside, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.end_to_end.waiting import wait_for

SOURCES = Path(__file__).resolve().parents[2] / "src"


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run that would take a thousand steps; gone at the end of the block."""
    words = ["--model", "tiny", "--max_steps", "1000", "--sft_steps", "20", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "upweight.cli.main", "train", *words, "--output_dir", str(folder), *flags],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_finishes_its_step_and_saves_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Exit code 128 + the signal; the checkpoint is that of the last row of metrics.jsonl."""
    with running(tmp_path / "run", "--prompts_per_step", "8") as process:
        wait_for(tmp_path / "run" / "rollouts" / "step-00002.jsonl", process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = rows[-1]["step"]
    assert [row["step"] for row in rows] == list(range(1, last + 1))
    assert [path.name for path in (tmp_path / "run").glob("*checkpoint-*")] == [f"checkpoint-{last}"]
    assert f"stopped by {number.name} after step {last}" in out
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "lock").exists()


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_step(tmp_path: Path) -> None:
    """Long steps: the first Ctrl-C waits for the step, the second leaves at once, without a checkpoint."""
    with running(tmp_path / "run", "--prompts_per_step", "256", "--group_size", "16") as process:
        wait_for(tmp_path / "run" / "rollouts" / "step-00001.jsonl", process)
        time.sleep(1.0)  # into the second step, which takes several seconds
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "upweight: stopped by SIGINT.\n"
    assert list((tmp_path / "run").glob("*checkpoint-*")) == []
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "run" / "lock").exists()
