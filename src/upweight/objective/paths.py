"""Paths as somebody has typed them. Imports no torch."""

import contextlib
from pathlib import Path

from upweight.objective.errors import UsageError, shown


def given_path(text: str | Path, what: str) -> Path:
    """A path that the system can look at, whether something is there or not.

    Args:
        text: as it was given; `~` and `~somebody` stand for a home folder.
        what: heads the sentence where it is none: `--model`.

    Raises:
        UsageError: a home that nobody has, or a path that cannot be looked at: a name that is too long, links that go
            round in a circle, a folder that may not be entered.

    Example:
        >>> given_path("runs/mine", "--resume").name
        'mine'
    """
    try:
        path = Path(text).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # whether it has to be there, the caller says
            path.stat()
    except RuntimeError:
        raise _unusable(text, what, f"{Path(text).parts[0]!r} is nobody's home folder here") from None
    except OSError as error:
        raise _unusable(text, what, error.strerror or str(error)) from None
    except ValueError as error:  # a character that no path may have
        raise _unusable(text, what, str(error)) from None
    return path


def _unusable(text: str | Path, what: str, why: str) -> UsageError:
    return UsageError(f"{what} {shown(str(text))} cannot be used: {why}. Check the path.")
