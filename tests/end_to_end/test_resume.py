"""Stopping and going on as a user does it: other processes, kills, the command line."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import left_in

from upweight.train.saving.checkpoint import checkpoints_of, step_of
from upweight.train.saving.resume import check_checkpoint

Train = Callable[..., Any]

SOURCES = Path(__file__).resolve().parents[2] / "src"

REWARD = """
def letters(completions, **_):
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]
"""
"""One that a fresh model earns now and then, so that every step trains."""


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Flags of a run whose steps take a moment, and change the weights."""
    (tmp_path / "mine.py").write_text(REWARD)
    words = "--model tiny --sft_steps 0 --prompts_per_step 2 --group_size 4 --device cpu --lr_schedule constant"
    return [*words.split(), "--lr_warmup_steps", "0", "--reward", f"{tmp_path / 'mine.py'}:letters"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "upweight.cli.main", "train", *flags]


def called(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*flags), env=environment(), capture_output=True, text=True, check=False, timeout=300)


@contextmanager
def running(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command(*flags), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not any(step_of(path) >= step for path in checkpoints_of(run)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def hashes(checkpoint: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "optimizer.safetensors")
    }


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Whole rows of metrics.jsonl, without times; a line that a kill has cut is left out."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


NURSERY = """
import os, sys
from upweight.cli.main import main
from upweight.policy.load import load_policy

load_policy("tiny")
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os._exit(main(line.split()))
    print(child, file=sys.stderr, flush=True)
    print(os.waitpid(child, 0)[1], file=sys.stderr, flush=True)
"""
"""Starts runs without loading PyTorch anew for each: says a run's process, and how it ended."""


class Nursery:
    """Runs whose processes can be killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *flags: str) -> int:
        """Start a run; its process."""
        assert self.process.stdin is not None
        print("train", *flags, file=self.process.stdin, flush=True)
        return self.said()

    def said(self) -> int:
        """The next number: a process, or what waiting for it gave."""
        assert self.process.stderr is not None
        return int(self.process.stderr.readline())


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@pytest.mark.slow
def test_thirty_kills_and_every_restart_finds_a_whole_checkpoint(
    tmp_path: Path, small: list[str], nursery: Nursery
) -> None:
    """Trial 1: at most one save old each time, no cleaning up by hand, and in the end the run that nobody killed."""
    run, noise = tmp_path / "run", random.Random(0)
    flags = [*small, "--save_every", "1", "--output_dir", str(run), "--resume", "auto"]
    newest = 0
    for _ in range(30):
        child = nursery.start(*flags, "--max_steps", "100000")
        until = newest + 1 + noise.randrange(3)
        deadline = time.monotonic() + 120
        while not any(step_of(path) >= until for path in checkpoints_of(run)):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(noise.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        assert nursery.said() == signal.SIGKILL
        whole = checkpoints_of(run)[0]
        check_checkpoint(whole)
        assert step_of(whole) > newest
        newest = step_of(whole)
        assert rows_of(run)[-1]["step"] - newest in (0, 1)
    last = f"checkpoint-{newest + 2}"
    straight = tmp_path / "straight"
    for words in (flags, [*small, "--output_dir", str(straight)]):
        nursery.start(*words, "--max_steps", str(newest + 2))
        assert nursery.said() == 0
    assert list(run.glob("tmp-*")) == []
    assert hashes(run / last) == hashes(straight / last)
    assert rows_of(run) == rows_of(straight)
    assert sum(row["updates"] for row in rows_of(run)) > len(rows_of(run)) // 2


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_another_process_takes_the_same_steps(tmp_path: Path, small: list[str], ranks: int) -> None:
    """B90: ten rows, two a step, shuffled: steps 1 to 8 straight, and 3, a kill and 5 more; one process, and two."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(10)))
    flags = [*small, "--data", str(data), "--seed", "3", "--max_steps", "8", "--save_every", "3"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    start = command() if ranks == 1 else [*start, "-m", "upweight.cli.main", "train"]
    for name in ("straight", "killed"):
        words = [*flags, "--output_dir", str(tmp_path / name)]
        subprocess.run([*start, *words], env=environment(), check=True, capture_output=True, timeout=300)
    for checkpoint in ("checkpoint-6", "checkpoint-8"):
        shutil.rmtree(tmp_path / "killed" / checkpoint)
    words = ["--resume", str(tmp_path / "killed" / "checkpoint-3")]
    subprocess.run([*start, *words], env=environment(), check=True, capture_output=True, timeout=300)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert hashes(straight / "checkpoint-8") == hashes(killed / "checkpoint-8")
    assert rows_of(straight) == rows_of(killed)
    assert sum(row["updates"] for row in rows_of(straight)) > 4
    for path in (straight / "rollouts").iterdir():
        assert path.read_bytes() == (killed / "rollouts" / path.name).read_bytes()
    files = [straight / "rollouts" / f"step-0000{step}.jsonl" for step in range(1, 6)]
    drawn = [json.loads(line)["row"] for file in files for line in file.read_text().splitlines()]
    assert sorted(set(drawn)) == list(range(10))


@pytest.mark.slow
def test_a_second_process_is_kept_out_and_a_killed_one_is_not_in_the_way(tmp_path: Path, small: list[str]) -> None:
    """Trial 7: exit code 2 with the other's number while it lives; its lock means nothing once it is dead."""
    run = tmp_path / "run"
    flags = [*small, "--save_every", "1", "--max_steps", "100000", "--output_dir", str(run), "--resume", "auto"]
    with running(*flags) as process:
        wait_for_step(run, 1, process)
        second = called(*flags)
        assert second.returncode == 2
        assert f"in use by process {process.pid}" in second.stderr
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (run / "lock").exists()
    steps = step_of(checkpoints_of(run)[0]) + 1
    assert called(*flags, "--max_steps", str(steps)).returncode == 0
    assert not (run / "lock").exists()


@pytest.mark.slow
def test_a_start_that_was_stopped_before_its_first_checkpoint_is_kept_and_started_again(
    tmp_path: Path, small: list[str]
) -> None:
    """Killed after some steps; then killed again as soon as the second start has taken over; a file beside them."""
    run = tmp_path / "run"
    flags = [*small, "--max_steps", "100000", "--output_dir", str(run), "--resume", "auto"]
    for sign in ("rollouts/step-00003.jsonl", "old-start/metrics.jsonl"):
        with running(*flags) as process:
            deadline = time.monotonic() + 120
            while not (run / sign).exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
        (run / "notes.txt").write_text("mine")
    assert json.loads((run / "config.json").read_text())["max_steps"] == 100000
    assert called(*flags, "--max_steps", "2").returncode == 0
    assert [row["step"] for row in rows_of(run)] == [1, 2]
    assert [row["step"] for row in rows_of(run / "old-start")][:3] == [1, 2, 3]
    # Whatever the second kill came in between of.
    assert len(list(run.glob("old-start*/rollouts/step-00003.jsonl"))) == 1
    assert (run / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_refusal_ends_all_processes_and_changes_nothing(tmp_path: Path, small: list[str]) -> None:
    """The first process looks; the second would wait for it."""
    data, run = tmp_path / "rows.jsonl", tmp_path / "run"
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(4)]
    data.write_text("".join(rows))
    words = [*small, "--data", str(data), "--max_steps", "3", "--save_every", "1", "--output_dir", str(run)]
    assert called(*words).returncode == 0
    (run / "reference" / "model.safetensors").unlink()
    before = left_in(run)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for text, said in (("".join(rows), "The run's reference policy"), (rows[0], "another data")):
        data.write_text(text)
        done = subprocess.run(
            [*start, "-m", "upweight.cli.main", "train", "--resume", str(run / "checkpoint-1")],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode != 0
        assert said in done.stderr
        assert left_in(run) == before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_was_asked_to_stop_goes_on_as_if_it_had_not(
    tmp_path: Path, small: list[str], number: signal.Signals, code: int
) -> None:
    """The signal may come anywhere in a step; what it dropped is sampled again."""
    run, straight = tmp_path / "run", tmp_path / "straight"
    flags = [*small, "--prompts_per_step", "16", "--max_steps", "40"]
    with running(*flags, "--output_dir", str(run)) as process:
        deadline = time.monotonic() + 120
        while not (run / "rollouts" / "step-00003.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=60) == code
    assert step_of(checkpoints_of(run)[0]) < 40
    assert called("--resume", str(run)).returncode == 0
    assert called(*flags, "--output_dir", str(straight)).returncode == 0
    assert hashes(run / "checkpoint-40") == hashes(straight / "checkpoint-40")
    assert rows_of(run) == rows_of(straight)
    assert sum(row["updates"] for row in rows_of(run)) > len(rows_of(run)) // 2


def test_a_checkpoint_is_all_that_has_to_be_named(train: Train) -> None:
    """Flags that are not given are as the run was begun; those that are given win, and are said."""
    run = train("--save_every", "1", "--clip", "0.3", "--seed", "5").run
    begun = json.loads((run / "config.json").read_text())
    more = call(train, "--resume", str(run / "checkpoint-1"), "--max_steps", "3")
    assert more.code == 0
    assert "changed: max_steps: 2 -> 3" in more.out
    assert f"going on from {run / 'checkpoint-1'}" in more.out
    assert "warm-up" not in more.out
    now = json.loads((run / "config.json").read_text())
    assert {name for name in now if now[name] != begun[name]} == {"max_steps"}
    assert [row["step"] for row in rows_of(run)] == [1, 2, 3]
    again = call(train, "--resume", str(run))
    assert again.code == 0
    assert "has taken its 3 steps and is done" in again.out


def test_another_objective_is_another_run(train: Train) -> None:
    """A preset says which objective, and not the run; --resume_override goes on all the same."""
    run = train().run
    refused = call(train, "--resume", str(run), "--max_steps", "3", "--preset", "dr-grpo")
    assert refused.code == 2
    assert "kl_coef: 0.04 -> 0.0" in refused.err
    assert "preset: grpo -> dr-grpo" in refused.err
    assert "--resume_override" in refused.err
    taken = call(train, "--resume", str(run), "--max_steps", "3", "--clip", "0.3", "--resume_override")
    assert taken.code == 0
    assert "changed: clip: 0.2 -> 0.3 (overridden" in taken.out


def test_auto_takes_what_is_not_given_from_the_run_also_where_the_newest_checkpoint_is_damaged(train: Train) -> None:
    """Its configuration may be the damaged file."""
    run = train("--save_every", "1", "--clip", "0.3").run
    (run / "checkpoint-2" / "run.json").write_text("{")
    outcome = call(train, "--resume", "auto", "--output_dir", str(run))
    assert outcome.code == 0
    assert "run.json: size" in outcome.out
    assert json.loads((run / "config.json").read_text())["clip"] == 0.3
    assert [row["step"] for row in rows_of(run)] == [1, 2]


@pytest.mark.parametrize("how", ["truncated", "missing", "pickle"])
def test_a_damaged_checkpoint_ends_the_call_with_the_reason(train: Train, how: str) -> None:
    """Exit code 2, nothing changed; auto falls back and says so."""
    run = train("--save_every", "1").run
    file = run / "checkpoint-2" / "optimizer.safetensors"
    data = file.read_bytes()
    file.unlink() if how == "missing" else file.write_bytes(data[:-1] if how == "truncated" else b"\x80\x04" + data[2:])
    refused = call(train, "--resume", str(run / "checkpoint-2"), "--max_steps", "3")
    assert refused.code == 2
    assert "optimizer.safetensors: " in refused.err
    assert [row["step"] for row in rows_of(run)] == [1, 2]
    taken = train("--resume", "auto", "--max_steps", "3", "--save_every", "1", run=run)
    assert taken.code == 0
    assert "WARNING" in taken.out
    assert f"going on from {run / 'checkpoint-1'}" in taken.out
    assert [row["step"] for row in rows_of(run)] == [1, 2, 3]


def test_a_model_folder_is_no_run_to_go_on_with(train: Train) -> None:
    """Also where it is the model that was asked for: nothing of it is written over."""
    model = train("--save_every", "1").run / "reference"
    (model / "manifest.json").unlink()
    before = left_in(model)
    outcome = train("--resume", "auto", "--model", str(model), run=model)
    assert outcome.code == 2
    assert "is not empty, and a run never writes over another" in outcome.err
    assert left_in(model) == before


def test_a_run_without_a_checkpoint_whose_configuration_is_broken_is_a_wrong_call(train: Train) -> None:
    """The sentence is about the field, and not about flags that nobody gave."""
    run = train().run
    shutil.rmtree(run / "checkpoint-2")
    begun = json.loads((run / "config.json").read_text())
    for text, words in (("", "config.json"), (json.dumps({**begun, "sede": 1}), "'sede'"), ("\u00ff", "config.json")):
        (run / "config.json").write_text(text, encoding="latin-1")
        before = left_in(run)
        outcome = call(train, "--resume", "auto", "--output_dir", str(run))
        assert outcome.code == 2
        assert words in outcome.err
        assert "not the run that was begun" not in outcome.err
        assert left_in(run) == before


def test_auto_without_a_folder_is_a_wrong_call(train: Train) -> None:
    outcome = call(train, "--model", "tiny", "--resume", "auto")
    assert outcome.code == 2
    assert "--output_dir" in outcome.err


def test_a_folder_with_a_run_names_the_three_ways_out(train: Train) -> None:
    """Trial 7."""
    run = train().run
    outcome = train(run=run)
    assert outcome.code == 2
    assert "--resume auto" in outcome.err
    assert "--output_dir" in outcome.err
    assert "move the folder away" in outcome.err


def call(train: Train, *flags: str) -> Any:
    """`upweight train` with these flags alone."""
    return train(*flags, short=False, output_dir=False)
