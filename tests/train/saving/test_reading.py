"""Files that a run wrote and somebody has edited: one sentence with file and line, whatever is in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from upweight.objective.errors import UsageError
from upweight.train.args import TrainArgs
from upweight.train.saving.begun import flat_config, read_config
from upweight.train.saving.folder import read_rows
from upweight.train.saving.reading import object_in, read_object, rows_in

BEGUN = flat_config(TrainArgs())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"{bad", "property name"),
        (b"[1, 2]", "it is a list"),
        (b"null", "it is null"),
        (b"7", "it is a number"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e400}', "too large"),
        (b'{"a": 1' + b"0" * 400 + b"}", "too large"),
        (b'{"a": 1' + b"0" * 9000 + b"}", "too large"),
    ],
)
def test_what_is_no_object_of_plain_values_is_refused_with_the_reason(tmp_path: Path, text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        object_in(text)
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(UsageError, match=rf"run\.json' is not as a run writes it: .*{why}.*Put it back\."):
        read_object(tmp_path / "run.json", "Put it back.")


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory\. Put it back\."):
        read_object(tmp_path, "Put it back.")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory\. Move it away\."):
        rows_in(tmp_path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{}", "it has no 'step'"),
        ("[]", "it is a list"),
        ('{"step": "2", "accuracy": 0}', "'step' must be a whole number, and is '2'"),
        ('{"step": true, "accuracy": 0}', "'step' must be a whole number"),
        ('{"step": 2}', "it has no 'accuracy'"),
        ('{"step": 2, "accuracy": "x"}', "'accuracy' must be a number, or none, and is 'x'"),
        ('{"step": 2, "accuracy": NaN}', "NaN is no number"),
        ('{"step": 2, "accuracy": 0, "low": [1]}', "'low' must be a number"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Expecting value"),
    ],
)
def test_a_row_that_no_run_wrote_is_named_by_file_and_line(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "evaluations.jsonl"
    file.write_text(f'{{"step": 0, "accuracy": null}}\n{line}\n{{"step": 4, "accuracy": 1}}\n')
    with pytest.raises(UsageError, match=r"evaluations\.jsonl, line 2 is no row of a run: .*" + why):
        read_rows(file)


@pytest.mark.parametrize("end", ['{"step": 5, "rew', '{"step": 5', '{"st', "{"])
def test_the_beginning_of_a_row_is_what_a_kill_has_left(tmp_path: Path, end: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 4}\n' + end)
    assert rows_in(file) == ([{"step": 4}], True)


@pytest.mark.parametrize("end", [b"\x93\x00\x17\xff", b"garbage", b"{'step': 5", b'{"step": 5}}'])
def test_anything_else_at_the_end_is_refused_and_not_dropped(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 4}\n' + end)
    with pytest.raises(UsageError, match="line 2 is no row of a run"):
        rows_in(file)


def test_a_last_row_whose_line_an_editor_has_not_ended_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 4}\n{"step": 5}')
    assert rows_in(file) == ([{"step": 4}, {"step": 5}], False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sede": 1}, "has no 'sede' .did you mean 'seed'"),
        ({"seed": "x"}, "'seed' must be a whole number. Got 'x' instead"),
        ({"group_size": None}, "'group_size' must be"),
        ({"kl_coef": "much"}, "'kl_coef' must be a number"),
        ({"group_size": ...}, "lacks 'group_size'"),
    ],
)
def test_a_configuration_that_no_run_wrote_is_refused_with_the_field(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    """Nothing takes its default in silence."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps({k: v for k, v in {**BEGUN, **change}.items() if v is not ...}))
    with pytest.raises(UsageError, match=rf"run\.json'.*{why}.*Put it back\."):
        read_config(file, "Put it back.")


def test_what_a_run_writes_is_read_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(BEGUN, indent=1))
    assert read_config(tmp_path / "run.json", "") == BEGUN
