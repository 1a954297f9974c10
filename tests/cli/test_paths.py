"""Paths that nobody can look at: one sentence, whichever flag has them."""

from pathlib import Path

import pytest

from upweight.cli.main import main
from upweight.objective.errors import UsageError
from upweight.objective.paths import given_path

NOBODY = "~nobody-of-this-name/x"
LONG = "a" * 300


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["plan", "--model", NOBODY], "--model"),
        (["plan", "--model", "a" * 5000], "--model"),
        (["train", "--dry-run", "--resume", NOBODY], "--resume"),
        (["train", "--dry-run", "--resume", LONG], "--resume"),
        (["train", "--dry-run", "--resume", "auto", "--output_dir", NOBODY], "--output_dir"),
        (["train", "--dry-run", "--resume", "auto", "--output_dir", LONG], "--output_dir"),
        (["train", "--dry-run", "--output_dir", NOBODY], "--output_dir"),
        (["train", "--dry-run", "--output_dir", LONG], "--output_dir"),
        (["train", "--dry-run", "--data", NOBODY], "The data file"),
        (["train", "--dry-run", "--data", LONG], "The data file"),
        (["train", "--dry-run", "--reward", f"{NOBODY}.py:score"], "The reward file"),
        (["train", "--dry-run", "--reward", f"{LONG}.py:score"], "The reward file"),
        (["eval", "--model", NOBODY], "--model"),
        (["eval", "--model", "tiny", "--against", f"./{LONG}"], "--against"),
        (["eval", "--model", "tiny", "--out", LONG], "--out"),
        (["lab", "weights", "--plot", f"{LONG}.png"], "--plot"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_path_that_nobody_can_look_at_is_one_sentence(
    words: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing made."""
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith(f"upweight: {what} '")
    assert "nobody's home folder" in err or "File name too long" in err
    assert len(err) < 250
    assert list(tmp_path.iterdir()) == []


def test_links_in_a_circle_and_null_characters_are_told_apart_from_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, why in ((str(tmp_path / "loop"), "symbolic links"), ("a\0b", "null")):
        with pytest.raises(UsageError, match=f"^--model .* cannot be used: .*{why}"):
            given_path(path, "--model")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent", tmp_path / "file" / "below", tmp_path):
        assert given_path(path, "--model") == path


def test_a_home_folder_is_meant_also_where_the_shell_has_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    flags = ["--data=~/rows.jsonl", "--output_dir=~/mine", "--sft_steps", "0"]
    assert main(["train", "--dry-run", *flags]) == 0
    assert f"{tmp_path / 'mine'}" in capsys.readouterr().out


def test_a_file_of_flags_may_hold_no_path_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    for flag, what in (("output_dir", "--output_dir"), ("data", "The data file")):
        file.write_text(f'{flag} = "a\\u0000b"\n')
        assert main(["train", "--dry-run", "--config", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"upweight: {what} 'a\\x00b' cannot be used: ")
