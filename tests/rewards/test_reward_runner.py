"""TRL reward functions: how they are called, what they may return, and what happens when they fail."""

import asyncio
import logging
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.rewards.contract import RewardError, RewardFunction
from upweight.rewards.runner import RewardRunner, make_runner
from upweight.rewards.score import Score, Status
from upweight.tasks.prompt import Prompt


def prompts(count: int, **columns: object) -> list[Prompt]:
    return [Prompt(row=10 + i, text=f"p{i}", answer=str(i), columns=columns) for i in range(count)]


def runner_of(function: RewardFunction) -> RewardRunner:
    return RewardRunner([("mine", function, 1.0)])


def returning(value: object) -> RewardRunner:
    return runner_of(lambda **_: value)


def test_a_function_gets_keywords_with_a_list_per_column() -> None:
    seen: dict[str, object] = {}

    def mine(**kwargs: object) -> list[float]:
        seen.update(kwargs)
        return [0.0, 1.0]

    rows = [
        Prompt(row=0, text="a", answer="1", columns={"level": "easy"}),
        Prompt(row=1, text="b", answer="2", columns={"source": "x", "completions": "shadowed"}),
    ]
    assert [s.value for s in runner_of(mine).score(rows, ["A", "B"])] == [0.0, 1.0]
    assert seen == {
        "prompts": ["a", "b"],
        "completions": ["A", "B"],
        "answer": ["1", "2"],
        "level": ["easy", None],
        "source": [None, "x"],
    }


def test_a_runner_is_spelled_as_the_flag_takes_it() -> None:
    assert make_runner(["exact", "gsm8k"], weights=[1, 0.25]).spelled == "exact+0.25*gsm8k"
    again = make_runner(make_runner("exact+-1e-05*gsm8k").spelled)
    assert (again.names, again.weights) == (("exact", "gsm8k"), (1.0, -1e-05))


def test_failures_are_counted_function_by_function_the_one_too_many_included() -> None:
    def odd(completions: list[str], **_: object) -> list[float]:
        if any(int(text) % 2 for text in completions):
            raise ValueError(completions)
        return [1.0 for _ in completions]

    def fine(completions: list[str], **_: object) -> list[float]:
        return [1.0 for _ in completions]

    runner = RewardRunner([("odd", odd, 1.0), ("fine", fine, 1.0)], max_errors=0.5)
    runner.score(prompts(4), ["0", "1", "2", "4"])
    with pytest.raises(RewardError, match=r"'odd' failed on 2 of 3 answers, more than --max_reward_errors 0.5 allows"):
        runner.score(prompts(3), ["1", "3", "4"])
    assert runner.judged == {"odd": 7, "fine": 7}
    assert (runner.failed["odd"], runner.failed["fine"]) == (3, 0)


def test_chat_rows_are_shown_as_messages() -> None:
    def mine(prompts: list[list[dict[str, str]]], completions: list[list[dict[str, str]]], **_: object) -> list[float]:
        assert prompts == [[{"role": "user", "content": "hi"}]]
        assert completions == [[{"role": "assistant", "content": "yes"}]]
        prompts[0][0]["content"] = "changed"
        return [1.0]

    row = Prompt(row=0, text=({"role": "user", "content": "hi"},))
    assert runner_of(mine).score([row], ["yes"])[0].value == 1.0
    assert row.text == ({"role": "user", "content": "hi"},)


def test_a_function_without_kwargs_gets_what_it_names() -> None:
    def mine(completions: list[str], level: list[str]) -> list[float]:
        return [float(len(text)) for text in completions]

    assert runner_of(mine).score(prompts(1, level="easy", other=1), ["abc"])[0].value == 3.0


def test_token_ids_are_handed_over_where_they_are_asked_for() -> None:
    def mine(completion_ids: list[list[int]], **_: object) -> list[float]:
        return [float(len(ids)) for ids in completion_ids]

    runner = runner_of(mine)
    runner.check(prompts(1)[0])
    assert runner.score(prompts(1), ["a"], completion_ids=[(1, 2, 3)])[0].value == 3.0
    with pytest.raises(UsageError, match="needs completion_ids"):
        runner.score(prompts(1), ["a"])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (3, 3.0),
        (0.5, 0.5),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
    ],
)
def test_numbers_of_every_kind_become_floats(value: object, number: float) -> None:
    (score,) = returning([value]).score(prompts(1), ["a"])
    assert score == Score(value=number)
    assert type(score.value) is float


@pytest.mark.parametrize("values", [(1.0, 0.5), np.array([1.0, 0.5]), torch.tensor([1.0, 0.5], requires_grad=True)])
def test_tuples_arrays_and_tensors_are_lists_too(values: object) -> None:
    assert [s.value for s in returning(values).score(prompts(2), ["a", "b"])] == [1.0, 0.5]


@pytest.mark.parametrize(
    "value",
    [
        *("1.0", b"1", 1j, [1.0], (1.0,), {"a": 1}, math.nan, math.inf, -math.inf, 1e31, 10**400, object(), Score),
        *(np.array([1.0]), np.complex64(1), np.float64("nan"), torch.tensor([1.0]), torch.tensor(math.inf)),
        pytest.param(10**5000, id="too large to print"),
    ],
)
def test_what_is_no_reward_is_refused_with_function_index_and_value(value: object) -> None:
    with pytest.raises(RewardError, match=r"'mine' must return finite numbers .* at index 1 \(row 11\)") as caught:
        returning([0.0, value]).score(prompts(2), ["a", "b"])
    assert type(value).__name__ in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "returned", [None, 1.0, "11", {0: 1.0, 1: 1.0}, {1.0, 2.0}, iter([1.0, 1.0]), np.array(1.0), torch.tensor(1.0)]
)
def test_what_is_no_list_is_refused(returned: object) -> None:
    with pytest.raises(RewardError, match="'mine' must return a list"):
        returning(returned).score(prompts(2), ["a", "b"])


@pytest.mark.parametrize("returned", [[], [1.0], [1.0, 2.0, 3.0]])
def test_the_wrong_number_of_rewards_is_refused(returned: list[float]) -> None:
    with pytest.raises(RewardError, match=f"'mine' returned {len(returned)} rewards for 2 completions"):
        returning(returned).score(prompts(2), ["a", "b"])


def test_none_means_not_applicable_and_is_no_zero() -> None:
    scores = returning([1.0, None, 0.0]).score(prompts(3), ["a", "b", "c"])
    assert [s.status for s in scores] == [Status.SCORED, Status.NOT_APPLICABLE, Status.SCORED]
    assert math.isnan(scores[1].value)


def test_a_function_that_raises_on_one_answer_loses_that_one_alone(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def mine(completions: list[str], **_: object) -> list[float]:
        calls.append(len(completions))
        return [1.0 / (text != "bad") for text in completions]

    runner = runner_of(mine)
    texts = ["a", "b", "bad", "d"]
    with caplog.at_level(logging.WARNING):
        scores = runner.score(prompts(4), texts)
        runner.score(prompts(4), texts)
    assert calls[:5] == [4, 1, 1, 1, 1]
    assert [s.status for s in scores] == [Status.SCORED, Status.SCORED, Status.ERROR, Status.SCORED]
    assert [s.value for s in scores if s.status is Status.SCORED] == [1.0, 1.0, 1.0]
    assert scores[2].why == "mine raised ZeroDivisionError: float division by zero"
    assert [bool(record.exc_info or record.exc_text) for record in caplog.records] == [True, False]
    assert "raised on 1 of 4 answers (rows: 12)" in caplog.records[0].getMessage()


def test_a_function_that_raises_on_everything_scores_nothing() -> None:
    def mine(**_: object) -> list[float]:
        sys.exit("no")

    assert {s.status for s in runner_of(mine).score(prompts(3), ["a", "b", "c"])} == {Status.ERROR}


def test_a_function_that_cannot_take_a_batch_is_called_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    def mine(completions: list[str], **_: object) -> list[float]:
        if len(completions) > 1:
            raise RuntimeError("one at a time")
        return [1.0]

    with caplog.at_level(logging.WARNING):
        assert [s.value for s in runner_of(mine).score(prompts(2), ["a", "b"])] == [1.0, 1.0]
    assert "none when called one by one" in caplog.text


def test_no_answers_need_no_call() -> None:
    assert returning("never looked at").score([], []) == []


def test_coroutine_functions_are_awaited_also_inside_a_running_loop() -> None:
    async def mine(completions: list[str], **_: object) -> list[float]:
        await asyncio.sleep(0)
        if "bad" in completions:
            raise ValueError("bad")
        if "exit" in completions:
            sys.exit(3)
        return [2.0] * len(completions)

    async def notebook() -> list[Score]:
        return runner_of(mine).score(prompts(3), ["a", "bad", "exit"])

    scores = asyncio.run(notebook())
    assert [s.status for s in scores] == [Status.SCORED, Status.ERROR, Status.ERROR]
    assert [s.value for s in runner_of(mine).score(prompts(2), ["a", "b"])] == [2.0, 2.0]


def test_several_functions_add_up_over_those_that_apply() -> None:
    runner = RewardRunner(
        [
            ("one", lambda completions, **_: [1.0, None, None, 1.0], 2.0),
            ("two", lambda completions, **_: [0.5, 0.5, None, Score(value=math.nan, status=Status.TIMEOUT)], -1.0),
        ]
    )
    scores = runner.score(prompts(4), list("abcd"))
    assert [s.value for s in scores[:2]] == [1.5, -0.5]
    assert [s.status for s in scores[2:]] == [Status.NOT_APPLICABLE, Status.TIMEOUT]
    parts = runner.score_each(prompts(4), list("abcd"))
    assert [s.value for s in parts["two"][:2]] == [0.5, 0.5]


def test_an_error_in_one_function_leaves_the_answer_without_a_reward() -> None:
    def broken(**_: object) -> list[float]:
        raise RuntimeError("broken\nfor good")

    (score,) = RewardRunner([("fine", lambda **_: [1.0], 1.0), ("broken", broken, 1.0)]).score(prompts(1), ["a"])
    assert score.status is Status.ERROR
    assert score.why == "broken: broken raised RuntimeError: broken"


def test_an_unreadable_gold_answer_is_told_from_a_wrong_answer() -> None:
    rows = [Prompt(row=0, text="a", answer="ten"), Prompt(row=1, text="b", answer="10"), Prompt(row=2, text="c")]
    scores = make_runner("gsm8k").score(rows, ["#### 10", "#### 10", "#### 10"])
    assert [s.status for s in scores] == [Status.UNPARSABLE_GOLD, Status.SCORED, Status.UNPARSABLE_GOLD]
    assert make_runner("exact").score(rows[2:], ["a"])[0].status is Status.UNPARSABLE_GOLD


def test_a_missing_column_is_named_before_the_run_with_the_available_ones() -> None:
    def mine(completions: list[str], solution: list[str], **_: object) -> list[float]:
        return [0.0]

    with pytest.raises(UsageError) as caught:
        runner_of(mine).check(prompts(1, level="easy")[0])
    assert str(caught.value) == (
        "The reward function 'mine' needs the column 'solution', which the data does not have. "
        "Available: answer, level."
    )
    with pytest.raises(UsageError, match=r"needs the column 'answer'.*Available: none"):
        make_runner("exact").check(Prompt(row=0, text="a"))


def test_a_column_that_no_signature_shows_is_found_by_the_dry_run() -> None:
    def mine(**kwargs: list[object]) -> list[float]:
        return [float(len(str(x))) for x in kwargs["solution"]]

    with pytest.raises(UsageError, match="'mine' needs the column 'solution'"):
        runner_of(mine).check(prompts(1)[0])
    runner_of(mine).check(prompts(1, solution="x")[0])


def test_the_columns_of_the_data_set_decide_where_they_are_given() -> None:
    make_runner("exact").check(Prompt(row=0, text="a"), columns=("answer",))
    with pytest.raises(UsageError, match="needs the column 'answer'"):
        make_runner("exact").check(prompts(1)[0], columns=())


def test_the_dry_run_refuses_what_is_no_reward_and_reports_what_raises(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RewardError, match="'mine' must return a list"):
        returning(1.0).check(prompts(1)[0])

    def mine(**_: object) -> list[float]:
        raise RuntimeError("about this answer only")

    with caplog.at_level(logging.WARNING):
        runner_of(mine).check(prompts(1)[0])
    assert "raised when it was tried on row 10" in caplog.text


class Judge:
    """A callable object; its class names it."""

    def __call__(self, completions: list[str], **_: object) -> list[float]:
        return [1.0 for _text in completions]


def test_functions_are_named_after_themselves_or_their_class() -> None:
    def mine(completions: list[str], **_: object) -> list[float]:
        return [1.0 for _text in completions]

    assert make_runner(mine).names == ("mine",)
    assert make_runner(["exact", Judge()], weights=[1.0, 2.0]).names == ("exact", "Judge")


@pytest.mark.parametrize(
    ("functions", "weights", "sentence"),
    [
        ([], None, "at least one"),
        (["exact", "exact"], None, "a name each"),
        (["exact"], [1.0, 2.0], "one weight for each of 1"),
        (["exact"], [math.nan], "finite weights"),
        (["exacd"], None, "Did you mean 'exact'"),
        ([5], None, "callables"),
    ],
)
def test_a_wrong_set_of_functions_is_refused(functions: list[str], weights: list[float] | None, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make_runner(functions, weights)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="one completion per prompt"):
        make_runner("exact").score(prompts(2), ["a"])
    with pytest.raises(UsageError, match="with 1 id lists"):
        make_runner("exact").score(prompts(2), ["a", "b"], completion_ids=[[1]])
