"""`upweight verify`: verifiers held against cases."""

import json
from pathlib import Path

import pytest

from upweight.cli.main import main
from upweight.objective.errors import UsageError
from upweight.rewards.audit import read_cases

CASES = [
    {"id": "right", "answer_text": r"\boxed{4}", "gold": "4", "expected": True},
    {"id": "wrong", "answer_text": r"\boxed{5}", "gold": "4", "expected": False},
    {"id": "missed", "answer_text": r"\boxed{5}", "gold": "4", "expected": True},
    {"id": "accepted", "answer_text": r"\boxed{4}", "gold": "4", "expected": False},
    {"id": "blank", "answer_text": r"\boxed{4}", "gold": "", "expected": None},
    {"id": "no match either", "answer_text": r"\boxed{4}", "gold": "", "expected": False},
    {"id": 7, "answer_text": "It is 4.", "gold": 4, "expected": True, "mode": "flexible"},
]

VERIFIER = """
import itertools, time
count = itertools.count()

def flaky(completions, answer, **_):
    return [float(next(count) % 2) for _ in completions]

def failing(completions, answer, **_):
    if "5" in completions[0]:
        raise ValueError("five")
    return [1.0 for _ in completions]

def nonsense(completions, **_):
    return [float("nan") for _ in completions]

def now_and_then(completions, **_):
    return None if "5" in completions[0] else [1.0]

def wants_gold(completions, gold, **_):
    return [1.0 for _ in completions]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, CASES)) + "\n\n")
    (tmp_path / "mine.py").write_text(VERIFIER)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(7)\n")
    return str(tmp_path / "cases.jsonl")


def result(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["verify", *words, "--json"]) == 0
    loaded: dict[str, object] = json.loads(capsys.readouterr().out)
    return loaded


def test_what_is_accepted_wrongly_and_what_is_missed_are_listed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "--cases", file)
    assert (found["n"], found["agree"]) == (7, 5)
    assert (found["false_positive"], found["false_negative"]) == (["accepted"], ["missed"])
    assert found["errors"] == found["unstable"] == found["not_to_be_judged"] == []
    assert float(str(found["seconds"])) > 0
    times = found["case_seconds"]
    assert isinstance(times, dict)
    assert 0 < times["median"] <= times["p99"] <= times["max"]
    assert times["slowest"] in [str(case["id"]) for case in CASES]


def test_a_function_of_ones_own_is_judged_with_its_errors(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "--cases", file, "--verifier", "mine.py:failing")
    assert found["errors"] == ["wrong", "missed"]
    assert found["first_error"] == "failing raised ValueError: five"
    assert main(["verify", "--cases", file, "--verifier", "mine.py:failing"]) == 0
    assert capsys.readouterr().out.endswith("mine.py:failing: the first error: failing raised ValueError: five\n")
    assert found["false_positive"] == ["accepted", "blank", "no match either"]


def test_repeats_that_disagree_are_listed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "--cases", file, "--verifier", "mine.py:flaky", "--repeat", "2")
    assert found["unstable"] == [str(case["id"]) for case in CASES]


def test_two_verifiers_stand_side_by_side(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys, "--cases", file, "--against", "math-verify")
    against = found["against"]
    assert isinstance(against, dict)
    assert (against["verifier"], against["n"]) == ("math-verify", 7)
    assert against["false_negative"] == ["missed"]
    assert main(["verify", "--cases", file, "--against", "exact"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["accuracy", "exact"]
    assert printed[2].split() == ["right", "5", "(71.4%)", "4", "(57.1%)"]
    assert any(line.startswith("accuracy: false positive: accepted") for line in printed)


def test_without_cases_it_runs_the_conformance_set(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(capsys)
    assert found["n"] == found["agree"] == len(read_cases())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--case", "x"], "Did you mean '--cases'"),
        (["--cases", "nowhere.jsonl"], "'nowhere.jsonl' cannot be read"),
        (["--repeat", "0"], "at least 1"),
        (["--against", "accuracy"], "is the verifier itself"),
        (["--verifier", "acuracy"], "Did you mean 'accuracy'"),
        (["--verifier", "exact+gsm8k"], "one verifier is judged at a time"),
        (["--json=1"], "takes no value"),
        (["--cases", "."], "'.' cannot be read: Is a directory."),
        (["--verifier", "mine.py:nonsense"], "'nonsense' must return finite numbers"),
        (["--verifier", "mine.py:now_and_then"], "'now_and_then' must return a list with one reward per completion"),
        (["--verifier", "mine.py:wants_gold"], "needs the column 'gold', which the data does not have"),
        (["--verifier", "leaves.py:judge"], "cannot be imported: it raises SystemExit: 7"),
        (["--verifier", "mine.py:failing:5"], "'mine.py:failing:5' has one colon too many"),
        (["--verifier", ".judge"], "There is no reward '.judge'"),
        (["--repeat", "2", "--repeat=3"], "'--repeat' is there twice. Keep one of them."),
        (["--cases"], "needs a value"),
    ],
)
def test_a_wrong_call_is_refused_with_the_way_out(
    words: list[str], sentence: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "bad.jsonl:2: no JSON"),
        ("[" * 100_000, "bad.jsonl:2: no JSON that can be read (nested too deeply)"),
        ('{"id": "b", "answer_text": "5", "gold": NaN, "expected": true}', "NaN is no number of JSON"),
        ("[]", "bad.jsonl:2: a case is an object, got list"),
        ('{"id": "b", "answer_text": "5", "gold": "5"}', "bad.jsonl:2: 'expected' is missing"),
        ('{"id": "b", "answer_text": 5, "gold": "5", "expected": true}', "'answer_text' must be a string, got 5"),
        (
            '{"id": "b", "answer_text": "5", "gold": "5", "expected": 1}',
            "'expected' must be true, false or null, got 1",
        ),
        ('{"id": "a", "answer_text": "5", "gold": "5", "expected": true}', "the id 'a' is there already"),
        ('{"id": "b", "answer_text": "5", "gold": "5", "expected": true, "mode": "x"}', "strict or flexible"),
    ],
)
def test_a_row_that_is_no_case_is_named_with_its_line(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "answer_text": "5", "gold": "5", "expected": true}\n' + line)
    with pytest.raises(UsageError) as caught:
        read_cases(str(path))
    assert sentence in str(caught.value)


def test_a_file_without_cases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="has no cases"):
        read_cases(str(tmp_path / "empty.jsonl"))


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--help"]) == 0
    assert "upweight verify --against math-verify" in capsys.readouterr().out
