"""The one sentence a wrong call gets: what, which value, the way out."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """The call was wrong. The command line prints the sentence and leaves with exit code 2."""


def bad_parameter(name: str, owner: str, must: str, got: object, way_out: str = "") -> UsageError:
    """Build the error for a bad parameter.

    Args:
        name: the parameter, as the caller spells it (`clip_high`).
        owner: the function, class or command it belongs to (`grpo_loss`).
        must: what it has to be, completing "must be ..." or "must ..." (`at least 0`).
        got: the offending value; shown with `repr`, cut at 80 characters.
        way_out: an optional second sentence that says what to do instead.

    Example:
        >>> print(bad_parameter("clip", "grpo_loss", "at least 0", -0.1))
        The 'clip' parameter of grpo_loss must be at least 0. Got -0.1 instead.
    """
    sentence = f"The '{name}' parameter of {owner} must be {must}. Got {shown(got)} instead."
    return UsageError(f"{sentence} {way_out}" if way_out else sentence)


def shown(value: object) -> str:
    """A value in a message: its `repr`, cut at 80 characters.

    Example:
        >>> len(shown("x" * 1000))
        80
    """
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None where none is near.

    Example:
        >>> nearest("clip_hihg", ["clip", "clip_high"])
        'clip_high'
    """
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)
