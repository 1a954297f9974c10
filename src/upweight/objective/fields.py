"""Whether a value fits a field's annotation, for configuration that no type checker has seen. Imports no torch."""

import math
import types
from typing import Literal, Union, get_args, get_origin


def must_be(hint: object, value: object) -> str | None:
    """What a field demands of its value, where the value does not meet it.

    Args:
        hint: a resolved annotation: `bool`, `int`, `float`, `str`, a `Literal` of strings, or a union of them and None.
        value: what was given.

    Returns:
        None where the value fits; else the rest of a sentence that starts with "must be". A whole number fits
        `float`; true and false fit neither number; infinity and NaN fit nothing.

    Raises:
        TypeError: the annotation is of no kind that a configuration field may have.

    Example:
        >>> must_be(float | None, "high")
        'a number, or none'
        >>> must_be(float, 1) is None
        True
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        optional = types.NoneType in get_args(hint)
        members = [member for member in get_args(hint) if member is not types.NoneType]
        if (value is None and optional) or any(must_be(member, value) is None for member in members):
            return None
        return " or ".join(str(must_be(member, value)) for member in members) + (", or none" if optional else "")
    if origin is Literal:
        choices = get_args(hint)
        return None if isinstance(value, str) and value in choices else f"one of {', '.join(choices)}"
    if hint is bool:
        return None if isinstance(value, bool) else "true or false"
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "a number"
        return None if _is_finite(value) else "a finite number"
    if hint is str:
        return None if isinstance(value, str) else "a string"
    raise TypeError(f"A configuration field cannot be of type {hint!r}.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False
