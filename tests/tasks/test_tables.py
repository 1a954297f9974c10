"""Parquet files and Hugging Face data sets: the same rows as in JSONL, the same errors. Nothing is fetched."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from upweight.objective.errors import UsageError
from upweight.tasks.data import DataTask
from upweight.tasks.rows import RowsTask

ROWS: list[dict[str, Any]] = [
    {"prompt": [{"role": "user", "content": f"{n}+1?"}], "answer": str(n + 1), "level": n} for n in range(5)
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test asks the hub, and none leaves anything in the user's cache."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def told(task: DataTask | RowsTask) -> list[tuple[Any, ...]]:
    return [(p.row, p.text, p.answer, dict(p.columns)) for p in task.prompts]


def test_a_parquet_file_holds_the_same_rows_as_a_jsonl_file(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    task = DataTask(parquet(tmp_path / "rows.parquet", ROWS))
    assert told(task) == told(DataTask(lines)) == told(RowsTask(ROWS))
    assert (task.name, task.size, task.prompts[3].place) == ("rows", 5, f"{tmp_path / 'rows.parquet'}, row 3")


def test_an_unusable_row_of_a_parquet_file_is_named_by_its_number(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", [{"prompt": "a"}, {"prompt": "b"}, {"prompt": " "}])
    with pytest.raises(UsageError) as caught:
        DataTask(path)
    assert str(caught.value) == f"The data file {path} has 1 unusable of 3 rows:\n  {path}, row 2: the prompt is empty"


def test_a_file_that_is_no_parquet_or_is_not_there_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(UsageError, match="cannot be read: No such file or directory"):
        DataTask(path)
    path.write_text('{"prompt": "a"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="is no Parquet file that can be read"):
        DataTask(path)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Saves rows by split; the name to read them by."""

    def save(**splits: list[dict[str, Any]]) -> str:
        folder = str(tmp_path / "saved")
        found = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
        found.save_to_disk(folder)
        return folder

    return save


def test_a_data_set_that_was_saved_to_disk_is_read_by_its_folder(saved: Callable[..., str]) -> None:
    folder = saved(train=ROWS, test=ROWS[:2])
    task = DataTask(f"hf:{folder}", f"hf:{folder}:test")
    assert told(task) == told(RowsTask(ROWS))
    assert [prompt.place for prompt in task.held_out] == [f"hf:{folder}:test, row 0", f"hf:{folder}:test, row 1"]
    assert "/" not in task.name


def test_a_single_split_on_disk_needs_no_name_and_takes_none(tmp_path: Path) -> None:
    folder = str(tmp_path / "one")
    datasets.Dataset.from_list(ROWS).save_to_disk(folder)
    assert told(DataTask(f"hf:{folder}")) == told(RowsTask(ROWS))
    with pytest.raises(UsageError, match="holds a single split: leave 'test' out"):
        DataTask(f"hf:{folder}:test")


def test_a_data_set_goes_into_the_library_as_it_is() -> None:
    assert told(RowsTask(datasets.Dataset.from_list(ROWS))) == told(RowsTask(ROWS))


def test_a_folder_of_files_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    parquet(folder / "test.parquet", ROWS)
    assert told(DataTask(f"hf:{folder}")) == told(RowsTask(ROWS))
    assert told(DataTask(f"hf:{folder}:default:test")) == told(RowsTask(ROWS))


def test_a_split_that_is_not_there_is_refused_with_those_that_are(saved: Callable[..., str]) -> None:
    folder = saved(validation=ROWS, test=ROWS)
    with pytest.raises(UsageError, match=r"has no split 'tset'\. It has: validation, test"):
        DataTask(f"hf:{folder}:tset")
    with pytest.raises(UsageError, match="has no split 'train'; choose one of: validation, test"):
        DataTask(f"hf:{folder}")


@pytest.mark.parametrize("source", ["hf:", "hf:a:b:c:d", "hf::test"])
def test_a_name_of_another_form_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="is written hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"):
        DataTask(source)


def test_a_data_set_that_cannot_be_found_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"The data set hf:.*nowhere cannot be loaded: ") as caught:
        DataTask(f"hf:{tmp_path}/nowhere")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_missing_extra_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = importlib.import_module

    def absent(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in ("datasets", "pyarrow", "reasoning_gym"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return real(name, *rest)

    path = parquet(tmp_path / "rows.parquet", ROWS)
    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageError, match=r"needs the Python package pyarrow: pip install 'upweight\[datasets\]'\.$"):
        DataTask(path)
    with pytest.raises(UsageError, match=r"needs the Python package datasets: pip install 'upweight\[datasets\]'\.$"):
        DataTask("hf:name")
