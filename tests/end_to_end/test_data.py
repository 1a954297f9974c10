"""Data that people have, through the command line: what is said about it before anything is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

Train = Callable[..., Any]

GSM8K = [{"question": f"{n} and {n}?", "answer": f"So {2 * n}.\n#### {2 * n}"} for n in range(12)]


def dry(train: Train, *flags: str) -> Any:
    return train("--model", "tiny", "--sft_steps", "0", *flags, "--dry-run", short=False)


def test_gsm8k_rows_are_said_to_be_read_as_such(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, GSM8K)), encoding="utf-8")
    outcome = dry(train, "--data", str(path))
    assert outcome.code == 0
    assert "data: GSM8K rows: the question is the prompt, with" in outcome.out
    assert " reward=gsm8k " in outcome.out
    assert "task gsm8k (12 rows, 0 held out" in outcome.out


def test_a_parquet_file_is_data_as_well(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GSM8K), path)
    assert "task rows (12 rows, " in dry(train, "--data", str(path)).out


def test_bad_rows_are_skipped_where_the_task_says_so(train: Train, tmp_path: Path) -> None:
    """Fault 18: file:line and the reason; skipped ones are counted."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": NaN}\n', encoding="utf-8")
    refused = dry(train, "--data", str(path))
    assert refused.code == 2
    assert f"  {path}:2: NaN is not valid JSON" in refused.err
    outcome = dry(train, "--task", f"data:path={path},skip_bad_rows=true")
    assert outcome.code == 0
    assert "task rows (1 rows, " in outcome.out
    assert f"data: left out 1 unusable of 2 rows:\n  {path}:2: NaN is not valid JSON" in outcome.out


def test_a_task_of_reasoning_gym_is_announced_with_its_scorer(train: Train) -> None:
    outcome = dry(train, "--task", "rg:chain_sum:size=100")
    assert outcome.code == 0
    assert " reward=reasoning-gym " in outcome.out
    assert "task chain_sum (" in outcome.out
    assert "runs/tiny-chain_sum-grpo-" in dry(train, "--task", "rg:chain_sum:size=100", "--output_dir", "none").out


@pytest.mark.parametrize("reward", ["gsm8k", "exact"])
def test_a_file_without_an_answer_for_every_row_is_refused(train: Train, tmp_path: Path, reward: str) -> None:
    """Fault 19."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="}\n', encoding="utf-8")
    outcome = dry(train, "--data", str(path), "--reward", reward)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-3:-1] == [
        f"upweight: 1 of 2 rows have no answer, which the reward {reward} needs:",
        f"upweight:   {path}:2: no answer",
    ]
