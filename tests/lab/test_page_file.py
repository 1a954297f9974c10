"""`upweight lab page`: one small file, written where it is asked for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import upweight
from upweight.cli.main import main
from upweight.lab.page import PageParameters, page


def test_one_file_is_written_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "six.html"
    assert main(["lab", "page", "--out", str(out)]) == 0
    size = f"{len(page()) / 1000:.0f} KB"
    assert capsys.readouterr().out == f"page: {out} ({size}). Open it in a browser; it needs no network.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["six.html"]
    assert out.read_text(encoding="ascii") == page()


def test_a_program_is_told_the_file_and_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lab.html"
    assert main(["lab", "page", "--json", f"--out={out}"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "bytes": out.stat().st_size}


def test_the_page_is_lab_html_unless_said_otherwise() -> None:
    assert PageParameters().out == "lab.html"


def test_the_page_is_below_400_kilobytes_and_names_no_address() -> None:
    text = page()
    assert 20_000 < len(text) < 400_000
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name of SVG's, which no browser asks for
    assert not re.search(r"@import|<link(?![^>]*data:,)|<(script|img|iframe)[^>]* src=|fetch\(|XMLHttpRequest", text)


def test_the_page_may_by_its_own_policy_load_nothing() -> None:
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in page()


def test_its_parts_stay_readable() -> None:
    for part in (Path(upweight.__file__).parent / "lab" / "page").iterdir():
        lines = part.read_text(encoding="ascii").splitlines()
        assert len(lines) <= 500, part.name


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("lab.txt", "must be a file that ends in .html. Got 'lab.txt' instead."),
        ("nowhere/lab.html", "there is no folder 'nowhere'. Make it first, or choose another."),
        ("folder.html", "this is a folder. Name a file in it."),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(
    out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    assert main(["lab", "page", "--out", out]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_writing_the_page_loads_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from upweight.cli.main import main
assert main(["lab", "page", "--out", {str(tmp_path / "lab.html")!r}]) == 0
heavy = {{"torch", "transformers", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(upweight.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
