"""Reward functions in a run: their weights, and how often each of them failed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upweight import TrainArgs, Trainer
from upweight.cli.main import main
from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rewards.contract import RewardError

ROWS = [{"prompt": f"say {n}", "answer": "x", "level": n} for n in range(6)]

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


def two(completions: list[str], **_: Any) -> list[float]:
    return [2.0 for _ in completions]


def level(completions: list[str], level: list[int], **_: Any) -> list[float]:
    return [float(n) for n in level]


def not_of_level_0(completions: list[str], level: list[int], **_: Any) -> list[float]:
    if 0 in level:
        raise ValueError("level 0 is not for me")
    return [1.0 for _ in completions]


@pytest.fixture
def make(policy: Policy, tmp_path: Path) -> Callable[..., Trainer]:
    """A run of one step that asks every one of the six rows for four answers."""

    def trainer(functions: Any, weights: Any = None, **fields: Any) -> Trainer:
        args = TrainArgs(
            output_dir=str(tmp_path / "run"),
            max_steps=1,
            prompts_per_step=6,
            group_size=4,
            max_new_tokens=6,
            lr_warmup_steps=0,
            objective=Objective(kl_coef=0.0),
            **fields,
        )
        return Trainer(policy.model, functions, args, ROWS, None, policy.tokenizer, reward_weights=weights)

    return trainer


def only_row(path: Path) -> dict[str, Any]:
    (line,) = path.read_text(encoding="utf-8").splitlines()
    row: dict[str, Any] = json.loads(line)
    return row


def test_the_reward_of_an_answer_is_the_weighted_sum(make: Callable[..., Trainer]) -> None:
    """Levels 0 to 5 have a mean of 2.5: 0.5 * 2 - 2 * 2.5."""
    result = make([two, level], (0.5, -2)).train()
    assert only_row(result.folder / "metrics.jsonl")["reward"] == pytest.approx(-4.0)
    assert json.loads((result.folder / "config.json").read_text())["reward"] == "0.5*two+-2.0*level"


def test_weights_in_a_name_hold_where_no_others_are_given(make: Callable[..., Trainer]) -> None:
    assert make(["accuracy+0.2*format", two]).args.reward == "accuracy+0.2*format+two"
    assert make(["accuracy+0.2*format", two], [1, 3, 1]).args.reward == "accuracy+3.0*format+two"


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0], [], 1.0, "12", [1.0, "high"], [1.0, float("nan")]])
def test_weights_that_do_not_fit_the_functions_are_refused(make: Callable[..., Trainer], weights: object) -> None:
    sentence = (
        "The 'reward_weights' parameter of Trainer must be finite numbers, one for each of the 2 reward functions"
    )
    with pytest.raises(UsageError, match=re.escape(f"{sentence} (two, level). Got {weights!r} instead.")):
        make([two, level], weights)


def test_weights_without_functions_are_refused() -> None:
    with pytest.raises(UsageError, match="reward_weights go with reward_funcs"):
        Trainer("tiny", reward_weights=[1.0])


def test_failures_of_a_run_are_told_function_by_function(
    make: Callable[..., Trainer], capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 10: the four answers to the row of level 0 have no reward; the others' count."""
    result = make([two, not_of_level_0]).train()
    assert json.loads((result.folder / "rewards.json").read_text()) == {
        "two": {"weight": 1.0, "answers": 24, "failed": 0, "error_rate": 0.0},
        "not_of_level_0": {"weight": 1.0, "answers": 24, "failed": 4, "error_rate": pytest.approx(1 / 6)},
    }
    told = [line for line in capsys.readouterr().out.splitlines() if "failed on" in line]
    assert told == ["step 1: the reward function 'not_of_level_0' failed on 4 of 24 answers; 4 of 24 so far"]
    assert only_row(result.folder / "metrics.jsonl")["reward_errors"] == pytest.approx(1 / 6)


def test_a_run_that_stops_over_a_function_names_it_and_keeps_the_counts(
    make: Callable[..., Trainer], tmp_path: Path
) -> None:
    with pytest.raises(RewardError, match=r"'not_of_level_0' failed on 4 of 24 answers, more than --max_reward_errors"):
        make([two, not_of_level_0], max_reward_errors=0.1).train()
    counts = json.loads((tmp_path / "run" / "rewards.json").read_text())
    assert {name: row["failed"] for name, row in counts.items()} == {"two": 0, "not_of_level_0": 4}


def test_the_glossary_has_every_key_of_rewards_json(make: Callable[..., Trainer]) -> None:
    result = make(two).train()
    (_, section) = GLOSSARY.read_text(encoding="utf-8").split("## rewards.json\n")
    explained = re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], flags=re.MULTILINE)
    assert explained == list(json.loads((result.folder / "rewards.json").read_text())["two"])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "return [float('inf') for _ in completions]",
            "upweight: The reward function 'mine' must return finite numbers",
        ),
        ("return completions[1:]", "upweight: The reward function 'mine' returned 0 rewards for 1 completions"),
    ],
)
def test_a_function_that_returns_no_rewards_is_a_wrong_call_and_not_a_failed_run(
    body: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tried on one row before a model is loaded: exit code 2, one line, no traceback."""
    (tmp_path / "rewards.py").write_text(f"def mine(completions, **_):\n    {body}\n")
    assert main(["train", "--dry-run", "--reward", f"{tmp_path / 'rewards.py'}:mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)
    assert "traceback" not in line
