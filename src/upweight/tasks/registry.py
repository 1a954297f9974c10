"""Tasks by name, as `--task` spells them: `arithmetic:digits=2,terms=3,operators=+-,style=bare`."""

import functools
from collections.abc import Callable, Mapping

from upweight.objective.errors import UsageError, bad_parameter
from upweight.tasks.arithmetic import ArithmeticTask
from upweight.tasks.data import DataTask
from upweight.tasks.gym import GymTask, gym_parameters
from upweight.tasks.spelling import unknown_name
from upweight.tasks.task import Task


def make_task(spec: str, *, chat: bool) -> Task:
    """Build a task from its name and parameters.

    Args:
        spec: `NAME` or `NAME:parameter=value,parameter=value`. Names: arithmetic (parameters digits, terms,
            operators, style; see `ArithmeticTask`), data (path, held_out, skip_bad_rows; see `DataTask`), and
            rg:TASK for any task of reasoning-gym (its own parameters, examples and unsafe_scorer; see `GymTask`).
        chat: whether the model has a chat template; decides a style that is not given.

    Returns:
        The task.

    Raises:
        UsageError: an unknown task or parameter (with the valid ones), or a value out of range.

    Example:
        >>> make_task("arithmetic:digits=1,operators=+*", chat=False).max_new_tokens
        6
    """
    name, _, rest = spec.strip().partition(":")
    if name not in _TASKS:
        raise unknown_name("task", name, _TASKS)
    return _TASKS[name](rest, chat)


def _arithmetic(rest: str, chat: bool) -> Task:
    parameters = _parameters("the arithmetic task", rest, ("digits", "terms", "operators", "style"))
    return ArithmeticTask(
        digits=_integer(parameters, "digits", 2),
        terms=_integer(parameters, "terms", 2),
        operators=parameters.get("operators", "+"),
        style=parameters.get("style", "chat" if chat else "bare"),
    )


def _data(rest: str, chat: bool) -> Task:
    parameters = _parameters("the data task", rest, ("path", "held_out", "skip_bad_rows"))
    if "path" not in parameters:
        raise UsageError("The data task needs a path: data:path=train.jsonl, or --data train.jsonl.")
    skip = _switch(parameters, "skip_bad_rows", "the data task")
    return DataTask(parameters["path"], parameters.get("held_out"), skip_bad_rows=skip).for_model(chat=chat)


def _reasoning_gym(rest: str, chat: bool) -> Task:
    return _gym_task(rest).for_model(chat=chat)


@functools.lru_cache(maxsize=1)
def _gym_task(rest: str) -> GymTask:
    """Made once: a run asks for it before and after its model is loaded, and problems can take long to make."""
    task, _, texts = rest.partition(":")
    if not task:
        raise UsageError("A task of reasoning-gym is written rg:NAME, as in rg:chain_sum. Got no name.")
    parameters = _parameters(f"rg:{task}", texts)
    own: dict[str, str] = {name: parameters.pop(name) for name in ("examples", "unsafe_scorer") if name in parameters}
    return GymTask(
        task,
        gym_parameters(task, parameters),
        examples=_integer(own, "examples", 0, f"rg:{task}"),
        unsafe_scorer=_switch(own, "unsafe_scorer", f"rg:{task}"),
    )


def _parameters(owner: str, text: str, known: tuple[str, ...] | None = None) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for part in text.split(",") if text else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"Parameters of {owner} are written name=value. Got {part!r} instead.")
        if name in parameters:
            raise UsageError(f"The '{name}' parameter of {owner} is given twice.")
        if known is not None and name not in known:
            raise unknown_name(f"parameter of {owner}", name, known)
        parameters[name] = value
    return parameters


def _integer(parameters: Mapping[str, str], name: str, default: int, owner: str = "the arithmetic task") -> int:
    value = parameters.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        raise bad_parameter(name, owner, "a whole number, at most 9 digits long", value)
    return int(value)


def _switch(parameters: Mapping[str, str], name: str, owner: str) -> bool:
    value = parameters.get(name, "false").lower()
    if value not in ("true", "false"):
        raise bad_parameter(name, owner, "true or false", value)
    return value == "true"


_TASKS: Mapping[str, Callable[[str, bool], Task]] = {
    "arithmetic": _arithmetic,
    "data": _data,
    "rg": _reasoning_gym,
}
