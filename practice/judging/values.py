"""Values on their way from the person's process to the judge's: plain, bounded, readable on both sides."""

import numbers
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

MOST_ITEMS = 20_000
MOST_TEXT = 5_000
MOST_LEVELS = 8


@dataclass(frozen=True)
class Foreign:
    """A value that is neither number, text, list, tuple nor dict; `items` is what an array or a tensor holds."""

    kind: str
    text: str
    items: object = None


def encode(value: object) -> object:
    """The value as JSON can carry it; a list becomes ["list", [..]], everything else is tagged likewise.

    Example:
        >>> decode(encode([1.5, None, (True, "x")]))
        [1.5, None, (True, 'x')]
    """
    return _encode(value, 0, [MOST_ITEMS])


def _encode(value: object, level: int, room: list[int]) -> object:
    room[0] -= 1
    if room[0] < 0 or level > MOST_LEVELS:
        return ["foreign", type(value).__name__, "more than the judge looks at", None]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return ["text", value[:MOST_TEXT]]
    if isinstance(value, int) and value.bit_length() > 1_000:
        return ["foreign", "int", f"a whole number of {value.bit_length()} bits", None]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if type(value) in (list, tuple):
        return [type(value).__name__, [_encode(item, level + 1, room) for item in value]]  # type: ignore[attr-defined]
    if isinstance(value, dict):
        pairs = [[_encode(key, level + 1, room), _encode(item, level + 1, room)] for key, item in value.items()]
        return ["dict", pairs]
    return _encode_foreign(value, level, room)


def _encode_foreign(value: object, level: int, room: list[int]) -> object:
    kind, items = type(value).__name__, None
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        kind = f"{kind} of shape {tuple(value.shape)}"
        items = _encode(value.tolist(), level + 1, room)
    # Not repr: what a person's own class shows may be endless, or raise.
    return ["foreign", kind, reprlib.repr(value)[:MOST_TEXT], items]


def decode(value: object) -> object:
    """What `encode` was given, with `Foreign` for what has no plain form."""
    if not isinstance(value, list):
        return value
    tag, content = value[0], value[1]
    if tag == "text":
        return content
    if tag == "dict":
        return {decode(key): decode(item) for key, item in content}
    if tag == "foreign":
        return Foreign(content, value[2], None if value[3] is None else decode(value[3]))
    items = [decode(item) for item in content]
    return tuple(items) if tag == "tuple" else items


def show(value: object) -> str:
    """A value for a person: ten digits, long lists cut short.

    Example:
        >>> show({"rewards": [1.0, 0.1 + 0.2], "lengths": [7] * 50})
        '{rewards: [1.0, 0.3], lengths: [7, 7, 7, ... 50 items]}'
    """
    if isinstance(value, Foreign):
        return value.text if value.items is None else f"{value.text} ({value.kind})"
    if isinstance(value, float):
        return str(float(format(value, ".10g")))
    if isinstance(value, str):
        return repr(value if len(value) <= 200 else value[:200] + "...")
    if isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return f"{opening}{_show_items(value)}{closing}"
    if isinstance(value, dict):
        return "{" + show_inputs(value, ": ") + "}"
    return repr(value)


def _show_items(items: Sequence[object]) -> str:
    if len(items) <= 12:
        return ", ".join(map(show, items))
    return ", ".join(map(show, items[:3])) + f", ... {len(items)} items"


def show_inputs(inputs: dict[str, object], link: str = "=") -> str:
    """Named values as they stand in a call."""
    return ", ".join(f"{name}{link}{show(value)}" for name, value in inputs.items())
