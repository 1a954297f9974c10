"""Tasks by name, as `--task` spells them: `arithmetic:digits=2,terms=3,operators=+-,style=bare`."""

from collections.abc import Callable, Mapping

from upweight.objective.errors import UsageError, bad_parameter
from upweight.tasks.arithmetic import ArithmeticTask
from upweight.tasks.spelling import unknown_name
from upweight.tasks.task import Task


def make_task(spec: str, *, chat: bool) -> Task:
    """Build a task from its name and parameters.

    Args:
        spec: `NAME` or `NAME:parameter=value,parameter=value`. Names: arithmetic (parameters digits, terms,
            operators, style; see `ArithmeticTask`).
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
    return _TASKS[name](_parameters(name, rest), chat)


def _arithmetic(parameters: Mapping[str, str], chat: bool) -> Task:
    known = ("digits", "terms", "operators", "style")
    for parameter in parameters:
        if parameter not in known:
            raise unknown_name("parameter of the arithmetic task", parameter, known)
    return ArithmeticTask(
        digits=_integer(parameters, "digits", 2),
        terms=_integer(parameters, "terms", 2),
        operators=parameters.get("operators", "+"),
        style=parameters.get("style", "chat" if chat else "bare"),
    )


def _parameters(task: str, text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for part in text.split(",") if text else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"Parameters of the {task} task are written name=value. Got {part!r} instead.")
        if name in parameters:
            raise UsageError(f"The '{name}' parameter of the {task} task is given twice.")
        parameters[name] = value
    return parameters


def _integer(parameters: Mapping[str, str], name: str, default: int) -> int:
    value = parameters.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        raise bad_parameter(name, "the arithmetic task", "a whole number, at most 9 digits long", value)
    return int(value)


_TASKS: Mapping[str, Callable[[Mapping[str, str], bool], Task]] = {"arithmetic": _arithmetic}
