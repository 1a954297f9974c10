"""Task specs: what they mean, and the sentence a misspelt one gets. The room imports no torch."""

import subprocess
import sys

import pytest

from upweight.objective.errors import UsageError
from upweight.tasks.arithmetic import ArithmeticTask
from upweight.tasks.registry import make_task


def test_the_style_follows_the_model_unless_it_is_given() -> None:
    assert make_task("arithmetic", chat=False) == ArithmeticTask(style="bare")
    assert make_task("arithmetic", chat=True) == ArithmeticTask(style="chat")
    assert make_task("arithmetic:style=bare", chat=True) == ArithmeticTask(style="bare")


def test_parameters_are_read_from_the_spec() -> None:
    assert make_task(" arithmetic:digits=1, terms=3,operators=+-* ", chat=False) == ArithmeticTask(
        digits=1, terms=3, operators="+-*"
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("arithmetik", "There is no task 'arithmetik'. Did you mean 'arithmetic'? Valid: arithmetic, data, rg."),
        ("", "There is no task ''. Valid: arithmetic, data, rg."),
        ("arithmetic:digit=2", "Did you mean 'digits'? Valid: digits, operators, style, terms."),
        ("arithmetic:digits=two", "The 'digits' parameter of the arithmetic task must be a whole number"),
        ("arithmetic:digits=-1", "The 'digits' parameter of the arithmetic task must be a whole number"),
        ("arithmetic:digits=" + "9" * 5000, "at most 9 digits long"),
        ("arithmetic:digits=0", "must be an integer of at least 1. Got 0"),
        ("arithmetic:digits", "are written name=value. Got 'digits' instead."),
        ("arithmetic:operators=", "are written name=value"),
        ("arithmetic:operators=+/", "must be one or more of + - *"),
        ("arithmetic:style=prose", "must be one of bare, chat. Got 'prose'"),
        ("arithmetic:digits=2,digits=3", "given twice"),
    ],
)
def test_a_wrong_spec_gets_a_sentence_with_the_way_out(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_task(spec, chat=False)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("module", ["tasks.registry", "tasks.jsonl", "rewards.runner"])
def test_importing_the_room_does_not_import_torch(module: str) -> None:
    code = f"import sys, upweight.{module}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
