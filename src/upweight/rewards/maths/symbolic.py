"""What exact arithmetic leaves open, asked of sympy and of math-verify. Runs in a worker that can be killed.

Both libraries may loop, recurse or take all memory on what a model writes, so nothing of this is called in the
process that trains.
"""

import contextlib
import functools
import logging
from fractions import Fraction
from typing import Any

from upweight.rewards.maths.answers import read_answer
from upweight.rewards.maths.compare import same_answer
from upweight.rewards.maths.forms import Atom, Form, Poly


def compare_texts(answer: str, gold: str) -> bool | None:
    """Whether two answers are equal: ours where both can be read, math-verify's where the gold answer is beyond us.

    Args:
        answer: the text that was marked as the answer.
        gold: the gold answer.

    Returns:
        True where equality was proved, False where it was not, None where nobody can read the gold answer.
    """
    left, right = read_answer(answer), read_answer(gold)
    if right.answer is not None:
        return same_answer(left, right, decide=equal_forms) is True
    return math_verify_texts(answer, gold)


def warm_up() -> None:
    """Make sympy and math-verify build what they build once, before a comparison with a deadline needs it."""
    for gold in (r"\frac{x}{2}+\sin(x)", r"\int_0^1 x dx"):
        math_verify_texts(r"\sqrt{2}", gold)
    compare_texts(r"\sqrt{3+2\sqrt{2}}+\sin^2(x)", r"1+\sqrt{2}+1-\cos^2(x)")


def equal_forms(a: Form, b: Form) -> bool:
    """Whether sympy proves that two forms are equal; letters stand for real numbers."""
    sympy = _sympy()
    difference = to_sympy(a) - to_sympy(b)
    for simplify in (sympy.expand, sympy.trigsimp, sympy.radsimp, sympy.simplify, _denested):
        with contextlib.suppress(AttributeError, NotImplementedError, TypeError, ValueError):
            if simplify(difference) == 0:
                return True
    if difference.free_symbols:
        return False
    return difference.equals(0) is True


def math_verify_texts(answer: str, gold: str) -> bool | None:
    """What math-verify says of two texts, with its own clocks off: this process has a deadline from outside."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its clocks are off
    expected = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
    if not any(not isinstance(part, str) for part in expected):
        return None
    given = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
    return bool(verify(expected, given, strict=True, timeout_seconds=None))


def to_sympy(form: Form) -> Any:
    """The form as a sympy expression, built part by part: no text is evaluated."""
    return _poly(form.num) / _poly(form.den)


def _denested(expression: Any) -> Any:
    sympy = _sympy()
    return sympy.nsimplify(sympy.sqrtdenest(sympy.expand(expression)))


def _poly(poly: Poly) -> Any:
    sympy = _sympy()
    return sympy.Add(
        *(
            sympy.Mul(_rational(c), *(sympy.Pow(_atom(a), _rational(e)) for a, e in monomial))
            for monomial, c in poly.items()
        )
    )


def _rational(value: Fraction) -> Any:
    return _sympy().Rational(value.numerator, value.denominator)


def _atom(atom: Atom) -> Any:
    sympy = _sympy()
    kind = atom[0]
    if kind == "prime":
        return sympy.Integer(atom[1])
    if kind == "const":
        return sympy.pi if atom[1] == "pi" else sympy.E
    if kind == "i":
        return sympy.I
    if kind in ("var", "base"):
        return sympy.Symbol("_".join(atom[1:]), real=True)
    if kind == "power":
        return to_sympy(atom[1])
    name, parts = atom[1], [to_sympy(part) for part in atom[2:]]
    table = {
        "arcsin": sympy.asin,
        "arccos": sympy.acos,
        "arctan": sympy.atan,
        "ln": sympy.log,
        "lg": lambda x: sympy.log(x) / sympy.log(10),
        "abs": sympy.Abs,
        "floor": sympy.floor,
        "ceil": sympy.ceiling,
        "pow": sympy.Pow,
        "min": sympy.Min,
        "max": sympy.Max,
        "factorial": sympy.factorial,
        "binomial": sympy.binomial,
        "log": sympy.Function("log_without_base"),
    }
    return (table[name] if name in table else getattr(sympy, name))(*parts)


@functools.cache
def _sympy() -> Any:
    import sympy

    return sympy
