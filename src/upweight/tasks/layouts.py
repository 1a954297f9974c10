"""How others write their rows down, and how such a row becomes one of ours: chosen by the columns, said in one line."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Row = Mapping[str, object]

GSM8K_INSTRUCTION = "Think step by step, and give the final answer as a number after ####."

MATH_INSTRUCTION = r"Think step by step, and put the final answer into \boxed{}."


class BadRow(ValueError):
    """One row cannot be used; the text says why. Collected, and reported together as one UsageError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One way of writing rows down."""

    name: str
    """What it is called in messages."""

    convert: Callable[[Row], Row]
    """A row of this layout as one of ours: `prompt`, `answer`, and every other column under its own name."""

    remark: str = ""
    """What is said about the conversion; empty where nothing is converted."""

    questions: bool = False
    """Whether the prompt is a bare question: it becomes a chat of one user message where the model has a template."""

    reward: str | None = None
    """The built-in reward that fits; None where the answers themselves tell."""


def layout_of(row: Row) -> Layout:
    """The layout of a data set, from one of its rows.

    Args:
        row: any row that is a mapping.

    Returns:
        verl's rows by `prompt` and `reward_model`; ours by `prompt`; MATH's by `problem`; GSM8K's by `question` and
        an `answer` with `####`; otherwise question-and-answer rows, as verifiers and many others have them, by
        `question`. Ours where nothing fits, so that the error about a missing prompt names the columns there are.

    Example:
        >>> layout_of({"question": "2+2?", "answer": "2+2 is 4.\\n#### 4"}).name
        'GSM8K'
        >>> layout_of({"question": "2+2?", "answer": "4", "info": {}}).name
        'question and answer'
    """
    if "prompt" in row:
        return _verl(row) if isinstance(row.get("reward_model"), Mapping) else OURS
    if "problem" in row and ("solution" in row or "answer" in row):
        return MATH
    if "question" in row:
        return GSM8K if "####" in str(row.get("answer")) else QUESTIONS
    return OURS


def last_boxed(text: str) -> str | None:
    """What stands in the last complete `\\boxed{...}` or `\\fbox{...}`; None where there is none.

    Example:
        >>> last_boxed(r"First \\boxed{1}, then \\boxed{\\frac{1}{2}}.")
        '\\\\frac{1}{2}'
        >>> last_boxed(r"\\boxed{1") is None
        True
    """
    for start in reversed([match.end() for match in re.finditer(r"\\f?box(?:ed)?\s*\{", text)]):
        depth = 1
        for place in range(start, len(text)):
            # An escaped brace is part of the answer, and no border of it.
            if text[place] in "{}" and text[place - 1] != "\\":
                depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return text[start:place]
    return None


def _renamed(row: Row, new: Row, *gone: str) -> Row:
    """The row with some columns taken out and others put in."""
    return {**{name: value for name, value in row.items() if name not in gone}, **new}


def _need(row: Row, name: str) -> object:
    if name not in row:
        raise BadRow(f"there is no '{name}'; the columns are: {_listed(row)}")
    return row[name]


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _asked(question: object, instruction: str = "") -> object:
    """A question with what is added to it; anything but text is left for the check of prompts to refuse."""
    if not isinstance(question, str) or not question.strip() or not instruction:
        return question
    return f"{question.rstrip()}\n{instruction}"


def _ours(row: Row) -> Row:
    if "prompt" not in row:
        raise BadRow(f"there is no 'prompt'; the columns are: {_listed(row)}")
    return row


def _question(row: Row) -> Row:
    return _renamed(row, {"prompt": _asked(_need(row, "question"))}, "question")


def _gsm8k(row: Row) -> Row:
    question = _asked(_need(row, "question"), GSM8K_INSTRUCTION)
    return _renamed(row, {"prompt": question, "answer": _need(row, "answer")}, "question")


def _math(row: Row) -> Row:
    problem, answer = _asked(_need(row, "problem"), MATH_INSTRUCTION), row.get("answer")
    if answer is None:
        answer = last_boxed(str(_need(row, "solution")))
        if answer is None:
            raise BadRow(r"there is no 'answer', and the solution has no complete \boxed{...}")
    return _renamed(row, {"prompt": problem, "answer": answer}, "problem")


def _verl_row(row: Row) -> Row:
    told = _need(row, "reward_model")
    if not isinstance(told, Mapping) or "ground_truth" not in told:
        raise BadRow("'reward_model' is not an object with a 'ground_truth'")
    truth = told["ground_truth"]
    answer = truth if isinstance(truth, str | int | float) and not isinstance(truth, bool) else None
    return _renamed(_ours(row), {"answer": answer, "ground_truth": truth})


OURS = Layout(name="prompt and answer", convert=_ours)

QUESTIONS = Layout(
    name="question and answer",
    convert=_question,
    remark="the question is the prompt as it stands; a reward that looks for a mark (accuracy: a box, a #### line, an "
    "answer phrase) needs a question that asks for it",
    questions=True,
)

GSM8K = Layout(
    name="GSM8K",
    convert=_gsm8k,
    remark=f'the question is the prompt, with "{GSM8K_INSTRUCTION}" after it; the reward is gsm8k',
    questions=True,
    reward="gsm8k",
)

MATH = Layout(
    name="MATH",
    convert=_math,
    remark=f'the problem is the prompt, with "{MATH_INSTRUCTION}" after it; the gold answer is the answer column, or '
    "the last box of the solution; the reward is accuracy",
    questions=True,
    reward="accuracy",
)


def _verl(row: Row) -> Layout:
    told = row["reward_model"]
    gold = "the gold answer is reward_model.ground_truth, which reward functions get as ground_truth as well"
    if isinstance(told, Mapping) and isinstance(told.get("ground_truth"), Mapping | list):
        gold = (
            "reward_model.ground_truth is no text, so there is no gold answer; reward functions get it as ground_truth"
        )
    remark = f"the prompt stays as it is; {gold}; the reward is accuracy"
    return Layout(name="verl", convert=_verl_row, remark=remark, reward="accuracy")
