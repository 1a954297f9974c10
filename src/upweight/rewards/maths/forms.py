"""Exact arithmetic: quotients of polynomials over the rationals, in letters, radicals, pi, e, i and named functions.

A radical of a rational number is a product of primes to powers in [0, 1). Distinct products of that kind are linearly
independent over the rationals (Besicovitch, 1940), so two sums of radicals are equal exactly where their terms are.
With letters, pi and e as independent letters beside them, the forms are a field, and P1/Q1 = P2/Q2 exactly where
P1 Q2 - P2 Q1 has no term left. Only where a named function (sin, ln, a root of a sum) takes part can two different
forms have the same value; such a pair is undecided here.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

MOST_BITS = 20_000
"""Of a number's numerator or denominator."""

MOST_TERMS = 400
"""Of a polynomial."""

MOST_WORK = 6_000
"""Products of terms that one judgement may take, those of large numbers counted several times."""

LARGEST_POWER_OF_A_SUM = 64

LARGEST_TRIAL = 1_000
"""Primes up to it are taken out of a radicand, so a radicand below its square is factored fully."""

Atom = tuple[Any, ...]
"""("prime", p), ("const", "pi" | "e"), ("i",), ("var", name), ("base", digits, base), ("power", Form) and
("fn", name, Form, ...)."""

Monomial = frozenset[tuple[Atom, Fraction]]
Poly = Mapping[Monomial, Fraction]

UNIT: Monomial = frozenset()
ONE: Poly = {UNIT: Fraction(1)}


class Unreadable(Exception):
    """The text is no answer that this grammar knows."""


class Undefined(Unreadable):
    """It has no value: a division by zero, an infinity in a sum."""


class TooLarge(Unreadable):
    """It would take too long to work out."""


class _Spent(threading.local):
    work = 0


_SPENT = _Spent()


@contextmanager
def work_bounded() -> Iterator[None]:
    """Count the work of one judgement from zero; beyond `MOST_WORK` the arithmetic raises `TooLarge`."""
    _SPENT.work = 0
    try:
        yield
    finally:
        _SPENT.work = 0


def _spend(work: int) -> None:
    _SPENT.work += work
    if _SPENT.work > MOST_WORK:
        raise TooLarge("too much to work out")


@dataclass(frozen=True)
class Form:
    """A quotient of two polynomials."""

    num: Poly
    """Numerator; no term = zero."""

    den: Poly
    """Denominator, never zero; `ONE` wherever it has a single term, which moves up with negative powers."""

    @cached_property
    def _key(self) -> tuple[frozenset[tuple[Monomial, Fraction]], ...]:
        return frozenset(self.num.items()), frozenset(self.den.items())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self._key == other._key

    @property
    def rational(self) -> Fraction | None:
        """Its value where it is a rational number."""
        if self.den != ONE or len(self.num) > 1 or (self.num and UNIT not in self.num):
            return None
        return self.num.get(UNIT, Fraction(0))

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        """What stands in it, also inside functions."""
        found: set[Atom] = set()
        for poly in (self.num, self.den):
            for monomial in poly:
                for atom, _ in monomial:
                    found.add(atom)
                    found.update(*(part.atoms for part in atom[1:] if isinstance(part, Form)))
        return frozenset(found)

    @property
    def decidable(self) -> bool:
        """Whether a form with other terms has another value for sure."""
        return not any(atom[0] in ("fn", "power") for atom in self.atoms)


def number(value: int | Fraction) -> Form:
    """A rational number."""
    return Form({UNIT: _bounded(Fraction(value))} if value else {}, ONE)


def atom(*parts: Any) -> Form:
    """A letter, a constant or a function."""
    return Form({frozenset({(parts, Fraction(1))}): Fraction(1)}, ONE)


def add(a: Form, b: Form) -> Form:
    """a + b."""
    if a.den == b.den:
        return _form(_sum(a.num, b.num), a.den)
    return _form(_sum(_product(a.num, b.den), _product(b.num, a.den)), _product(a.den, b.den))


def negate(a: Form) -> Form:
    """-a."""
    return Form({m: -c for m, c in a.num.items()}, a.den)


def multiply(a: Form, b: Form) -> Form:
    """a b."""
    return _form(_product(a.num, b.num), _product(a.den, b.den))


def divide(a: Form, b: Form) -> Form:
    """a / b."""
    if not b.num:
        raise Undefined("a division by zero")
    return _form(_product(a.num, b.den), _product(a.den, b.num))


def power(base: Form, exponent: Form) -> Form:
    """base ** exponent."""
    by = exponent.rational
    if by is not None and by.denominator == 1:
        return _whole_power(base, int(by))
    if by is not None:
        return root(base, by)
    if base == atom("const", "e"):
        return atom("fn", "exp", exponent)
    if base.rational in (0, 1):
        raise Undefined("0 or 1 to a power that is not a number") if base.rational == 0 else Unreadable("1 to a letter")
    return atom("fn", "pow", base, exponent)


def root(base: Form, by: Fraction, *, real: bool = False) -> Form:
    """base ** by for a fraction; with `real`, an odd root of a negative number is the real one."""
    if not base.num:
        if by < 0:
            raise Undefined("a division by zero")
        return base
    if base.den != ONE:
        return _opaque_root(base, by)
    if len(base.num) > 1:
        content = _content(base.num.values())
        inner = Form({m: c / content for m, c in base.num.items()}, ONE)
        return multiply(_root_of_number(content, by), _opaque_root(inner, by))
    ((monomial, factor),) = base.num.items()
    outer = _root_of_number(abs(factor), by)
    positive = {part: exponent * by for part, exponent in monomial if part[0] in ("prime", "const")}
    outer = multiply(outer, Form(_settle([(positive, Fraction(1))]), ONE))
    rest = frozenset((part, exponent) for part, exponent in monomial if part[0] not in ("prime", "const"))
    if rest:
        # The root of a product is the product of the roots for positive factors only: sign and letters stay together.
        return multiply(outer, _opaque_root(Form({rest: Fraction(1 if factor > 0 else -1)}, ONE), by))
    return multiply(outer, _root_of_minus_one(by, real=real)) if factor < 0 else outer


def _opaque_root(base: Form, by: Fraction) -> Form:
    return Form(_settle([({("power", base): by}, Fraction(1))]), ONE)


def same_value(a: Form, b: Form) -> bool | None:
    """Whether two forms are equal; None = undecided here."""
    if a == b:
        return True
    try:
        difference = _sum(_product(a.num, b.den), {m: -c for m, c in _product(b.num, a.den).items()})
    except TooLarge:
        return None
    if not difference:
        return True
    return False if a.decidable and b.decidable else None


def proportional(a: Form, b: Form) -> Fraction | None:
    """c where a = c b for a rational number c that is not 0; None where there is none, or a or b is 0."""
    if not a.num or not b.num:
        return None
    left, right = _product(a.num, b.den), _product(b.num, a.den)
    first = next(iter(left))
    if first not in right:
        return None
    factor = left[first] / right[first]
    return factor if left == {m: factor * c for m, c in right.items()} else None


def _form(num: Poly, den: Poly) -> Form:
    if not den:
        raise Undefined("a division by zero")
    if not num:
        return Form({}, ONE)
    if num == den:
        return Form(ONE, ONE)
    if len(den) == 1 and den != ONE:
        ((monomial, factor),) = den.items()
        inverse = _settle([({part: -e for part, e in monomial}, 1 / factor)])
        return Form(_product(num, inverse), ONE)
    return Form(num, den)


def _sum(a: Poly, b: Poly) -> Poly:
    _spend(1 + len(a) // 8)
    total = dict(a)
    for monomial, factor in b.items():
        value = total.get(monomial, Fraction(0)) + factor
        if value:
            total[monomial] = _bounded(value)
        else:
            total.pop(monomial, None)
    if len(total) > MOST_TERMS:
        raise TooLarge("a sum of too many terms")
    return total


def _product(a: Poly, b: Poly) -> Poly:
    if a == ONE:
        return b
    if b == ONE:
        return a
    _spend(len(a) * len(b))
    terms: list[tuple[dict[Atom, Fraction], Fraction]] = []
    for left, x in a.items():
        for right, y in b.items():
            exponents = dict(left)
            for part, exponent in right:
                exponents[part] = exponents.get(part, Fraction(0)) + exponent
            terms.append((exponents, _bounded(x * y)))
    return _settle(terms)


def _settle(terms: Iterable[tuple[dict[Atom, Fraction], Fraction]]) -> Poly:
    """Collect terms, with whole powers of primes, of i and of roots worked out."""
    total: dict[Monomial, Fraction] = {}
    roots: list[tuple[Poly, Poly]] = []
    for exponents, factor in terms:
        for part in [p for p, e in exponents.items() if p[0] in ("prime", "i", "power") and (e >= 1 or e < 0)]:
            exponent = exponents[part]
            if part[0] == "prime":
                whole = math.floor(exponent)
                if abs(whole) * part[1].bit_length() > MOST_BITS:
                    raise TooLarge("a number of too many digits")
                factor = _bounded(factor * Fraction(part[1]) ** whole)
                exponents[part] = exponent - whole
            elif part[0] == "i":
                factor = -factor if exponent % 4 in (2, 3) else factor
                exponents[part] = exponent % 2
            elif exponent >= 1 and part[1].den == ONE:
                whole = math.floor(exponent)
                exponents[part] = exponent - whole
                rest = frozenset((p, e) for p, e in exponents.items() if e)
                roots.append(({rest: factor}, _whole_power(part[1], whole).num))
                break
        else:
            monomial = frozenset((p, e) for p, e in exponents.items() if e)
            total[monomial] = total.get(monomial, Fraction(0)) + factor
    settled: Poly = {m: _bounded(c) for m, c in total.items() if c}
    for left_over, worked_out in roots:
        settled = _sum(settled, _product(left_over, worked_out))
    if len(settled) > MOST_TERMS:
        raise TooLarge("a sum of too many terms")
    return settled


def _whole_power(base: Form, by: int) -> Form:
    if by == 0:
        if not base.num:
            raise Undefined("0 to the power of 0")
        return number(1)
    if by < 0:
        return divide(number(1), _whole_power(base, -by))
    if len(base.num) <= 1 and base.den == ONE:
        if not base.num:
            return base
        ((monomial, factor),) = base.num.items()
        bits = max(factor.numerator.bit_length(), factor.denominator.bit_length())
        if (bits > 1 and bits * by > MOST_BITS) or by > 10**9:
            raise TooLarge("a power of too many digits")
        return Form(_settle([({p: e * by for p, e in monomial}, factor**by)]), ONE)
    if by > LARGEST_POWER_OF_A_SUM:
        raise TooLarge("too high a power of a sum")
    result = base
    for _ in range(by - 1):
        result = multiply(result, base)
    return result


def _root_of_number(value: Fraction, by: Fraction) -> Form:
    """A positive rational to a fraction, as primes to powers in [0, 1)."""
    exponents: dict[Atom, Fraction] = {}
    for part, sign in ((value.numerator, 1), (value.denominator, -1)):
        for prime, count in _factors(part, by.denominator).items():
            exponents[("prime", prime)] = exponents.get(("prime", prime), Fraction(0)) + sign * count * by
    return Form(_settle([(exponents, Fraction(1))]), ONE)


def _factors(value: int, degree: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for candidate in range(2, LARGEST_TRIAL + 1):
        if candidate * candidate > value:
            break
        while value % candidate == 0:
            value //= candidate
            found[candidate] = found.get(candidate, 0) + 1
    if value == 1:
        return found
    if value > LARGEST_TRIAL**2:
        whole = _whole_root(value, degree)
        if whole is None or whole > LARGEST_TRIAL**2:
            raise TooLarge("a radicand with too large a factor")
        found[whole] = found.get(whole, 0) + degree
        return found
    found[value] = found.get(value, 0) + 1
    return found


def _whole_root(value: int, degree: int) -> int | None:
    if degree > 64 or value.bit_length() > 2_000:
        return None
    low, high = 1, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < value else (low, middle)
    return low if low**degree == value else None


def _root_of_minus_one(by: Fraction, *, real: bool) -> Form:
    if by.denominator == 2:
        return Form(_settle([({("i",): Fraction(by.numerator % 4)}, Fraction(1))]), ONE)
    if real and by.denominator % 2:
        return number(-1 if by.numerator % 2 else 1)
    raise Unreadable("a power of a negative number that has several values")


def _content(factors: Iterable[Fraction]) -> Fraction:
    values = list(factors)
    return Fraction(math.gcd(*(v.numerator for v in values)), math.lcm(*(v.denominator for v in values)))


def _bounded(value: Fraction) -> Fraction:
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if bits > MOST_BITS:
        raise TooLarge("a number of too many digits")
    if bits > 256:
        _spend(bits // 256)
    return value
