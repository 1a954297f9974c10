"""Reward functions in killable processes, and the share of failures that a run bears."""

import datetime
import logging
import math
import time
from pathlib import Path

import pytest

from upweight.objective.errors import UsageError
from upweight.rewards.contract import RewardError
from upweight.rewards.runner import RewardRunner, make_runner
from upweight.rewards.score import Status
from upweight.tasks.prompt import Prompt

SOURCE = """
import asyncio, os, sys, time
import numpy as np

def judge(prompts, completions, answer, level, **_):
    (text,), (gold,) = completions, answer
    text = text if isinstance(text, str) else text[0]["content"]
    if text == "raise":
        raise ValueError("a bad answer")
    if text == "hang":
        time.sleep(60)
    if text == "loop":
        while True:
            pass
    if text == "exit":
        os._exit(3)
    returned = {"nan": float("nan"), "none": None, "text": "1.0", "true": True, "numpy": np.float32(0.5), "big": 1e31}
    return [returned.get(text, float(text == gold))]

def two(completions, **_):
    return [1.0, 2.0]

async def slow(completions, **_):
    await asyncio.sleep(60 if "hang" in completions else 0)
    return [1.0] * len(completions)

def needs(completions, solution):
    return [1.0]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "isolated_functions.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(count: int, **columns: object) -> list[Prompt]:
    return [Prompt(row=i, text="q", answer="4", columns={"level": 1, **columns}) for i in range(count)]


def isolated(name: str = "judge", timeout: float = 1.0, max_errors: float = 1.0) -> RewardRunner:
    return make_runner(f"isolated_functions.py:{name}", isolate=True, timeout=timeout, max_errors=max_errors)


def test_a_hanging_crashing_or_raising_answer_loses_its_own_reward_alone(caplog: pytest.LogCaptureFixture) -> None:
    runner = isolated()
    runner.check(rows(1)[0])
    texts = ["4", "raise", "5", "hang", "4", "exit", "loop", "4"]
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        scores = runner.score(rows(8), texts)
    assert time.monotonic() - start < 5.0
    fine, error, late = Status.SCORED, Status.ERROR, Status.TIMEOUT
    assert [s.status for s in scores] == [fine, error, fine, late, fine, error, late, fine]
    assert [s.value for s in scores if s.status is fine] == [1.0, 0.0, 1.0, 1.0]
    assert scores[1].why == "judge raised ValueError: a bad answer"
    assert "exit code 3" in scores[5].why
    assert "failed on 4 of 8 answers (rows: 1, 3, 5, 6)" in caplog.text
    assert "isolated_functions.py" in caplog.text  # the traceback
    runner.close()


def test_chats_and_numbers_of_every_kind_cross_the_border() -> None:
    runner = isolated()
    chat = Prompt(row=0, text=({"role": "user", "content": "q"},), answer="4", columns={"level": 1})
    scores = runner.score([chat] * 4, ["4", "true", "numpy", "none"])
    assert [s.value for s in scores[:3]] == [1.0, 1.0, 0.5]
    assert scores[3].status is Status.NOT_APPLICABLE
    runner.close()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("judge", "nan", "finite numbers .* nan .float. at index 0 .row 1."),
        ("judge", "text", "finite numbers .* '1.0' .str. at index 0 .row 1."),
        ("judge", "big", "finite numbers"),
        ("two", "4", "returned 2 rewards for 1 completions"),
    ],
)
def test_what_is_no_reward_is_refused_also_from_there(name: str, text: str, sentence: str) -> None:
    runner = isolated(name)
    with pytest.raises(RewardError, match=f"'{name}' .*{sentence}"):
        runner.score(rows(2), ["4", text])
    runner.close()


def test_a_column_that_is_no_json_is_named() -> None:
    with pytest.raises(UsageError, match="The column 'when' cannot be handed to the reward function 'judge'"):
        isolated().score(rows(1, when=datetime.date(2025, 1, 1)), ["4"])


def test_a_missing_column_is_named_before_the_run() -> None:
    with pytest.raises(UsageError, match="'needs' needs the column 'solution'"):
        isolated("needs").check(rows(1)[0])


def test_a_function_of_this_process_alone_cannot_be_isolated() -> None:
    with pytest.raises(UsageError, match="leave --isolate_rewards out"):
        make_runner(lambda completions: [1.0], isolate=True)


def test_built_in_rewards_stay_where_they_are() -> None:
    runner = make_runner("exact", isolate=True)
    assert runner.score(rows(1), ["4"])[0].value == 1.0
    assert runner._isolated == {}


def test_an_async_function_is_ended_at_its_deadline_without_a_process_too() -> None:
    runner = make_runner("isolated_functions.py:slow", timeout=0.3)
    start = time.monotonic()
    scores = runner.score(rows(2), ["a", "hang"])
    assert time.monotonic() - start < 2.0
    assert [(s.status, math.isnan(s.value)) for s in scores] == [(Status.TIMEOUT, True)] * 2
    assert runner.score(rows(1), ["a"])[0].value == 1.0


@pytest.mark.parametrize(("failing", "stops"), [(1, False), (2, True)])
def test_a_run_bears_failures_up_to_a_share(failing: int, stops: bool) -> None:
    def flaky(completions: list[str], **_: object) -> list[float]:
        return [1.0 / (text != "bad") for text in completions]

    runner = make_runner(flaky, max_errors=0.25)
    texts = ["bad"] * failing + ["fine"] * (4 - failing)
    if not stops:
        assert [s.status for s in runner.score(rows(4), texts)].count(Status.ERROR) == failing
        return
    with pytest.raises(RewardError) as caught:
        runner.score(rows(4), texts)
    assert str(caught.value) == (
        "The reward function 'flaky' failed on 2 of 4 answers, more than --max_reward_errors 0.25 allows. The first: "
        "flaky raised ZeroDivisionError: float division by zero"
    )
