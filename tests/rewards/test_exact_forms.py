"""Exact arithmetic held against sympy, on expressions drawn at random and on those where branches matter."""

import cmath
import itertools
import random

import pytest
import sympy

from upweight.rewards.maths.forms import Unreadable, same_value
from upweight.rewards.maths.numeric import value_at
from upweight.rewards.maths.read import read_expression
from upweight.rewards.maths.symbolic import equal_forms, to_sympy

X, Y = sympy.symbols("x y", real=True)
AT = {X: sympy.Rational(7, 5), Y: sympy.Rational(11, 7)}

LEAVES = {
    "2": sympy.Integer(2),
    "x": X,
    "y": Y,
    "0.5": sympy.Rational(1, 2),
    "i": sympy.I,
    "e": sympy.E,
    r"\pi": sympy.pi,
    r"\sqrt{6}": sympy.sqrt(6),
    r"\frac23": sympy.Rational(2, 3),
    r"\sqrt[3]{2}": sympy.cbrt(2),
}


def draw(random_: random.Random, depth: int) -> tuple[str, sympy.Expr]:
    """An expression as LaTeX and as sympy has it, built side by side."""
    if depth == 0 or random_.random() < 0.2:
        return random_.choice(list(LEAVES.items()))
    (a, left), (b, right) = draw(random_, depth - 1), draw(random_, depth - 1)
    n = random_.choice([2, 3, -1])
    return random_.choice(
        [
            (f"({a}+{b})", left + right),
            (f"({a}-{b})", left - right),
            (f"({a})({b})", left * right),
            (f"\\frac{{{a}}}{{{b}}}", left / right),
            (f"({a})^{{{n}}}", left**n),
            (f"\\sqrt{{{a}}}", sympy.sqrt(left)),
            (f"-({a})", -left),
        ]
    )


def number(expression: sympy.Expr) -> complex:
    return complex(expression.subs(AT).evalf(25))


def test_what_is_read_has_the_value_that_sympy_gives_it_and_equal_ones_are_found_equal() -> None:
    random_ = random.Random(6)
    by_value: dict[tuple[float, float], list[str]] = {}
    read = 0
    for _ in range(500):
        text, expected = draw(random_, 3)
        if expected.has(sympy.zoo, sympy.nan, sympy.oo):
            continue
        try:
            form = read_expression(text)
        except Unreadable:
            continue
        read += 1
        value = number(expected)
        assert cmath.isclose(number(to_sympy(form)), value, rel_tol=1e-12, abs_tol=1e-12), text
        by_value.setdefault((round(value.real, 9), round(value.imag, 9)), []).append(text)
    assert read > 450
    for same in by_value.values():
        for text in same[1:]:
            assert same_value(read_expression(same[0]), read_expression(text)) is not False, (same[0], text)
    firsts = [read_expression(same[0]) for same in by_value.values()]
    assert not any(same_value(a, b) for a, b in itertools.pairwise(firsts))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt{-x}", r"i\sqrt{x}"),
        (r"\sqrt{xy}", r"\sqrt{x}\sqrt{y}"),
        (r"\sqrt{x^2}", "x"),
        (r"\sqrt{\frac{1}{x}}", r"\frac{1}{\sqrt{x}}"),
        (r"\sqrt{-i}", r"i\sqrt{i}"),
        (r"\ln(x^2)", r"2\ln x"),
        (r"\log 5", r"\ln 5"),
    ],
)
def test_rules_that_hold_for_positive_numbers_alone_are_not_used(a: str, b: str) -> None:
    left, right = read_expression(a), read_expression(b)
    assert same_value(left, right) is not True
    assert not equal_forms(left, right)


@pytest.mark.parametrize(
    "text", [r"\sin(x)+\cos(y)", r"\ln 3\cdot e^x", r"2^{x}-\sqrt{x+1}", r"\arctan(\sqrt{2})+|y-3|"]
)
def test_floating_point_and_sympy_give_functions_the_same_value(text: str) -> None:
    form = read_expression(text)
    found = value_at(form)
    assert found is not None
    at = {symbol: sympy.Float(value_at(read_expression(str(symbol)))[0].real, 20) for symbol in (X, Y)}  # type: ignore[index]
    assert cmath.isclose(complex(to_sympy(form).subs(at).evalf(20)), found[0], rel_tol=1e-9)
