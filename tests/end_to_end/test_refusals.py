"""What a user gets wrong: one clear sentence on standard error, exit code 2, nothing created, nothing overwritten."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Train = Callable[..., Any]


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("upweight: ")
    assert "Traceback" not in lines[0]
    assert [word for word in words if word not in lines[0]] == []


def jsonl(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "no/such/model/here"], ["no/such/model/here", "--model tiny"]),
        (["--model", "./nowhere.gguf"], ["nowhere.gguf"]),
        (["--task", "arithmatic"], ["arithmatic", "arithmetic"]),
        (["--task", "arithmetic:digits=many"], ["digits", "many"]),
        (["--reward", "exakt"], ["exakt", "exact"]),
        (["--group_size", "1"], ["group_size=1", "--group_size to 2 or more"]),
        (["--clip", "-0.1"], ["'clip'", "at least 0"]),
        (["--dual_clip", "1"], ["'dual_clip'", "above 1"]),
        (["--max_steps", "0"], ["'max_steps'", "at least 1"]),
        (["--top_p", "1.5"], ["'top_p'", "at most 1"]),
        (["--temperature", "0"], ["'temperature'", "above 0"]),
        (["--minibatches", "9"], ["'minibatches'", "--minibatches 8"]),
        (["--kl_estimator", "k1"], ["kl_estimator=k1", "k3"]),
        (["--overlong_buffer", "9", "--max_new_tokens", "8"], ["overlong_buffer=9", "at most 8"]),
        (["--overlong_buffer", "5000"], ["overlong_buffer=5000"]),
        (["--resample", "true"], ["resample=true", "--filter_groups true"]),
        (["--preset", "ppo"], ["baseline=critic", "leave-one-out"]),
        (["--preset", "grop"], ["grop", "grpo"]),
        (["--max_new_tokens", "510"], ["510", "context of 512", "--max_new_tokens"]),
        (
            ["--max_new_tokens", "5000", "--dry-run"],
            ["max_new_tokens=5000", "context of tiny, 512", "--max_new_tokens"],
        ),
        (["--config", "missing.toml"], ["missing.toml"]),
        (["--data", "missing.jsonl"], ["missing.jsonl"]),
        (["--eval_data", "x.jsonl"], ["--eval_data", "--data"]),
        (["--device", "cuda:7"], ["cuda:7"]),
    ],
)
def test_a_call_that_cannot_work_is_one_sentence(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], words: list[str]
) -> None:
    """Exit code 2, and no run folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(train(*flags), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("row", "flags", "words"),
    [
        ({"prompt": "1+1="}, ["--reward", "exact"], ["answer", "exact"]),
        ({"prompt": "1+1="}, [], ["answer"]),
        ({"prompt": "x" * 600, "answer": "1"}, [], ["data.jsonl:1: 600 tokens", "context of 512", "drop"]),
        ({"text": "1+1=", "answer": "2"}, [], ["'prompt'", "text"]),
        ({"prompt": "1+1=", "answer": "2"}, ["--sft_steps", "5"], ["--sft_steps 0"]),
    ],
)
def test_data_that_cannot_work_is_refused(
    train: Train, tmp_path: Path, row: dict[str, Any], flags: list[str], words: list[str]
) -> None:
    """B53, B106: a column that is not there, a prompt that is too long, rows without a prompt."""
    data = jsonl(tmp_path / "data.jsonl", row)
    outcome = train("--data", data, "--sft_steps", "0", *flags)
    ours = outcome.err[outcome.err.index("upweight: ") :]
    assert outcome.code == 2
    assert [word for word in words if word not in ours] == []
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock"])
def test_a_run_folder_that_holds_a_run_is_left_alone(train: Train, tmp_path: Path, name: str) -> None:
    """Not overwritten, not appended to."""
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("1\n")
    refused(train(), "run folder", "--output_dir")
    assert {path.name: path.read_text() for path in run.iterdir()} == {name: "1\n"}


def test_a_dry_run_creates_nothing(train: Train, tmp_path: Path) -> None:
    """Everything is checked, nothing is loaded or written."""
    outcome = train("--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert list(tmp_path.iterdir()) == []
