"""Forms in floating point: only ever to say that two of them differ, and by far; never that they are equal."""

import cmath
import math
import zlib
from collections.abc import Callable

from upweight.rewards.maths.forms import Atom, Form, Poly

FAR = 1e-4
"""Two values that differ by this share of the largest term in them are not one value badly rounded."""

_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z),
    "cot": lambda z: 1 / cmath.tan(z),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "exp": cmath.exp,
    "ln": cmath.log,
    "abs": lambda z: complex(abs(z)),
}


def differ(a: Form, b: Form) -> bool:
    """Whether two forms have different values for sure, at one point where both can be worked out in floating point.

    Example:
        >>> from upweight.rewards.maths.read import read_expression
        >>> differ(read_expression("sin(x)"), read_expression("cos(x)"))
        True
    """
    left, right = value_at(a), value_at(b)
    if left is None or right is None:
        return False
    return abs(left[0] - right[0]) > FAR * max(left[1], right[1])


def value_at(form: Form) -> tuple[complex, float] | None:
    """Its value at a fixed point, and the size of the largest term on the way; None where it cannot be worked out."""
    try:
        top, largest = _poly(form.num)
        bottom, below = _poly(form.den)
    except (ArithmeticError, ValueError, _UnknownError):
        return None
    if abs(bottom) < FAR * below:
        return None
    value, size = top / bottom, largest / abs(bottom)
    return (value, size) if cmath.isfinite(value) and math.isfinite(size) else None


class _UnknownError(Exception):
    pass


def _poly(poly: Poly) -> tuple[complex, float]:
    total, largest = 0j, 0.0
    for monomial, factor in poly.items():
        term, size = complex(float(factor)), 1.0
        for atom, exponent in monomial:
            value, rounding = _atom(atom)
            term *= value ** float(exponent)
            size = max(size, rounding)
        total += term
        largest = max(largest, abs(term) * size)
    return total, largest


def _atom(atom: Atom) -> tuple[complex, float]:
    """Value, and by how much its own rounding is larger than usual."""
    kind = atom[0]
    if kind == "prime":
        return complex(atom[1]), 1.0
    if kind == "const":
        return complex(math.pi if atom[1] == "pi" else math.e), 1.0
    if kind == "i":
        return 1j, 1.0
    if kind in ("var", "base"):
        name = "_".join(atom[1:])
        return complex(0.31 + zlib.crc32(name.encode()) % 1_000 / 900), 1.0
    inner = value_at(atom[1] if kind == "power" else atom[2])
    if inner is None:
        raise _UnknownError
    value, size = inner
    rounding = max(1.0, size / abs(value)) if value else 1e9
    if kind == "power":
        return value, rounding
    if atom[1] == "pow":
        exponent = value_at(atom[3])
        if exponent is None:
            raise _UnknownError
        return value ** exponent[0], rounding
    if atom[1] not in _FUNCTIONS or abs(value) > 1e3:
        raise _UnknownError
    return _FUNCTIONS[atom[1]](value), rounding
