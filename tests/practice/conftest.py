"""The exercises' judge, run inside the test's own process; what it judges runs in processes of its own."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PRACTICE = Path(__file__).resolve().parents[2] / "practice"
sys.path.insert(0, str(PRACTICE))

Judge = Callable[..., tuple[int, dict]]


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str]) -> Judge:
    """Exit code and JSON answer of a call without a score file."""
    import judge as program

    def call(*arguments: str) -> tuple[int, dict]:
        code = program.main([*arguments, "--no-score", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def judge_source(judge: Judge, tmp_path: Path) -> Callable[..., dict]:
    """Verdict on a source text as somebody's solution of an exercise; it must not pass."""

    def call(name: str, source: str, *arguments: str) -> dict:
        file = tmp_path / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        code, answer = judge(name, "--file", str(file), *arguments)
        verdict = answer["exercises"][0]
        assert (code, verdict["status"] == "passed") == (1, False)
        return verdict

    return call
