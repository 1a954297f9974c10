"""JSONL files: one JSON object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from upweight.tasks.layouts import BadRow

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def jsonl_rows(path: Path) -> Iterator[tuple[str, object]]:
    """The rows of a file in UTF-8. A byte order mark, CRLF line ends and blank lines are fine.

    Args:
        path: the file.

    Yields:
        (file:line, the line's value); a `BadRow` for a line that is no JSON, with its cause chained.

    Raises:
        OSError: the file cannot be read.
    """
    # Split at newline bytes alone: str.splitlines would cut inside strings at U+2028 and its like.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            raw = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if raw.strip():
                yield f"{path}:{number}", _parse(raw)


def _parse(raw: bytes) -> object:
    """The value on a line, or a BadRow that says why there is none."""
    try:
        return json.loads(raw.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except BadRow as reason:
        return reason
    except UnicodeDecodeError as error:
        return _because(f"invalid UTF-8 at byte {error.start + 1} of the line", error)
    except json.JSONDecodeError as error:
        return _because(f"not valid JSON: {error.msg} at character {error.pos + 1} of the line", error)
    except RecursionError as error:
        return _because("not usable JSON: nested too deeply", error)
    except ValueError as error:  # an integer beyond Python's limit on digits
        return _because(f"not usable JSON: {error}", error)


def _because(reason: str, cause: Exception) -> BadRow:
    bad = BadRow(reason)
    bad.__cause__ = cause
    return bad


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow(f"{name} is not valid JSON; write null or leave the column out")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise BadRow(f"the number {digits[:40]} is out of range")
    return value
