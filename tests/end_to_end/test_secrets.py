"""Tokens in the environment, in the configuration, in URLs and on the command line are in nothing that a run leaves."""

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import upweight
from upweight import TrainArgs, Trainer
from upweight.rewards.score import Score, Status
from upweight.tasks.prompt import Draw, Prompt
from upweight.train.console import Console
from upweight.train.records import Group
from upweight.train.redact import LOGGERS, redact, redacted
from upweight.train.saving.held import group_to_json, why_told

HUB, PASSED, IN_URL, ON_ARGV = (
    "hf_abcdefGHIJKL0123456789",
    "correct-horse-battery",
    "s3cr3t-pa55",
    "sk-proj-0123456789abcdef",
)
SECRETS = (HUB, PASSED, IN_URL, ON_ARGV)

REWARD = '''
import os


def leaky(completions, **_):
    """Some answers make it raise, with everything it knows in the message."""
    if len(completions) > 1 or completions[0][:1] in ("1", "2", "3"):
        raise RuntimeError(f"GET https://me:s3cr3t-pa55@judge.example/v1?x={os.environ['JUDGE_API_KEY']} failed")
    return [float(len(text)) for text in completions]
'''


@pytest.fixture
def leaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a run that meets every secret."""
    monkeypatch.setenv("HF_TOKEN", HUB)
    monkeypatch.setenv("JUDGE_API_KEY", PASSED)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "reports"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "judge.py").write_text(REWARD)
    data = tmp_path / f"{HUB}.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(8)))
    words = ["--data", str(data), "--reward", f"{tmp_path / 'judge.py'}:leaky", "--kl_coef", "0"]
    return [*words, "--task", "arithmetic", "--sft_steps", "0", "--max_new_tokens", "4", "--eval_every", "0"]


def leaks(folder: Path) -> list[tuple[str, str]]:
    """Every file below a folder that holds a secret, and which."""
    return [
        (path.relative_to(folder).as_posix(), secret)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    ]


@pytest.mark.slow
def test_a_run_leaves_no_secret_behind(
    train: Callable[..., Any], leaky: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Trial 28: the run folder, what it says, what a reward's traceback says, and the checkpoint's configuration."""
    outcome = train(*leaky, "--max_reward_errors", "1", "--save_every", "1")
    assert outcome.code == 0, outcome.err
    assert leaks(outcome.run) == []
    assert not [secret for secret in SECRETS if secret in outcome.out + outcome.err]
    assert outcome.config["data"].endswith("***.jsonl")
    assert "data=" in outcome.out
    rollouts = (outcome.run / "rollouts" / "step-00001.jsonl").read_text()
    assert "https://***@judge.example/v1?x=***" in rollouts
    raised = [record for record in caplog.records if "raised on" in record.getMessage()]
    assert raised
    formatter = logging.lastResort.formatter if logging.lastResort else None
    assert formatter is not None
    printed = formatter.format(raised[0])
    assert "https://***@judge.example" in printed
    assert not [secret for secret in SECRETS if secret in printed]


@pytest.mark.slow
def test_a_run_that_fails_reports_no_secret(train: Callable[..., Any], leaky: list[str], tmp_path: Path) -> None:
    """Trial 28: one line on the terminal, the traceback in a file: both say what happened without the keys."""
    outcome = train(*leaky, "--max_reward_errors", "0")
    assert outcome.code == 1
    assert "https://***@judge.example" in outcome.err
    (report,) = (tmp_path / "reports").glob("upweight-*.txt")
    assert "RewardError" in report.read_text()
    assert "https://***@judge.example" in report.read_text()
    assert leaks(tmp_path / "reports") == leaks(outcome.run) == []
    assert not [secret for secret in SECRETS if secret in outcome.out + outcome.err]


def test_a_refused_call_repeats_no_secret(train: Callable[..., Any]) -> None:
    """A key on the command line, whatever flag it was meant for, and a URL with a password in it."""
    for words in (["--model", ON_ARGV + "/"], ["--hub_token", HUB], ["--data", f"https://me:{IN_URL}@host/rows.jsonl"]):
        outcome = train(*words)
        assert outcome.code == 2
        assert outcome.err
        assert not [secret for secret in SECRETS if secret in outcome.out + outcome.err]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:pw@host/x", "https://***@host/x"),
        ("https://ghp_token@host/x and http://a@b", "https://***@host/x and http://***@b"),
        ("postgres://me:p@ss@host", "postgres://***@host"),
        ("mail me@host or https://host/@me", "mail me@host or https://host/@me"),
        (f"key {HUB}, {ON_ARGV}.", "key ***, ***."),
        ("hf_hub is a package, sk-learn is not", "hf_hub is a package, sk-learn is not"),
        ("runs/sk-learn-regression-run-2 stays", "runs/sk-learn-regression-run-2 stays"),
        ("sk-ant-api03-ab_cd-ef_gh and sk-0123456789abcdefXY-z", "*** and ***"),
        ("a long value, a longer value", "a ***, a ***"),
        ("short ones stay: 1 of 12", "short ones stay: 1 of 12"),
        ("model=tiny", "model=tiny"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_and_nothing_else(text: str, clean: str) -> None:
    """URLs lose what is before the @, variables their values, and keys of known forms are known anywhere."""
    environment = {
        "A_TOKEN": "long value",
        "B_SECRET": "longer value",
        "C_KEY": "1",
        "KEYBOARD": "model=tiny",
        "PATH": "package",
    }
    assert redact(text, environment) == clean


@pytest.mark.parametrize("name", ["HF_TOKEN", "aws_secret_access_key", "PGPASSWORD", "TOKEN", "OPENAI_APIKEY"])
def test_a_variable_is_a_secret_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own environment, in values of any shape; names of fields stay."""
    monkeypatch.setenv(name, "of some length")
    told = {"of some length": ["it is of some length", 3, None, {"x": ("of some length",)}]}
    assert redacted(told) == {"of some length": ["it is ***", 3, None, {"x": ["***"]}]}


def test_what_a_run_says_is_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    """Every line goes one way."""
    Console(1).say(f"reading https://me:{IN_URL}@host/rows.jsonl")
    assert capsys.readouterr().out == "reading https://***@host/rows.jsonl\n"


def leaks_all(completions: list[str], **_: Any) -> list[float]:
    """Raises with everything it knows."""
    raise RuntimeError(f"GET https://me:{IN_URL}@judge.example?x={os.environ['JUDGE_API_KEY']} failed")


def test_a_program_that_prints_our_log_prints_no_secret_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From Python, with a handler of the program's own: the message and the traceback."""
    monkeypatch.setenv("JUDGE_API_KEY", PASSED)
    Trainer(reward_funcs=leaks_all, args=TrainArgs(sft_steps=0)).check()
    assert "Traceback" in caplog.text
    assert "RuntimeError: GET https://***@judge.example?x=*** failed" in caplog.text
    assert not [secret for secret in SECRETS if secret in caplog.text]


def test_every_logger_of_ours_is_one_that_hides_secrets() -> None:
    """Who adds one has to think of it."""
    sources = Path(upweight.__file__).parent
    ours = [path for path in sources.rglob("*.py") if "getLogger(__name__)" in path.read_text(encoding="utf-8")]
    assert sorted(f"upweight.{'.'.join(p.relative_to(sources).with_suffix('').parts)}" for p in ours) == sorted(LOGGERS)


def test_a_group_that_waits_is_saved_without_what_a_reward_raised() -> None:
    """Groups that a starved step has kept are in the checkpoint; a verdict repeats the answer and stays."""
    why = f"GET https://me:{IN_URL}@judge.example failed"
    assert why_told(Score(value=math.nan, status=Status.ERROR, why=why)) == "GET https://***@judge.example failed"
    assert why_told(Score(value=1.0, why=why)) == why
    prompt = Prompt(row=0, text="1+1=", answer="2")
    score = Score(value=math.nan, status=Status.ERROR, why=why)
    group = Group(draw=Draw(prompt=prompt, number=0), prompt_ids=(1,), completions=(), texts=("2",), scores=(score,))
    assert IN_URL not in json.dumps(group_to_json(group))


def test_a_value_whose_secret_was_not_kept_has_to_be_given_again(train: Callable[..., Any], tmp_path: Path) -> None:
    """A configuration has stars in its place; which flag it is, is said, and nothing is looked up by that name."""
    (tmp_path / "config.json").write_text(json.dumps({"data": "https://***@host/rows.jsonl", "max_steps": 2}))
    outcome = train("--config", str(tmp_path / "config.json"), short=False)
    assert outcome.code == 2
    assert "The 'data' parameter of TrainArgs must be given again" in outcome.err
    again = train("--config", str(tmp_path / "config.json"), "--data", "nowhere.jsonl", short=False)
    assert (again.code, "given again" in again.err) == (2, False)
