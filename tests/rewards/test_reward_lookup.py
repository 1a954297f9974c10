"""Reward functions found by what a user writes."""

from pathlib import Path

import pytest

from upweight.objective.errors import UsageError
from upweight.rewards.builtin import accuracy, exact
from upweight.rewards.formats import think_format
from upweight.rewards.lookup import all_built_in, find_rewards, load_function, source_of
from upweight.rewards.runner import make_runner
from upweight.tasks.prompt import Prompt

SOURCE = """
from sibling import ONE

def style(completions, **_):
    return [ONE for _ in completions]

not_callable = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_rewards.py").write_text(SOURCE)
    (tmp_path / "sibling.py").write_text("ONE = 1.0\n")
    (tmp_path / "broken_rewards.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_a_dotted_path_and_a_file_name_the_same_kind_of_thing(folder: Path) -> None:
    found = find_rewards("exact + 0.5*my_rewards.style + -2e-1 * my_rewards.py:style")
    assert [(one.name, one.weight) for one in found] == [("exact", 1.0), ("style", 0.5), ("style", -0.2)]
    assert found[0].function is exact
    assert found[1].function(completions=["a"]) == found[2].function(completions=["a"]) == [1.0]
    assert [one.source for one in found] == [None, "my_rewards:style", f"{folder / 'my_rewards.py'}:style"]
    assert load_function(str(found[2].source)) is found[2].function


def test_several_rewards_add_up_with_their_weights(folder: Path) -> None:
    runner = make_runner("accuracy+0.25*my_rewards.style")
    scores = runner.score([Prompt(row=0, text="", answer="4")] * 2, [r"\boxed{4}", "4"])
    assert [score.value for score in scores] == [1.25, 0.25]


def test_built_in_rewards_have_names(folder: Path) -> None:
    assert find_rewards("accuracy")[0].function is accuracy
    assert find_rewards("format")[0].function is find_rewards("think_format")[0].function is think_format
    overlong, length = find_rewards("overlong:max_length=10,buffer=5+0.1*length:max_length=10")
    assert overlong.function(completion_ids=[[0] * 10]) == [-1.0]
    assert (length.weight, length.function(completion_ids=[[0] * 5])) == (0.1, [0.5])
    assert all_built_in("accuracy+format")
    assert not all_built_in("accuracy+my_rewards.style")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("accurracy", "Did you mean 'accuracy'"),
        ("", "There is no reward ''"),
        ("my_rewards.stile", "has no function 'stile'. Did you mean 'style'"),
        ("my_rewards.not_callable", "has no function 'not_callable'"),
        ("my_reward.style", "There is no module 'my_reward'"),
        ("nowhere.py:style", "There is no file"),
        ("my_rewards.py", "say which of its functions"),
        ("my_rewards.py:stile", "Did you mean 'style'"),
        ("broken_rewards.reward", "raises RuntimeError: not today"),
        ("broken_rewards.py:reward", "raises RuntimeError: not today"),
        ("overlong", "needs max_length and buffer"),
        ("overlong:max_length=10", "needs max_length and buffer"),
        ("overlong:max_length=10,buffer=20", "between 0 and max_length"),
        ("length:max_length=-3", "needs max_length"),
        ("length:max_length=0", "at least 1"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_way_out(folder: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_rewards(text)
    assert sentence in str(caught.value)


def test_only_a_function_that_another_process_can_load_has_a_source() -> None:
    assert source_of(exact) == "upweight.rewards.builtin:exact"

    def inner(completions: list[str]) -> list[float]:
        return [0.0 for _ in completions]

    for function in (inner, lambda completions: [0.0]):
        with pytest.raises(UsageError, match="cannot be loaded in a process of its own"):
            source_of(function)
