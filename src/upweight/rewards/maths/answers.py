"""What an answer is, read from its text: a value, a list, a set, a tuple, an interval, an equation, a matrix, words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from upweight.rewards.maths.clean import LONGEST, Cleaned, clean
from upweight.rewards.maths.forms import ONE, Form, TooLarge, Undefined, Unreadable, add, negate, number, work_bounded
from upweight.rewards.maths.functions import FUNCTIONS, GREEK
from upweight.rewards.maths.read import read_expression

MOST_ITEMS = 200
"""Of a list, a set or a matrix."""

DEEPEST = 6
"""Levels of lists in tuples in sets."""


@dataclass(frozen=True)
class Words:
    """An answer in words, in lower case with single blanks."""

    text: str


@dataclass(frozen=True)
class Value:
    """An expression."""

    form: Form


@dataclass(frozen=True)
class Infinite:
    """Plus or minus infinity, alone or as an end of an interval."""

    sign: int


@dataclass(frozen=True)
class Dots:
    """The dots of a sequence."""


@dataclass(frozen=True)
class Assigned:
    """x = value; f(x) = value."""

    name: str
    to: "Answer"


@dataclass(frozen=True)
class Relation:
    """left - right compared with 0: an equation, an inequality, or one that says unequal."""

    difference: Form
    kind: str
    """=, <, <= or !=; the greater ones are turned round."""


@dataclass(frozen=True)
class Bracketed:
    """Several values in brackets: a point, a vector, or an interval of two ends."""

    brackets: str
    """Opening and closing, as in "[)"."""

    items: tuple["Answer", ...]


@dataclass(frozen=True)
class Several:
    """Values in a row without brackets: all of them are the answer."""

    items: tuple["Answer", ...]


@dataclass(frozen=True)
class Elements:
    """A set."""

    items: tuple["Answer", ...]


@dataclass(frozen=True)
class Union:
    """Intervals and sets of points, united."""

    parts: tuple["Answer", ...]
    letter: str = ""
    """The letter that the inequality had which it was read from."""


@dataclass(frozen=True)
class Ratio:
    """3:4, or a time of day."""

    items: tuple["Answer", ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple["Answer", ...], ...]


Answer = Words | Value | Infinite | Dots | Assigned | Relation | Bracketed | Several | Elements | Union | Ratio | Matrix


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An answer as it was read."""

    raw: str
    """As it was written."""

    cleaned: Cleaned
    """Its evened out text, with unit and percent sign taken off."""

    answer: Answer | None
    """What it is; None where it was not understood."""

    why: str = ""
    """Why it was not understood."""

    undefined: bool = False
    """It has no value for sure: a division by zero, not a number, nothing at all."""

    too_large: bool = False
    """It was not worked out because of its size."""

    @property
    def key(self) -> str:
        """Its text without blanks that mean nothing: two answers of the same key are the same text."""
        plain = self.cleaned.text.replace("\x02", "").replace("\x03", "")
        return _MEANS_NOTHING.sub("", " ".join(plain.split()))


_MEANS_NOTHING = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")
_INTEGER = re.compile(r"-?[0-9]+")
_RELATION = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|<=|>=|!=|[<>]|(?<![<>!=])=(?!=)")
_MEMBER = re.compile(r"^\s*[a-zA-Z]\s*\\in(?![a-zA-Z])")
_TARGET = re.compile(
    r"^\s*(?:\\?[a-zA-Z]+(?:_\{?[0-9a-zA-Z]+\}?)?'*(?:\s*\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?)\s*$"
)
_MATRIX = re.compile(
    r"^\\begin\s*\{(?:[pbBvV]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?(.*)\\end\s*\{[a-zA-Z]+\}$", re.DOTALL
)
_LETTER = re.compile(r"\s*(?:[a-zA-Z]|\\[a-zA-Z]+)\s*")
_INFINITY = re.compile(r"^([+-]?)\s*(?:\\infty|infinity|infty|inf|oo)$")
_PM = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_WORDY = re.compile(r"[^\W\d_]{2,}")
_KNOWN_WORDS = FUNCTIONS | GREEK | {"pi", "infinity", "infty", "inf", "oo"}
_PRODUCT = re.compile(r"[xyz]{2,3}|[abc]{2,3}|[mn]{2}|[pq]{2}")
_NO_VALUE = "nan"
_TURNED = {"\\le": ("<=", 1), "<=": ("<=", 1), "<": ("<", 1), "\\ge": ("<=", -1), ">=": ("<=", -1), ">": ("<", -1)}


@lru_cache(maxsize=4096)
def read_gold(text: str) -> Reading:
    """`read_answer`, remembered: a gold answer is asked for once per sampled answer."""
    return read_answer(text)


def read_answer(text: str) -> Reading:
    r"""Read what stood in a box, behind a marker, or in a gold column.

    Example:
        >>> read_answer(r"\{2, 5\}").answer.items[1].form.rational
        Fraction(5, 1)
        >>> read_answer(r"\frac{5}{0}").why
        'a division by zero'
    """
    if len(text) > LONGEST:
        plain = Cleaned(text=" ".join(text.split()))
        return Reading(raw=text, cleaned=plain, answer=None, why=f"longer than {LONGEST} characters", too_large=True)
    if len(text) <= 40 and _INTEGER.fullmatch(text):
        return Reading(raw=text, cleaned=Cleaned(text=text), answer=Value(number(int(text))))
    cleaned = clean(text)
    if not cleaned.text or cleaned.text.lower() == _NO_VALUE:
        return Reading(
            raw=text,
            cleaned=cleaned,
            answer=None,
            why="nothing there" if not cleaned.text else "not a number",
            undefined=True,
        )
    words = _words(cleaned.text)
    if words is not None:
        return Reading(raw=text, cleaned=cleaned, answer=words)
    try:
        with work_bounded():
            return Reading(raw=text, cleaned=cleaned, answer=_answer(cleaned.text, 0))
    except Undefined as error:
        return Reading(raw=text, cleaned=cleaned, answer=None, why=str(error), undefined=True)
    except TooLarge as error:
        return Reading(raw=text, cleaned=cleaned, answer=None, why=str(error), too_large=True)
    except Unreadable as error:
        return Reading(raw=text, cleaned=cleaned, answer=None, why=str(error))


def _words(text: str) -> Words | None:
    """The answer in words, where it is one: letters and punctuation, and no formula."""
    plain = re.sub(r"[\x02\x03*{}]", " ", text)
    if not re.fullmatch(r"[^\W\d_]+(?:[\s'.,;:()/&-]+[^\W\d_]+)*[\s'.,;:()-]*", plain.strip(" (")):
        return None
    found = _WORDY.findall(plain)
    formula = all(word.lower() in _KNOWN_WORDS or _PRODUCT.fullmatch(word) for word in found)
    if "\\" in text or not found or (formula and "\x02" not in text):
        return None
    return Words(" ".join(re.findall(r"[^\W\d_]+", plain.casefold())))


def _answer(text: str, depth: int) -> Answer:
    text = text.strip()
    if depth > DEEPEST:
        raise TooLarge("lists too deep")
    if matrix := _MATRIX.match(text):
        return _matrix(matrix[1], depth)
    text = _MEMBER.sub("", text).strip()
    if re.search(r"\\cup(?![a-zA-Z])", text):
        parts = _split_cup(text)
        if len(parts) > 1:
            return Union(tuple(_answer(part, depth + 1) for part in parts))
    items = split(text, ",;")
    if len(items) > 1 and not (depth == 0 and _is_number_with_commas(text)):
        return _several(items, depth)
    return _one(text, depth)


def _several(items: list[str], depth: int) -> Answer:
    if len(items) > MOST_ITEMS:
        raise TooLarge("a list of too many items")
    read = [part for item in items if item.strip() for part in _expanded(item, depth)]
    if not read:
        raise Unreadable("a list of nothing")
    first = read[0]
    if isinstance(first, Assigned) and not any(isinstance(item, Assigned) for item in read[1:]):
        read[0] = first.to  # n = 1, 2, 3
    if all(isinstance(item, Union) for item in read):  # x < 1 or x > 3
        letters = {item.letter for item in read if isinstance(item, Union)}
        if len(letters) == 1:
            return Union(tuple(p for item in read if isinstance(item, Union) for p in item.parts), letter=letters.pop())
    return Several(tuple(read))


def _expanded(item: str, depth: int) -> Iterator[Answer]:
    one = _one(item, depth)
    if isinstance(one, Several):
        yield from one.items
    else:
        yield one


def _one(text: str, depth: int) -> Answer:
    """An answer without a comma outside brackets."""
    text = text.strip()
    if not text:
        raise Unreadable("an empty place in a list")
    if text.startswith("\x02") and text.endswith("\x03") and (words := _words(text)):
        return words
    if re.fullmatch(r"\\ldots|\.\.\.", text):
        return Dots()
    if re.fullmatch(r"\\emptyset|\\\{\s*\\\}", text):
        return Elements(())
    if re.fullmatch(r"\\mathbb\s*\{?R\}?|\\R|\\Re", text):
        return Bracketed("()", (Infinite(-1), Infinite(1)))
    if infinite := _INFINITY.match(text):
        return Infinite(-1 if infinite[1] == "-" else 1)
    relations = list(_top_level(_RELATION, text))
    if relations:
        return _relation(text, relations, depth)
    if (bracketed := _bracketed(text, depth)) is not None:
        return bracketed
    parts = split(text, ":")
    if len(parts) > 1:
        return Ratio(tuple(_one(part, depth + 1) for part in parts))
    if _PM.search(text):
        values = [Value(read_expression(text, thousands=depth == 0, sign=sign)) for sign in (1, -1)]
        return Several(tuple(values)) if values[0] != values[1] else values[0]
    return Value(read_expression(text, thousands=depth == 0))


def _bracketed(text: str, depth: int) -> Answer | None:
    """A set, a tuple or an interval, where brackets stand around the whole text and hold a comma."""
    if text.startswith("\\{") and text.endswith("\\}"):
        inside = text[2:-2]
        if len(split(inside, "|")) > 1 or "\\mid" in inside:
            raise Unreadable("a set described by a condition")
        return Elements(tuple(part for item in split(inside, ",;") for part in _expanded(item, depth + 1)))
    if text.startswith("\\langle") and text.endswith("\\rangle"):
        opening, closing = "\\langle", "\\rangle"
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        opening, closing = text[0], text[-1]
    else:
        return None
    inside = text[len(opening) : len(text) - len(closing)]
    items = split(inside, ",;")
    if len(items) == 1 or not _balanced(inside):
        return None
    if len(items) > MOST_ITEMS:
        raise TooLarge("a list of too many items")
    read = tuple(part for item in items for part in _expanded(item, depth + 1))
    return Bracketed("<>" if opening == "\\langle" else opening + closing, read)


def _relation(text: str, relations: list["re.Match[str]"], depth: int) -> Answer:
    parts, start = [], 0
    for relation in relations:
        parts.append(text[start : relation.start()])
        start = relation.end()
    parts.append(text[start:])
    kinds = [relation[0] for relation in relations]
    if kinds == ["="]:
        left, right = parts
        if _TARGET.match(left) and not _same(left, right) and left.strip() not in ("e", "i", "\\pi", "pi"):
            return Assigned(re.sub(r"\s+", "", left), _one(right, depth + 1))
        return Relation(_difference(left, right), "=")
    if len(kinds) == 1 and kinds[0] in ("\\ne", "!="):
        return Relation(_difference(*parts), "!=")
    if any(kind not in _TURNED for kind in kinds):
        raise Unreadable("a chain of equations")
    if (interval := _interval(parts, kinds)) is not None:
        return interval
    if len(kinds) > 1:
        raise Unreadable("a chain of inequalities")
    kind, turn = _TURNED[kinds[0]]
    difference = _difference(*parts)
    return Relation(difference if turn == 1 else negate(difference), kind)


def _same(left: str, right: str) -> bool:
    return re.sub(r"\s+", "", left) == re.sub(r"\s+", "", right)


def _interval(parts: list[str], kinds: list[str]) -> Union | None:
    """x > 2, 1 < x <= 3: the numbers a letter may be."""
    letters = [i for i, part in enumerate(parts) if _LETTER.fullmatch(part) and not _INFINITY.match(part.strip())]
    turned = [_TURNED[kind] for kind in kinds]
    if len({turn for _, turn in turned}) > 1:
        return None
    if turned[0][1] == -1:
        parts, turned = parts[::-1], turned[::-1]
        letters = [len(parts) - 1 - i for i in letters]
    if len(parts) == 3 and letters == [1]:
        low, letter, high = parts
        brackets = ("[" if turned[0][0] == "<=" else "(") + ("]" if turned[1][0] == "<=" else ")")
        return Union((Bracketed(brackets, (_end(low), _end(high))),), letter=letter.strip())
    if len(parts) != 2 or len(letters) != 1:
        return None
    closed = turned[0][0] == "<="
    if letters == [0]:
        ends: tuple[Answer, Answer] = (Infinite(-1), _end(parts[1]))
        return Union((Bracketed("(" + ("]" if closed else ")"), ends),), letter=parts[0].strip())
    ends = (_end(parts[0]), Infinite(1))
    return Union((Bracketed(("[" if closed else "(") + ")", ends),), letter=parts[1].strip())


def _end(text: str) -> Answer:
    infinite = _INFINITY.match(text.strip())
    return Infinite(-1 if infinite[1] == "-" else 1) if infinite else Value(read_expression(text))


def _difference(left: str, right: str) -> Form:
    form = add(read_expression(left), negate(read_expression(right)))
    return Form(form.num, ONE) if all(not any(a[0] == "var" for a, _ in m) for m in form.den) else form


def _matrix(body: str, depth: int) -> Matrix:
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\hline|\\cr", body) if row.strip()]
    cells = [list(row.split("&")) for row in rows]
    if not cells or len({len(row) for row in cells}) != 1 or sum(map(len, cells)) > MOST_ITEMS:
        raise Unreadable("a matrix of uneven rows, or too large")
    return Matrix(tuple(tuple(_one(cell, depth + 1) for cell in row) for row in cells))


def split(text: str, separators: str) -> list[str]:
    r"""Split at separators that stand outside all brackets; a comma within a number as "{,}" stays.

    Brackets need not be of the same kind, as intervals have [ and ).

    Example:
        >>> split("(1,2), [3,4)", ",")
        ['(1,2)', ' [3,4)']
    """
    pattern = re.compile("[" + re.escape(separators) + "]")
    parts, start = [], 0
    for found in _top_level(pattern, text):
        parts.append(text[start : found.start()])
        start = found.end()
    return [*parts, text[start:]]


def _top_level(pattern: "re.Pattern[str]", text: str) -> Iterator["re.Match[str]"]:
    depths = list(_depths(text))
    for found in pattern.finditer(text):
        before = text[found.start() - 1 : found.start()]
        if depths[found.start()] == 0 and before != "\\":
            yield found


def _depths(text: str) -> Iterator[int]:
    """How many brackets are open at each character."""
    depth, in_text = 0, False
    for character in text:
        if character in ")]}" and not in_text:
            depth -= 1
        in_text = character == "\x02" or (in_text and character != "\x03")
        yield depth + in_text
        if character in "([{" and not in_text:
            depth += 1


def _balanced(text: str) -> bool:
    return all(depth >= 0 for depth in _depths(text))


def _split_cup(text: str) -> list[str]:
    parts, start = [], 0
    for found in _top_level(re.compile(r"\\cup(?![a-zA-Z])"), text):
        parts.append(text[start : found.start()])
        start = found.end()
    return [*parts, text[start:]]


def _is_number_with_commas(text: str) -> bool:
    return re.fullmatch(r"[-+]?\s*[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", text) is not None
