"""What is checked about the rows before the first step: prompts that fit, gold answers that can be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upweight import TrainArgs, Trainer
from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rewards.runner import make_runner
from upweight.tasks.arithmetic import ArithmeticTask
from upweight.tasks.data import DataTask
from upweight.tasks.rows import RowsTask
from upweight.train.intake import fitting, judgeable

# The small policy has a token a byte and a context of 96: with a budget of 88, a prompt may have 8 tokens.
ROWS = [{"prompt": "p" * length, "answer": "1"} for length in (8, 9, 1, 30)]


def args(**fields: Any) -> TrainArgs:
    return TrainArgs(max_new_tokens=88, **fields)


def test_a_prompt_may_fill_the_context_to_the_last_token(policy: Policy) -> None:
    """B53: limit 8, prompt of 8 tokens."""
    task = RowsTask(ROWS[:1], ROWS[2:3])
    assert fitting(task, policy, args()) is task


def test_prompts_that_are_too_long_are_refused_together_and_before_training(policy: Policy, tmp_path: Path) -> None:
    """B53: limit 8, prompt of 9 tokens. Held-out rows count as well."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        fitting(DataTask(path, path), policy, args())
    assert str(caught.value).splitlines() == [
        "4 of 8 prompts are too long: with max_new_tokens=88 and the model's context of 96, a prompt may have 8 "
        "tokens:",
        *[f"  {path}:{line}: {tokens} tokens" for line, tokens in ((2, 9), (4, 30))] * 2,
        "Shorten them, lower --max_new_tokens, or leave them out with --prompt_too_long drop.",
    ]


def test_dropped_prompts_are_counted_and_the_others_stay_as_they_are(policy: Policy) -> None:
    """B53: never a silently shortened prompt."""
    task = fitting(RowsTask(ROWS, ROWS), policy, args(prompt_too_long="drop"))
    assert isinstance(task, RowsTask)
    for part in (task.prompts, task.held_out):
        assert [(prompt.row, prompt.text) for prompt in part] == [(0, "p" * 8), (2, "p")]
    assert task.remarks[-1].splitlines()[:2] == [
        "dropped, as 4 of 8 prompts are too long: with max_new_tokens=88 and the model's context of 96, a prompt may "
        "have 8 tokens:",
        "  row 1: 9 tokens",
    ]


def test_dropping_every_row_is_refused(policy: Policy) -> None:
    with pytest.raises(UsageError, match=r"1 of 2 prompts are too long.*and no training row is left"):
        fitting(RowsTask(ROWS[1:2], ROWS[:1]), policy, args(prompt_too_long="drop"))


def test_an_endless_task_is_measured_by_a_sample(policy: Policy) -> None:
    task = ArithmeticTask(digits=5)
    with pytest.raises(UsageError, match="has 12 tokens"):
        fitting(task, policy, args())
    assert fitting(task, policy, TrainArgs(max_new_tokens=8)) is task


def test_rows_without_the_answer_that_their_reward_needs_are_named(policy: Policy) -> None:
    """Fault 19: some rows have one, so the column is there, and each of the others would only be seen when drawn."""
    rows = [{"prompt": f"{n}", "answer": str(n) if n % 2 else None} for n in range(14)]
    with pytest.raises(UsageError) as caught:
        judgeable(RowsTask(rows), make_runner("exact"))
    text = str(caught.value)
    assert text.startswith("7 of 14 rows have no answer, which the reward exact needs:\n  row 0: no answer\n  row 2:")
    assert "\n  and 2 more\n" in text


def test_gold_answers_that_cannot_be_read_are_counted_and_listed() -> None:
    rows = [{"prompt": "p", "answer": answer} for answer in ("#### 7", "#### seven", "7", "many")]
    remark = judgeable(RowsTask(rows), make_runner("gsm8k")).remarks[-1]
    assert remark.splitlines() == [
        "2 of 4 gold answers cannot be read by the reward gsm8k; answers to these rows get no score:",
        "  row 1: the gold answer cannot be read: '#### seven'",
        "  row 3: the gold answer cannot be read: 'many'",
    ]
    with pytest.raises(UsageError, match=r"2 of 2 gold answers cannot be read by the reward gsm8k, so nothing"):
        judgeable(RowsTask(rows[1::2]), make_runner("gsm8k"))


def test_rows_that_can_all_be_judged_get_no_remark() -> None:
    rows = [{"prompt": "p", "answer": "4"}, {"prompt": "q", "answer": "5"}]
    task = RowsTask(rows)
    assert judgeable(task, make_runner("gsm8k")) is task


@pytest.fixture
def train(policy: Policy, tmp_path: Path) -> Callable[..., Path]:
    """Trains the small policy on rows; the run folder."""

    def go(rows: Any, reward: Any = None, **fields: Any) -> Path:
        defaults: dict[str, Any] = {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 2,
            "prompts_per_step": 4,
            "group_size": 2,
            "max_new_tokens": 4,
            "objective": Objective(kl_coef=0.0),
        }
        given = TrainArgs(**{**defaults, **fields})
        return Trainer(policy.model, reward, given, rows, processing_class=policy.tokenizer).train().folder

    return go


def drawn(folder: Path) -> list[list[int]]:
    """Row ids of every step's groups."""
    return [
        [row["row"] for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if row["sample"] == 0]
        for path in sorted(folder.glob("rollouts/*"))
    ]


def test_rows_that_were_dropped_are_never_drawn(train: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "p" * length, "answer": "1"} for length in (3, 95, 4)]
    folder = train(rows, max_steps=3, prompt_too_long="drop")
    assert [sorted(step) for step in drawn(folder)] == [[0, 2]] * 3
    assert "data: dropped, as 1 of 3 prompts are too long" in capsys.readouterr().out


def test_a_data_set_smaller_than_a_batch_is_drawn_again_every_step(train: Callable[..., Path]) -> None:
    """Fault 17: one row, and no division by zero nor a run of no steps."""
    assert drawn(train([{"prompt": "p", "answer": "1"}], minibatches=4)) == [[0], [0]]


def test_rows_with_equal_prompts_make_groups_of_their_own(train: Callable[..., Path]) -> None:
    """B20, fault 19: told apart by row id, never by prompt text."""
    assert sorted(drawn(train([{"prompt": "p", "answer": "1"}] * 3, max_steps=1))[0]) == [0, 1, 2]


def test_the_rewards_of_a_user_are_not_tried_on_every_row(train: Callable[..., Path]) -> None:
    """They may cost money."""
    seen: list[int] = []

    def mine(completions: list[str], **_: Any) -> list[float]:
        seen.append(len(completions))
        return [0.0] * len(completions)

    train([{"prompt": f"p{n}"} for n in range(50)], mine, max_steps=1)
    assert sum(seen) == 2 + 4 * 2  # before and after the model is loaded, and the step


def test_a_task_of_reasoning_gym_is_trained_with_its_own_scorer(policy: Policy, tmp_path: Path) -> None:
    """Its scorer gives no 0 for a wrong answer that contains the right one: neither exact nor gsm8k would."""
    given = TrainArgs(
        task="rg:chain_sum:max_terms=2,max_digits=1,size=60",
        output_dir=str(tmp_path / "run"),
        max_steps=1,
        prompts_per_step=2,
        group_size=2,
        max_new_tokens=4,
        objective=Objective(kl_coef=0.0),
    )
    result = Trainer(policy.model, None, given, processing_class=policy.tokenizer).train()
    config = json.loads((result.folder / "config.json").read_text(encoding="utf-8"))
    assert (config["reward"], config["task"]) == ("reasoning-gym", given.task)
    assert result.before is not None
    rows = [json.loads(line) for line in (result.folder / "rollouts/step-00001.jsonl").read_text().splitlines()]
    assert {row["status"] for row in rows} == {"scored"}
    assert rows[0]["prompt"].startswith("State the final answer")
    again = TrainArgs.from_flags(**{**config, "output_dir": str(tmp_path / "again")})
    Trainer(policy.model, None, again, processing_class=policy.tokenizer).check()
