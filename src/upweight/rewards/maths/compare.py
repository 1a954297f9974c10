"""Whether two answers that were read are the same; the order of the two makes no difference."""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from upweight.rewards.maths.answers import (
    Answer,
    Assigned,
    Bracketed,
    Dots,
    Elements,
    Infinite,
    Matrix,
    Ratio,
    Reading,
    Relation,
    Several,
    Union,
    Value,
)
from upweight.rewards.maths.clean import same_unit
from upweight.rewards.maths.forms import (
    Form,
    TooLarge,
    add,
    multiply,
    negate,
    number,
    proportional,
    same_value,
    work_bounded,
)
from upweight.rewards.maths.numeric import differ, value_at
from upweight.rewards.maths.read import read_expression

Decide = Callable[[Form, Form], bool | None]
"""Says whether two forms are equal that differ in their terms and have named functions in them; None = it cannot."""

MOST_COMPARISONS = 4_000
"""Of the items of two lists without an order."""


def same_answer(a: Reading, b: Reading, decide: Decide | None = None) -> bool | None:
    """Whether two readings are the same answer.

    Args:
        a: one.
        b: the other.
        decide: asked about pairs of forms that exact arithmetic leaves open.

    Returns:
        True or False; None where exact arithmetic cannot tell: a named function takes part.
    """
    if a.answer is None or b.answer is None:
        return False
    if not same_unit(a.cleaned.unit, b.cleaned.unit):
        return False
    try:
        with work_bounded():
            left, right = _scaled(a.answer, a.cleaned.scale), _scaled(b.answer, b.cleaned.scale)
            compare = _Comparison(decide)
            result = compare.same(left, right)
            if result is True or a.cleaned.percent == b.cleaned.percent:
                return result
            part = left if a.cleaned.percent else right
            whole = right if a.cleaned.percent else left
            return compare.same(_times(part, Fraction(1, 100)), whole)
    except TooLarge:
        return None


def _scaled(answer: Answer, scale: int) -> Answer:
    return _times(answer, Fraction(10) ** scale) if scale else answer


def _times(answer: Answer, factor: Fraction) -> Answer:
    return Value(multiply(answer.form, number(factor))) if isinstance(answer, Value) else answer


class _Comparison:
    def __init__(self, decide: Decide | None) -> None:
        self._decide = decide

    def same(self, a: Answer, b: Answer) -> bool | None:
        a, b = _alone(a), _alone(b)
        if isinstance(a, Assigned) and isinstance(b, Assigned):
            return False if a.name != b.name else self.same(a.to, b.to)
        if isinstance(a, Relation | Assigned) and isinstance(b, Relation | Assigned):
            return self._relation(_as_relation(a), _as_relation(b))
        if isinstance(a, Assigned) != isinstance(b, Assigned):
            return self.same(a.to if isinstance(a, Assigned) else a, b.to if isinstance(b, Assigned) else b)
        if isinstance(a, Value) and isinstance(b, Value):
            return self._form(a.form, b.form)
        if isinstance(a, Union) or isinstance(b, Union):
            return self._union(a, b)
        if isinstance(a, Several | Elements) and isinstance(b, Several | Elements):
            return self._items(a, b)
        if type(a) is not type(b):
            return False
        if isinstance(a, Bracketed) and isinstance(b, Bracketed):
            return a.brackets == b.brackets and self._in_order(a.items, b.items)
        if isinstance(a, Ratio) and isinstance(b, Ratio):
            return self._in_order(a.items, b.items)
        if isinstance(a, Matrix) and isinstance(b, Matrix):
            if [len(row) for row in a.rows] != [len(row) for row in b.rows]:
                return False
            return self._in_order([c for row in a.rows for c in row], [c for row in b.rows for c in row])
        return a == b  # words, infinities, dots

    def _form(self, a: Form, b: Form) -> bool | None:
        result = same_value(a, b)
        if result is not None:
            return result
        if differ(a, b):
            return False
        return None if self._decide is None else self._decide(a, b)

    def _relation(self, a: Relation | None, b: Relation | None) -> bool | None:
        if a is None or b is None or a.kind != b.kind:
            return False
        factor = proportional(a.difference, b.difference)
        if factor is not None:
            return a.kind in ("=", "!=") or factor > 0
        return False if a.difference.decidable and b.difference.decidable else None

    def _in_order(self, a: Sequence[Answer], b: Sequence[Answer]) -> bool | None:
        if len(a) != len(b):
            return False
        return _all(self.same(x, y) for x, y in zip(a, b, strict=True))

    def _items(self, a: Several | Elements, b: Several | Elements) -> bool | None:
        if any(isinstance(item, Dots) for item in (*a.items, *b.items)):
            return self._in_order(a.items, b.items)
        left, right = list(a.items), list(b.items)
        if isinstance(a, Elements) or isinstance(b, Elements):
            left, right = self._distinct(left), self._distinct(right)
        if len(left) != len(right):
            return False
        if len(left) * len(right) > MOST_COMPARISONS:
            return self._in_order(left, right)
        undecided = False
        for item in left:
            results = [self.same(item, other) for other in right]
            if True in results:
                right.pop(results.index(True))
            elif None in results:
                right.pop(results.index(None))
                undecided = True
            else:
                return False
        return None if undecided else True

    def _distinct(self, items: list[Answer]) -> list[Answer]:
        kept: list[Answer] = []
        for item in items[: MOST_COMPARISONS // 40]:
            if not any(self.same(item, other) is True for other in kept):
                kept.append(item)
        return kept

    def _union(self, a: Answer, b: Answer) -> bool | None:
        left, right = _pieces(a), _pieces(b)
        if left is None or right is None:
            return False
        if isinstance(a, Union) and isinstance(b, Union) and a.letter and b.letter and a.letter != b.letter:
            return False
        return self._in_order(left, right)


def _alone(answer: Answer) -> Answer:
    """A list or set of unions and the like stays; an assignment of several with one name is their list."""
    if isinstance(answer, Several):
        names = {item.name for item in answer.items if isinstance(item, Assigned)}
        if len(names) == 1 and all(isinstance(item, Assigned) for item in answer.items):
            return Several(tuple(item.to for item in answer.items if isinstance(item, Assigned)))
        if len(answer.items) == 1:
            return answer.items[0]
    return answer


def _as_relation(answer: Relation | Assigned) -> Relation | None:
    if isinstance(answer, Relation):
        return answer
    if not isinstance(answer.to, Value) or "(" in answer.name:
        return None
    return Relation(add(read_expression(answer.name), negate(answer.to.form)), "=")


def _all(results: Iterable[bool | None]) -> bool | None:
    undecided = False
    for result in results:
        if result is False:
            return False
        undecided = undecided or result is None
    return None if undecided else True


def _pieces(answer: Answer) -> list[Answer] | None:
    """A union in order, touching pieces joined; None where it is none, its own order where ends are no numbers."""
    parts = answer.parts if isinstance(answer, Union) else (answer,)
    pieces: list[Answer] = []
    for part in parts:
        if isinstance(part, Union):
            inner = _pieces(part)
            if inner is None:
                return None
            pieces.extend(inner)
        elif isinstance(part, Elements):
            pieces.extend(Bracketed("[]", (item, item)) for item in part.items)
        elif isinstance(part, Bracketed) and len(part.items) == 2:
            pieces.append(part)
        else:
            return None
    placed = [(_place(p.items[0]), _place(p.items[1]), p) for p in pieces if isinstance(p, Bracketed)]
    if any(low is None or high is None for low, high, _ in placed):
        return pieces
    placed.sort(key=lambda piece: (piece[0], piece[2].brackets[0] == "("))
    return _joined([(float(low or 0), float(high or 0), piece) for low, high, piece in placed])


def _joined(placed: list[tuple[float, float, Bracketed]]) -> list[Answer]:
    joined: list[tuple[float, Bracketed]] = []
    for low, high, piece in placed:
        if joined:
            last, before = joined[-1]
            touch = last > low or (last == low and (before.brackets[1] == "]" or piece.brackets[0] == "["))
            if touch:
                further = piece if high > last or (high == last and piece.brackets[1] == "]") else before
                ends = (before.items[0], further.items[1])
                joined[-1] = (max(last, high), Bracketed(before.brackets[0] + further.brackets[1], ends))
                continue
        joined.append((high, piece))
    return [piece for _, piece in joined]


def _place(answer: Answer) -> float | None:
    if isinstance(answer, Infinite):
        return answer.sign * float("inf")
    if isinstance(answer, Value):
        value = answer.form.rational
        if value is not None:
            try:
                return float(value)
            except OverflowError:
                return None
        if not any(atom[0] == "var" for atom in answer.form.atoms):
            estimate = value_at(answer.form)
            if estimate is not None and abs(estimate[0].imag) < 1e-12:
                return estimate[0].real
    return None
