"""The rows of GSM8K, MATH, verl and verifiers: recognised by their columns, converted, and said so."""

import json
from pathlib import Path
from typing import Any

import pytest

from upweight.objective.errors import UsageError
from upweight.rewards.runner import make_runner
from upweight.tasks.data import DataTask
from upweight.tasks.layouts import GSM8K_INSTRUCTION, MATH_INSTRUCTION, last_boxed, layout_of
from upweight.tasks.prompt import Prompt
from upweight.tasks.rows import RowsTask

GSM8K = {"question": "Natalia sold 48 and then 24 clips. How many?", "answer": "48+24=<<48+24=72>>72\n#### 72"}

MATH = {
    "problem": "What is $\\frac{1}{4}+\\frac{1}{4}$?",
    "level": "Level 1",
    "type": "Algebra",
    "solution": "Not \\boxed{1}, but \\boxed{\\frac{1}{2}}.",
}

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2+2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 7},
}

VERIFIERS = {"question": "Who wrote it?", "answer": "Woolf", "info": {"year": 1925}, "task": "authors"}


def only(row: dict[str, Any], **how: bool) -> Prompt:
    return RowsTask([row]).for_model(chat=how.get("chat", False)).prompts[0]


def test_gsm8k_rows_ask_for_the_form_that_their_reward_reads() -> None:
    prompt = only(GSM8K)
    assert prompt.text == f"Natalia sold 48 and then 24 clips. How many?\n{GSM8K_INSTRUCTION}"
    assert prompt.answer == GSM8K["answer"]
    assert dict(prompt.columns) == {}
    task = RowsTask([GSM8K])
    assert task.reward == task.for_model(chat=True).reward == "gsm8k"
    assert len(task.remarks) == 1
    assert task.remarks[0].startswith("GSM8K rows: ")
    assert GSM8K_INSTRUCTION in task.remarks[0]


def test_the_gold_answer_of_math_rows_is_the_last_box_of_the_solution() -> None:
    prompt = only(MATH)
    assert prompt.text == f"{MATH['problem']}\n{MATH_INSTRUCTION}"
    assert prompt.answer == "\\frac{1}{2}"
    assert dict(prompt.columns) == {name: MATH[name] for name in ("level", "type", "solution")}
    assert RowsTask([MATH]).reward == "accuracy"


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (GSM8K, "48 and 24.\n#### 72"),
        (MATH, "It is \\boxed{0.5}."),
        (VERL, "So the answer is \\boxed{4}."),
        (VERIFIERS, "\\boxed{Woolf}"),
    ],
)
def test_the_default_reward_reads_the_gold_answer_and_a_right_answer(row: dict[str, Any], right: str) -> None:
    task = RowsTask([row]).for_model(chat=True)
    scores = make_runner(task.reward).score([task.prompts[0]] * 2, [right, "\\boxed{-9}\n#### -9"])
    assert [score.value for score in scores] == [1.0, 0.0]


def test_an_answer_column_of_math_rows_wins_over_the_solution() -> None:
    assert only({**MATH, "answer": "0.5"}).answer == "0.5"
    assert only({"problem": "2+2?", "answer": 4}).answer == "4"


def test_verl_rows_keep_their_prompt_and_columns() -> None:
    prompt = only(VERL)
    assert prompt.text == ({"role": "user", "content": "2+2?"},)
    assert prompt.answer == "4"
    assert dict(prompt.columns) == {
        **{name: VERL[name] for name in ("data_source", "ability", "reward_model", "extra_info")},
        "ground_truth": "4",
    }
    assert RowsTask([VERL]).reward == "accuracy"


def test_a_ground_truth_of_verl_that_is_no_text_goes_to_reward_functions_alone() -> None:
    told = {"target": 24, "numbers": [1, 2, 3, 4]}
    task = RowsTask([{**VERL, "reward_model": {"style": "rule", "ground_truth": told}}])
    assert task.prompts[0].answer is None
    assert task.prompts[0].columns["ground_truth"] == told
    assert "answer" not in task.columns
    assert "no gold answer" in task.remarks[0]


def test_verifiers_rows_are_asked_as_they_stand() -> None:
    prompt = only(VERIFIERS)
    assert (prompt.text, prompt.answer) == ("Who wrote it?", "Woolf")
    assert dict(prompt.columns) == {"info": {"year": 1925}, "task": "authors"}
    assert RowsTask([VERIFIERS]).reward == "exact"
    assert RowsTask([VERIFIERS]).for_model(chat=True).reward == "accuracy"
    assert RowsTask([VERIFIERS]).remarks[0].startswith("question and answer rows: the question is the prompt as it")


@pytest.mark.parametrize("row", [GSM8K, MATH, VERIFIERS])
def test_a_question_becomes_a_chat_where_the_model_has_a_template(row: dict[str, Any]) -> None:
    """As a bare string it would skip the template, and an instruct model would continue it rather than answer."""
    assert only(row, chat=True).text == ({"role": "user", "content": only(row).text},)


def test_a_prompt_of_ones_own_is_never_rewritten() -> None:
    row = {"prompt": "2+2=", "answer": "4", "question": "other", "problem": "other", "solution": "other"}
    for chat in (False, True):
        assert only(row, chat=chat).text == "2+2="
    assert RowsTask([row]).remarks == ()


def test_training_and_held_out_rows_may_be_written_differently() -> None:
    task = RowsTask([VERL], [GSM8K]).for_model(chat=True)
    assert task.prompts[0].text == ({"role": "user", "content": "2+2?"},)
    assert task.held_out[0].text == ({"role": "user", "content": only(GSM8K).text},)
    assert [remark.partition(" rows:")[0] for remark in task.remarks] == ["verl", "held out: GSM8K"]


@pytest.mark.parametrize(
    ("first", "row", "reason"),
    [
        (GSM8K, {"question": "a"}, "there is no 'answer'; the columns are: question"),
        (GSM8K, {"question": " ", "answer": "1"}, "the prompt is empty"),
        (GSM8K, {"question": 5, "answer": "1"}, "not a number"),
        (VERIFIERS, {"prompt": "a"}, "there is no 'question'; the columns are: prompt"),
        (MATH, {"problem": "a", "solution": "so 4"}, "the solution has no complete \\boxed{...}"),
        (MATH, {"problem": "a", "level": 1}, "there is no 'solution'; the columns are: problem, level"),
        (VERL, {"prompt": VERL["prompt"]}, "there is no 'reward_model'"),
        (VERL, {**VERL, "reward_model": {"style": "model"}}, "not an object with a 'ground_truth'"),
        (VERL, {**VERL, "prompt": "2+2?"}, "the prompt is a string where"),
    ],
)
def test_a_row_that_does_not_fit_the_others_is_named(
    tmp_path: Path, first: dict[str, Any], row: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(first)}\n{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        DataTask(path)
    assert f"  {path}:2: " in str(caught.value)
    assert reason in str(caught.value)


def test_the_first_usable_row_decides_how_all_are_read() -> None:
    task = [None, GSM8K, GSM8K]
    with pytest.raises(UsageError, match="has 1 unusable of 3 rows"):
        RowsTask(task)
    assert layout_of({"anything": 1}).name == "prompt and answer"
    assert layout_of({"prompt": "a", "reward_model": None}).name == "prompt and answer"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{1} and \fbox{2}", "2"),
        (r"\boxed{\text{a}_{b}}", r"\text{a}_{b}"),
        (r"\boxed {3}", "3"),
        (r"\boxed{4} but \boxed{5", "4"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed{6}", None),
        ("", None),
    ],
)
def test_the_last_complete_box_counts(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside
