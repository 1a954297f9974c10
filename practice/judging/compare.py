"""Whether a value is the right one, and if not, where and why."""

import math

from judging.case import Case
from judging.values import Foreign, show


def fault(got: object, case: Case) -> str | None:
    """One sentence about the first difference from the case's right value; None where there is none.

    Example:
        >>> fault([0.5, 0.25], Case(name="", inputs={}, right=[0.5, 0.125]))
        'item 1 is 0.25, right is 0.125'
    """
    found = _difference(got, case.right, "the value", case)
    if found is None:
        return None
    for mistake, value in case.traps.items():
        if _difference(got, value, "", case) is None:
            return f"{found}; {mistake}"
    return found


def _difference(got: object, right: object, where: str, case: Case) -> str | None:
    if isinstance(right, list | tuple):
        return _list_difference(got, right, where, case)
    if isinstance(right, dict):
        if not isinstance(got, dict) or set(got) != set(right):
            return f"{where} is {show(got)}, right is {show(right)}"
        found = (_difference(got[key], right[key], str(key), case) for key in right)
        return next((line for line in found if line), None)
    if isinstance(right, int | float) and not isinstance(right, bool):
        return _number_difference(got, right, where, case)
    if type(got) is type(right) and got == right:
        return None
    if got is None:
        return f"{where} is None where {show(right)} is right: is a return missing?"
    if isinstance(right, bool) and isinstance(got, int | float):
        return f"{where} is {show(got)}, and must be True or False: {show(right)} is right"
    return f"{where} is {show(got)}, right is {show(right)}"


def _list_difference(got: object, right: list[object] | tuple[object, ...], where: str, case: Case) -> str | None:
    items = got.items if isinstance(got, Foreign) else got
    if not isinstance(items, list | tuple):
        missing = " Is a return missing?" if got is None else ""
        return f"{where} must be a list of {len(right)}, and is {_what(got)}.{missing}"
    if len(items) != len(right):
        return f"{where} has {len(items)} items, and {len(right)} are right"
    inside = "item " if where == "the value" else f"{where}, item "
    found = (
        _difference(one, other, f"{inside}{i}", case) for i, (one, other) in enumerate(zip(items, right, strict=True))
    )
    return next((line for line in found if line), None)


def _number_difference(got: object, right: float, where: str, case: Case) -> str | None:
    if isinstance(got, bool) or not isinstance(got, int | float):
        way_out = ""
        if isinstance(got, Foreign) and isinstance(got.items, int | float):
            way_out = " Turn it into one with .item()."
        if got is None:
            way_out = " Is a return missing?"
        return f"{where} must be a number, and is {_what(got)}.{way_out}"
    if math.isnan(right) and math.isnan(got):
        return None
    if math.isnan(got):
        return f"{where} is NaN, right is {show(right)}"
    if math.isclose(got, right, rel_tol=case.rel, abs_tol=case.abs):
        return None
    short = show(got) != show(right)
    return f"{where} is {show(got) if short else repr(got)}, right is {show(right) if short else repr(right)}"


def _what(got: object) -> str:
    if got is None:
        return "None"
    if isinstance(got, Foreign):
        return f"of type {got.kind}: {got.text}"
    return f"of type {type(got).__name__}: {show(got)}"
