"""A task from a JSONL file: one JSON object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from upweight.objective.errors import UsageError
from upweight.tasks.prompt import Prompt
from upweight.tasks.rows import BadRow, PromptsTask, collect_prompts

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonlTask(PromptsTask):
    """A task from a file with a JSON object a line, in UTF-8: `{"prompt": ..., "answer": ..., ...}`.

    Rows are those of `RowsTask`. A byte order mark, CRLF line ends and blank lines are fine. A row's id is its index
    among the rows of the file, so lines with the same words stay two rows.

    Raises:
        UsageError: the file is not there or has no rows; or lines cannot be used: the first five are named as
            file:line with the reason, all are counted, and the error is chained to the first cause.
    """

    def __init__(self, path: str | Path, held_out_path: str | Path | None = None) -> None:
        """Read and validate the files.

        Args:
            path: training rows.
            held_out_path: rows for evaluation, in a file of their own; None = none.
        """
        super().__init__(
            Path(path).stem,
            read_jsonl(path),
            () if held_out_path is None else read_jsonl(held_out_path),
        )


def read_jsonl(path: str | Path) -> list[Prompt]:
    """Read a file of rows; see `JsonlTask`.

    Args:
        path: the file.

    Returns:
        One prompt per line that is not blank, in order.

    Raises:
        UsageError: as `JsonlTask` says.
    """
    try:
        return collect_prompts(_rows(Path(path)), f"The data file {path}")
    except OSError as error:
        raise UsageError(f"The data file {path} cannot be read: {error.strerror}.") from error


def _rows(path: Path) -> Iterator[tuple[str, object]]:
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
