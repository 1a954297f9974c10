"""What a run wrote and somebody may have edited since: JSON objects, one a file or one a line. Imports no torch."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from upweight.objective.errors import UsageError, shown
from upweight.objective.fields import must_be

_BEGINNING = b'{"step": '
"""Of every line that a run appends."""


def object_in(text: bytes) -> dict[str, Any]:
    """The JSON object that a text is.

    Raises:
        ValueError: it is none, and why: no UTF-8, no JSON, another kind of value, a number that no float holds, NaN.

    Example:
        >>> object_in(b'{"step": 1}')
        {'step': 1}
    """
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        kind = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(found), "a number")
        raise ValueError(f"it is {kind}, and no object")
    return found


def read_object(file: Path, way_out: str) -> dict[str, Any]:
    """The JSON object that a file holds.

    Args:
        file: as a run wrote it.
        way_out: the sentence after the one that says what is wrong.

    Raises:
        UsageError: it cannot be read, or is none; naming the file.
    """
    try:
        return object_in(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}. {way_out}") from error
    except ValueError as error:
        raise UsageError(f"{str(file)!r} is not as a run writes it: {error}. {way_out}") from error


def rows_in(file: Path, needed: Sequence[str] = ()) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a file that a run writes line by line, none where it is not there.

    Args:
        file: an object a line, with the step and numbers, or null where there is none.
        needed: what a row has besides the step.

    Returns:
        The rows, and whether a line follows that a kill has left half written.

    Raises:
        UsageError: the file cannot be read, or a line is not one that a run wrote, nor the beginning of one.
    """
    try:
        *lines, last = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}. Move it away.") from error
    rows = [_row(file, number, line, needed) for number, line in enumerate(lines, 1)]
    if last == b"":
        return rows, False
    if b"}" not in last and last.isascii() and last[: len(_BEGINNING)] == _BEGINNING[: len(last)]:
        return rows, True
    return [*rows, _row(file, len(lines) + 1, last, needed)], False


def _row(file: Path, number: int, line: bytes, needed: Sequence[str]) -> dict[str, Any]:
    try:
        row = object_in(line)
        for name in ("step", *needed):
            if name not in row:
                raise ValueError(f"it has no '{name}'")
        for name, value in row.items():
            if must := must_be(int if name == "step" else float | None, value):
                raise ValueError(f"'{name}' must be {must}, and is {shown(value)}")
    except ValueError as error:
        raise UsageError(
            f"{file}, line {number} is no row of a run: {error}. Take it out: the run goes on without that row."
        ) from error
    return row


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _whole(text: str) -> int:
    _finite(text)
    return int(text)
