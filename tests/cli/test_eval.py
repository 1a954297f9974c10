"""`upweight eval`: what a command line means, what is refused, and what an evaluation of a model prints and writes."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upweight.cli.eval import EvalCall, read
from upweight.cli.main import main
from upweight.policy.load import load_policy


def test_flags_are_spelled_either_way() -> None:
    call = read(["--model=tiny", "--max-new-tokens", "4", "--top_p", "0.5", "--limit", "none", "--json"])
    assert call == EvalCall(model="tiny", max_new_tokens=4, top_p=0.5, json=True)


@pytest.mark.parametrize(
    ("flags", "ks", "answers"),
    [
        ("", (), 0),
        ("--samples 8", (1, 8), 8),
        ("--samples 1", (1,), 1),
        ("--k 4,1,4", (1, 4), 4),
        ("--samples 8 --k 2", (2,), 8),
    ],
)
def test_samples_and_k_imply_each_other(flags: str, ks: tuple[int, ...], answers: int) -> None:
    call = read(flags.split())
    assert (call.ks, call.answers) == (ks, answers)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three rows; the gold answer of the last cannot be compared with anything."""
    file = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [{"prompt": "1+1=", "answer": 2}, {"prompt": "2+2=", "answer": 4}, {"prompt": "?"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "Say which model to evaluate"),
        ("--model ./nowhere", "--model ./nowhere: there is no such model folder."),
        ("--model tiny --against runs/none/checkpoint-1", "--against runs/none/checkpoint-1: there is no such model"),
        (
            "--model tiny --samples 2 --k 1,4",
            "The '--k' parameter of upweight eval must be at most --samples, 2. Got 4",
        ),
        ("--model tiny --k 0", "whole numbers above 0 with commas between them"),
        ("--model tiny --k 1,two", "whole numbers above 0 with commas between them"),
        ("--model tiny --samples two", "must be a whole number, or none. Got 'two' instead."),
        ("--model tiny --seeds 3", "the greedy one has no seed. Add --samples or --k."),
        ("--model tiny --seeds 0 --k 1", "must be at least 1. Got 0"),
        ("--model tiny --seed 9223372036854775808", "must be at most 2**63 - 1. Got 9223372036854775808 instead."),
        ("--model tiny --limit 0", "must be at least 1. Got 0"),
        ("--model tiny --temperature 0 --k 1", "must be above 0. Got 0.0 instead. At 0 all samples"),
        ("--model tiny --top_p 1.5", "must be above 0 and at most 1"),
        ("--model tiny --dtype float8", "one of float32, bfloat16"),
        ("--model tiny --task arithmatic", "arithmetic"),
        ("--model tiny --reward exakt", "exact"),
        ("--model tiny --data nowhere.jsonl", "The data file nowhere.jsonl cannot be read"),
        ("--model tiny --out nowhere/answers.jsonl", "--out nowhere/answers.jsonl: there is no folder 'nowhere'."),
        ("--model tiny --out .", "--out .: this is a folder."),
        ("--modle tiny", "'--modle' is not a flag of upweight eval. Did you mean '--model'?"),
        ("--model", "'--model' needs a value"),
        ("--model tiny --k 1 --k=4", "'--k' is there twice. Keep one of them."),
        ("--model tiny --top-k 4 --top_k 5", "'--top_k' is there twice. Keep one of them."),
        ("--model tiny --json --json", "'--json' is there twice. Keep one of them."),
        ("--model tiny --json=yes", "'--json' takes no value"),
    ],
)
def test_a_wrong_call_leaves_with_2_and_one_sentence(
    flags: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_data_without_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    assert main(["eval", "--model", "tiny", "--data", str(file)]) == 2
    assert "has no rows" in capsys.readouterr().err


def test_an_out_that_may_not_be_written_is_refused_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not stop a superuser, so the system's answer is put in."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    out = tmp_path / "answers.jsonl"
    assert main(["eval", "--model", "tiny", "--out", str(out)]) == 2
    assert f"--out {out}: the file cannot be written: Permission denied." in capsys.readouterr().err


def test_a_wrong_call_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from upweight.cli.main import main\n"
        "assert main(['eval', '--model', './nowhere']) == 2 and main(['eval', '--help']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_help_has_examples_that_parse_and_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    examples = [line.strip() for line in shown.splitlines() if line.startswith("  upweight eval ")]
    assert len(examples) == 3
    for example in examples:
        assert read(example.split()[2:]).model is not None
    for field in dataclasses.fields(EvalCall):
        assert f"--{field.name}" in shown


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two models that differ."""
    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"model-{seed}")
        load_policy("tiny", device="cpu", seed=seed).save(folder)
        folders.append(str(folder))
    return folders[0], folders[1]


@pytest.fixture
def evaluated(models: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls `upweight eval` with short answers to three rows, and gives what it prints."""

    def call(*flags: str) -> str:
        short = ["--data", str(data), "--max_new_tokens", "3", "--device", "cpu"]
        assert main(["eval", "--model", models[0], *short, *flags]) == 0
        return capsys.readouterr().out

    return call


def test_a_greedy_evaluation_prints_an_interval_and_counts_what_was_not_judged(
    evaluated: Callable[..., str], models: tuple[str, str]
) -> None:
    lines = evaluated().splitlines()
    assert lines[0] == f"{models[0]}: rows, 3 prompts, at most 3 tokens an answer"
    assert lines[1] == "  greedy accuracy 0.000 [0.000, 0.658]  0 of 2 right"
    assert "  1 answers could not be judged and are left out; --out shows why" in lines


def test_json_has_everything_and_nothing_beside_it(evaluated: Callable[..., str], models: tuple[str, str]) -> None:
    found = json.loads(evaluated("--samples", "4", "--k", "1,4", "--seeds", "2", "--json"))
    assert (found["against"], found["comparison"]) == (None, [])
    model = found["model"]
    assert (model["model"], model["prompts"], model["max_new_tokens"]) == (models[0], 3, 3)
    assert (model["samples"], model["seeds"], model["unscored"]) == (4, [0, 1], 8)
    assert (model["greedy"]["n"], model["greedy"]["unscored"]) == (2, 1)
    assert [(row["k"], row["prompts"], row["left_out"], len(row["by_seed"])) for row in model["pass_at_k"]] == [
        (1, 2, 1, 2),
        (4, 2, 1, 2),
    ]


def test_the_answers_are_written_out_one_a_line(evaluated: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    evaluated("--samples", "2", "--seeds", "2", "--out", str(out))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3 + 3 * 2 * 2
    assert [(row["row"], row["seed"], row["sample"]) for row in rows[:4]] == [
        (0, None, None),
        (1, None, None),
        (2, None, None),
        (0, 0, 0),
    ]
    unjudged = [row for row in rows if row["row"] == 2]
    assert {(row["reward"], row["status"], row["correct"]) for row in unjudged} == {(None, "unparsable-gold", None)}
    assert all(row["gold"] in ("2", "4") and row["reward"] == 0.0 for row in rows if row["row"] != 2)
    # A seed's answers differ from another's, and are those of that seed alone.
    of_seed = {seed: [row["answer"] for row in rows if row["seed"] == seed] for seed in (0, 1)}
    assert of_seed[0] != of_seed[1]
    evaluated("--samples", "2", "--seed", "1", "--out", str(out))
    again = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["answer"] for row in again if row["seed"] == 1] == of_seed[1]


def test_two_models_are_compared_on_the_same_prompts(evaluated: Callable[..., str], models: tuple[str, str]) -> None:
    shown = evaluated("--against", models[1], "--k", "2", "--limit", "2")
    assert f"greedy accuracy: {models[0]} minus {models[1]} +0.000" in shown
    assert "cannot be told apart with 2 prompts" in shown
    found = json.loads(evaluated("--against", models[1], "--k", "2", "--json"))
    assert [row["measure"] for row in found["comparison"]] == ["greedy accuracy", "pass@2"]
    assert [row["prompts"] for row in found["comparison"]] == [2, 2]
    assert not any(row["told_apart"] for row in found["comparison"])


def test_where_nothing_could_be_judged_there_is_no_accuracy(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "?", "answer": "unknown"}\n')
    flags = ["--model", models[0], "--data", str(file), "--max_new_tokens", "2", "--device", "cpu", "--k", "1"]
    flags += ["--reward", "gsm8k"]
    assert main(["eval", *flags, "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert (model["greedy"]["accuracy"], model["greedy"]["low"], model["greedy"]["high"]) == (None, 0.0, 1.0)
    assert model["pass_at_k"][0]["value"] is None
    assert main(["eval", *flags]) == 0
    assert f"greedy accuracy {math.nan:.3f} [0.000, 1.000]  0 of 0 right" in capsys.readouterr().out
