"""Numbers, constants and functions by name, worked out exactly where that can be done."""

import math
from collections.abc import Callable
from fractions import Fraction

from upweight.rewards.maths.forms import Form, TooLarge, Undefined, Unreadable, atom, divide, number, power

LONGEST_LITERAL = 500
"""Digits of a number. Below Python's lowest limit on digits, so no setting of it makes reading raise."""

LARGEST_FACTORIAL = 1_000

_FUNCTION_NAMES = (
    "sin cos tan sec csc cot arcsin arccos arctan asin acos atan sinh cosh tanh log ln lg exp sqrt abs gcd lcm min max "
    "floor ceil"
)
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
SAME = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}

_GREEK_NAMES = (
    "alpha beta gamma delta epsilon varepsilon theta vartheta lambda mu nu xi rho sigma tau phi varphi chi psi omega "
    "Gamma Delta Theta Lambda Sigma Phi Psi Omega ell zeta eta kappa"
)
GREEK = frozenset(_GREEK_NAMES.split())


def literal(text: str) -> Form:
    """A number as it is written."""
    digits = text.replace("{,}", "").replace(",", "")
    if len(digits) > LONGEST_LITERAL:
        raise TooLarge("a number of too many digits")
    return number(Fraction(digits))


def repeating_decimal(whole: str, fixed: str, period: str) -> Form:
    r"""0.\overline{3}: the digits in the period without end.

    Example:
        >>> repeating_decimal("0", "1", "6").rational
        Fraction(1, 6)
    """
    if len(whole + fixed + period) > LONGEST_LITERAL:
        raise TooLarge("a number of too many digits")
    before = int((whole + fixed) or "0")
    every = 10 ** len(fixed) * (10 ** len(period) - 1)
    return number(Fraction(int(whole + fixed + period) - before, every))


def constant(name: str) -> Form:
    """pi, e, i, or a letter."""
    if name == "i":
        return atom("i")
    return atom("const", name) if name in ("e", "pi") else atom("var", name)


def _whole(form: Form, largest: int) -> int | None:
    value = form.rational
    if value is None:
        return None
    if value.denominator != 1 or value < 0:
        raise Unreadable("not a whole number")
    if value > largest:
        raise TooLarge("a factorial of too many digits")
    return int(value)


def factorial(form: Form) -> Form:
    """n!, worked out where n is a number."""
    n = _whole(form, LARGEST_FACTORIAL)
    return atom("fn", "factorial", form) if n is None else number(math.factorial(n))


def binomial(top: Form, bottom: Form) -> Form:
    """n over k, worked out where both are numbers."""
    n, k = _whole(top, LARGEST_FACTORIAL), _whole(bottom, LARGEST_FACTORIAL)
    return atom("fn", "binomial", top, bottom) if n is None or k is None else number(math.comb(n, k))


def logarithm(base: Form, of: Form) -> Form:
    """A logarithm to a base: worked out where it is whole, else a quotient of natural ones."""
    b, value = base.rational, of.rational
    if base == atom("const", "e"):
        return apply_function("ln", [of])
    if b is not None and (b <= 0 or b == 1):
        raise Undefined("a logarithm to that base")
    if b is not None and value is not None:
        if value <= 0:
            raise Undefined("a logarithm of what is not positive")
        found = _whole_logarithm(b, value)
        if found is not None:
            return number(found)
    return divide(apply_function("ln", [of]), apply_function("ln", [base]))


def _whole_logarithm(base: Fraction, value: Fraction) -> int | None:
    if base < 1:
        below = _whole_logarithm(1 / base, value)
        return None if below is None else -below
    sign, rest = (1, value) if value >= 1 else (-1, 1 / value)
    for exponent in range(2_000):
        if rest == 1:
            return sign * exponent
        if rest < 1:
            return None
        rest /= base
    return None


def _rational_function(name: str, values: list[Fraction]) -> Fraction | None:
    table: dict[str, Callable[[list[Fraction]], Fraction]] = {
        "abs": lambda v: abs(v[0]),
        "floor": lambda v: Fraction(math.floor(v[0])),
        "ceil": lambda v: Fraction(math.ceil(v[0])),
        "min": min,
        "max": max,
    }
    if name in table:
        return table[name](values)
    if name in ("gcd", "lcm") and all(v.denominator == 1 for v in values):
        return Fraction((math.gcd if name == "gcd" else math.lcm)(*(int(v) for v in values)))
    return None


def apply_function(name: str, parts: list[Form]) -> Form:
    """A function of exact forms: worked out where the result is rational, else a letter of its own."""
    values = [part.rational for part in parts]
    known = [v for v in values if v is not None]
    if len(known) == len(values):
        value = _rational_function(name, known)
        if value is not None:
            return number(value)
    if name not in ("gcd", "lcm", "min", "max") and len(parts) != 1:
        raise Unreadable(f"{name} of several values")
    of = parts[0]
    if name == "exp":
        return power(atom("const", "e"), of)
    if name in ("ln", "log", "lg"):
        if of == number(1):
            return number(0)
        if not of.num:
            raise Undefined("a logarithm of 0")
        if name == "ln" and of == atom("const", "e"):
            return number(1)
    if name in ("sin", "tan") and not of.num:
        return number(0)
    if name == "cos" and not of.num:
        return number(1)
    return atom("fn", name, *parts)
