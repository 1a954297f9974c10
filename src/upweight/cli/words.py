"""The words of a verb that has flags of its own, value by value. Imports no torch."""

import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from upweight.cli.config import did_you_mean
from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.fields import must_be

C = TypeVar("C")


def read_call(argv: Sequence[str], kind: type[C], program: str, description: str) -> C:
    """What a command line asks for.

    Args:
        argv: what follows the verb.
        kind: the verb's call, a dataclass of its flags; a bool is a switch without a value.
        program: `upweight verify`, for messages.
        description: heads the help.

    Raises:
        UsageError: a flag that does not exist or is there twice, or a value of a wrong type.
        SystemExit: 0 after `--help`.
    """
    if any(word in ("-h", "--help") for word in argv):
        config = (tyro.conf.HelptextFromCommentsOff,)
        tyro.cli(kind, prog=program, description=description, args=["--help"], config=config, use_underscores=True)
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        flag, equals, text = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in hints:
            raise UsageError(
                f"'{flag}' is not a flag of {program}. {did_you_mean(f'--{name}', [f'--{known}' for known in hints])}"
            )
        if name in values:
            raise UsageError(f"'{flag}' is there twice. Keep one of them.")
        if hints[name] is bool:
            if equals:
                raise UsageError(f"'{flag}' takes no value: leave out '={text}'.")
            values[name] = True
            continue
        if not equals and (not words or words[0].startswith("--")):
            raise UsageError(f"'{flag}' needs a value: {must_be(hints[name], object())}.")
        values[name] = _value(text if equals else words.pop(0), hints[name], flag, program)
    return kind(**values)


def _value(text: str, hint: object, flag: str, program: str) -> object:
    """A word of the command line as the value of a field."""
    members = typing.get_args(hint) or (hint,)
    value: object = text
    if text.lower() == "none" and type(None) in members:
        value = None
    elif str not in members:
        for kind in (kind for kind in (int, float) if kind in members):
            try:
                value = kind(text)
            except ValueError:
                continue
    if must := must_be(hint, value):
        raise bad_parameter(flag, program, must, text)
    return value
