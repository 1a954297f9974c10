"""The built-in verifiers on cases whose verdict a person can give."""

import time

import pytest

from upweight.objective.errors import UsageError
from upweight.rewards.builtin import exact, gsm8k, judge_exact, judge_gsm8k
from upweight.rewards.lookup import find_rewards
from upweight.rewards.quantities import plain_number, quantity
from upweight.rewards.score import Status


@pytest.mark.parametrize(
    ("text", "gold", "value"),
    [
        ("91", "91", 1),
        (" 91\n", "91", 1),
        ("091", "91", 1),
        ("91.0", "91", 1),
        ("+7", "7", 1),
        ("-7", "7", 0),
        ("-0", "0", 1),
        ("2/4", "1/2", 1),
        ("0.5", "1/2", 1),
        ("0.333", "1/3", 0),
        ("1/0", "1", 0),
        ("91 apples", "91", 0),
        ("9 1", "91", 0),
        ("1,234", "1234", 0),
        ("1e2", "100", 0),
        ("\u0669\u0661", "91", 0),
        ("", "91", 0),
        ("nan", "91", 0),
        ("Paris", "Paris", 1),
        ("paris", "Paris", 0),
        ("100000000000000000001", "100000000000000000000", 0),
        ("7" * 5000, "7" * 5000, 1),
        ("7" * 5000, "7", 0),
        ("7", "7" * 5000, 0),
        ("__import__('os').getcwd()", "91", 0),
    ],
)
def test_exact_takes_the_same_text_or_the_same_number(text: str, gold: str, value: float) -> None:
    assert judge_exact(text, gold).value == value


@pytest.mark.parametrize("judge", [judge_exact, judge_gsm8k])
@pytest.mark.parametrize("gold", [None, "", "  \n"])
def test_nothing_is_scored_against_a_missing_gold_answer(judge: object, gold: str | None) -> None:
    score = judge("", gold)  # type: ignore[operator]
    assert score.status is Status.UNPARSABLE_GOLD


@pytest.mark.parametrize(
    ("text", "gold", "value"),
    [
        ("He buys 3 bags at 4 each, so 12.\n#### 12", "12", 1),
        ("#### $1,250.00", "1250", 1),
        ("#### -7", "-7", 1),
        ("#### +7", "7", 1),
        ("#### ,", "0", 0),
        ("#### 12 apples", "12", 1),
        ("#### 42\n" + "This agrees with the reasoning above. " * 20, "42", 1),
        ("#### 42", "42.0", 1),
        ("The cost was 80,000 then 50,000.\n#### 70000", "70,000", 1),
        ("#### ten", "10", 0),
        ("#### 3 1/5", "3.2", 1),
        ("#### -3 1/5", "-3.2", 1),
        ("#### 1/2", "0.5", 1),
        ("#### 12.", "12", 1),
        ("#### 20%", "20", 1),
        ("#### 20 %.", "20", 1),
        ("#### -$5", "-5", 1),
        ("#### $-5", "-5", 1),
        ("#### \u22125", "-5", 1),
        ("#### 5\u20ac", "5", 1),
        ("#### $12/hour", "12", 1),
        ("####\n\n42", "42", 1),
        ("####42", "42", 1),
        ("#### 1\n#### 2\n#### 3", "2", 0),
        ("#### 1\n#### 2\n#### 3", "3", 1),
        ("#### 42 ####", "42", 0),
        ("#### ", "42", 0),
        ("42", "42", 0),
        ("The answer is 42.", "42", 0),
        ("#### 5 or 6", "5", 0),
        ("#### 5, 6", "5", 0),
        ("#### 5 or six", "5", 0),
        ("#### 2 and a half", "2", 0),
        ("#### 5 million", "5", 0),
        ("#### 5M", "5", 0),
        ("#### 5k", "5", 0),
        ("#### 5x", "5", 0),
        ("#### 5 + 3", "5", 0),
        ("#### 5 = 5", "5", 0),
        ("#### 5:30", "5", 0),
        ("#### 1,2,3", "123", 0),
        ("#### 12,34", "1234", 0),
        ("#### 1.2.3", "1.2", 0),
        ("#### 1e3", "1", 0),
        ("#### --5", "5", 0),
        ("#### -$-5", "5", 0),
        ("#### 2.5 1/2", "3", 0),
        ("#### 5/0", "5", 0),
        ("#### nan", "42", 0),
        ("#### 9**9**9", "9", 0),
        ("#### __import__('os').getcwd()", "5", 0),
        ("#### 5", "Adding 2 and 3 gives five.\n#### 5", 1),
        ("#### 100000000000000000001", "100000000000000000000", 0),
        ("#### " + "7" * 5000, "7", 0),
        ("#### 1/" + "7" * 600, "7", 0),
    ],
)
def test_gsm8k_reads_the_number_after_the_last_marker(text: str, gold: str, value: float) -> None:
    assert judge_gsm8k(text, gold).value == value


@pytest.mark.parametrize("gold", ["ten", "5 or 6", "no number\n#### none", "7" * 5000, "1\n2"])
def test_an_unreadable_gold_number_gives_no_score(gold: str) -> None:
    score = judge_gsm8k("#### 5", gold)
    assert score.status is Status.UNPARSABLE_GOLD
    assert "cannot be read" in score.why


@pytest.mark.parametrize(
    "text", ["#### " + "1," * 500_000, "#" * 1_000_000, "#### 1" + " " * 900 + "#" * 50, "####" * 200_000]
)
def test_hostile_answers_take_no_time(text: str) -> None:
    start = time.perf_counter()
    assert judge_gsm8k(text, "1").value == 0
    assert time.perf_counter() - start < 0.5


def test_numbers_are_read_exactly() -> None:
    assert plain_number("0.1") * 3 == plain_number("0.3")  # type: ignore[operator]
    assert quantity("0.1") * 3 == quantity("3/10")  # type: ignore[operator]


def test_reward_functions_take_strings_and_chats() -> None:
    chat = [{"role": "assistant", "content": "#### 5"}]
    assert [s.value for s in gsm8k(completions=[chat, "#### 6"], answer=["5", "5"], level=[1, 2])] == [1.0, 0.0]
    assert [s.value for s in exact(completions=["5"], answer=["5"])] == [1.0]


def test_a_reward_that_does_not_exist_is_refused_with_the_one_meant() -> None:
    assert find_rewards("exact")[0].function is exact
    with pytest.raises(UsageError, match=r"There is no reward 'gsm8'\. Did you mean 'gsm8k'\? Valid: accuracy, exact"):
        find_rewards("gsm8")
