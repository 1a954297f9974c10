"""The arithmetic task: right answers, disjoint held-out problems, exact resume."""

import itertools
import json

import pytest

from upweight.objective.errors import UsageError
from upweight.tasks import arithmetic
from upweight.tasks.arithmetic import ArithmeticTask, additive_form, canonical_form
from upweight.tasks.prompt import Draw, Prompt
from upweight.tasks.task import Task


def expression(prompt: Prompt) -> str:
    assert isinstance(prompt.text, str)
    return prompt.text.removesuffix("=")


def test_it_is_a_task() -> None:
    task: Task = ArithmeticTask()
    assert (task.name, task.reward, task.columns, task.size) == ("arithmetic", "exact", ("answer",), None)


@pytest.mark.parametrize("operators", ["+", "-", "*", "+-*"])
def test_answers_are_those_of_ordinary_precedence(operators: str) -> None:
    task = ArithmeticTask(digits=1, terms=4, operators=operators)
    for draw in task.stream(seed=1).take(200):
        assert draw.prompt.answer == str(eval(expression(draw.prompt)))  # our own digits and operators


@pytest.mark.parametrize(("digits", "low", "high"), [(1, 0, 9), (2, 10, 99), (3, 100, 999)])
def test_operands_have_exactly_so_many_digits(digits: int, low: int, high: int) -> None:
    draws = ArithmeticTask(digits=digits, terms=3).stream(seed=0).take(300)
    operands = [int(text) for draw in draws for text in expression(draw.prompt).split("+")]
    assert len(operands) == 900
    assert low <= min(operands)
    assert max(operands) <= high
    assert {len(str(operand)) for operand in operands} == {digits}


def test_every_row_of_a_small_space_is_another_problem() -> None:
    task = ArithmeticTask(digits=1, terms=2, operators="+*")
    assert task.space == 200
    assert len({task._expression(row) for row in range(200)}) == 200


@pytest.mark.parametrize("parameters", [{"digits": 1}, {"digits": 1, "terms": 3, "operators": "+-*"}, {"digits": 2}])
def test_training_never_meets_a_held_out_problem_in_any_order_of_terms(parameters: dict[str, int]) -> None:
    task = ArithmeticTask(**parameters)  # type: ignore[arg-type]
    drawn = task.stream(seed=3).take(1500)
    demonstrated = [prompt for prompt, _ in task.demonstrations(300, seed=3)]
    trained = {canonical_form(additive_form(expression(p))) for p in [d.prompt for d in drawn] + demonstrated}
    held_out = {canonical_form(additive_form(expression(p))) for p in task.held_out}
    assert trained.isdisjoint(held_out)


@pytest.mark.parametrize(("left", "right"), [("57+34", "34+57"), ("3*9", "9*3"), ("1+2*3-4", "3*2+1-4")])
def test_reordered_sums_and_products_share_a_side(left: str, right: str) -> None:
    assert canonical_form(additive_form(left)) == canonical_form(additive_form(right))


@pytest.mark.parametrize(("left", "right"), [("5-2", "2-5"), ("1+2*3", "2+1*3"), ("1+12", "11+2")])
def test_different_problems_have_different_forms(left: str, right: str) -> None:
    assert canonical_form(additive_form(left)) != canonical_form(additive_form(right))


def test_about_one_in_eight_problems_is_held_out() -> None:
    task = ArithmeticTask(digits=2)
    assert sum(map(task._is_held_out, range(task.space))) / task.space == pytest.approx(1 / 8, abs=0.01)


def test_held_out_problems_are_distinct_at_most_512_and_the_same_every_time() -> None:
    small, large = ArithmeticTask(digits=1), ArithmeticTask(digits=6)
    assert 0 < len(small.held_out) < 40
    assert len({prompt.row for prompt in large.held_out}) == len(large.held_out) == 512
    assert ArithmeticTask(digits=6).held_out == large.held_out


def test_a_space_with_nothing_to_hold_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "HELD_OUT_ONE_IN", 10**40)
    with pytest.raises(UsageError, match="too few problems"):
        ArithmeticTask(digits=1)


def test_draws_depend_on_seed_and_number_alone() -> None:
    task = ArithmeticTask()
    whole = task.stream(seed=5).take(10)
    stream = task.stream(seed=5)
    assert stream.take(4) + stream.take(6) == whole
    assert [draw.number for draw in whole] == list(range(10))
    assert [d.prompt.row for d in task.stream(seed=6).take(10)] != [d.prompt.row for d in whole]


def test_a_stream_resumes_exactly_from_a_json_state() -> None:
    task = ArithmeticTask(terms=3, operators="+-")
    stream = task.stream(seed=2)
    stream.take(7)
    state = json.loads(json.dumps(stream.state_dict()))
    rest: list[Draw] = stream.take(5)
    resumed = task.stream(seed=2)
    resumed.load_state_dict(state)
    assert resumed.take(5) == rest


@pytest.mark.parametrize("change", [{"seed": 9}, {"space": 1}, {"draws": -1}])
def test_a_state_of_another_stream_is_refused(change: dict[str, int]) -> None:
    stream = ArithmeticTask().stream(seed=0)
    with pytest.raises(UsageError, match=next(iter(change))):
        stream.load_state_dict(stream.state_dict() | change)


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        ArithmeticTask().stream(seed=0).take(0)


@pytest.mark.parametrize("operators", [s for n in (1, 2, 3) for s in map("".join, itertools.combinations("+-*", n))])
@pytest.mark.parametrize("terms", [2, 3])
def test_the_bare_budget_is_twice_the_longest_possible_answer_with_its_end_token(operators: str, terms: int) -> None:
    task = ArithmeticTask(digits=1, terms=terms, operators=operators)
    longest = max(len(str(task._prompt(row).answer)) for row in range(task.space))
    assert task.max_new_tokens == 2 * (longest + 1)


def test_a_bare_demonstration_is_the_answer() -> None:
    for prompt, text in ArithmeticTask().demonstrations(5, seed=0):
        assert text == prompt.answer


def test_the_chat_style_asks_in_words_after_a_worked_example() -> None:
    task = ArithmeticTask(digits=2, style="chat", operators="-")
    assert (task.reward, task.max_new_tokens) == ("gsm8k", 48)
    (prompt, text), *_ = task.demonstrations(3, seed=0)
    assert isinstance(prompt.text, tuple)
    example, reply, message = prompt.text
    assert [turn["role"] for turn in prompt.text] == ["user", "assistant", "user"]
    for question, answer in ((example["content"], reply["content"]), (message["content"], text)):
        left, right = (int(word) for word in question.split("?")[0].removeprefix("What is ").split(" - "))
        assert answer.endswith(f"#### {left - right}")
        assert "####" in question


def test_the_worked_example_is_no_held_out_problem() -> None:
    task = ArithmeticTask(digits=1, style="chat")
    example = task.held_out[0].text[0]
    assert example not in [prompt.text[-1] for prompt in task.held_out]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"digits": 0}, "'digits'"),
        ({"digits": True}, "'digits'"),
        ({"terms": 1}, "'terms'"),
        ({"operators": ""}, "'operators'"),
        ({"operators": "+/"}, "'operators'"),
        ({"operators": "++"}, "without repeats"),
        ({"style": "prose"}, "bare, chat"),
        ({"digits": 10, "terms": 3}, "2\\*\\*63"),
        ({"digits": 10**9}, "2\\*\\*63"),
    ],
)
def test_a_parameter_out_of_range_is_refused_in_one_sentence(parameters: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ArithmeticTask(**parameters)  # type: ignore[arg-type]
