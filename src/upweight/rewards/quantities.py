"""Numbers as people write them, read exactly: bounded in size, never evaluated, never rounded."""

import functools
import re
from fractions import Fraction

LONGEST_LITERAL = 500
"""Characters of a number that is read at all. Below Python's lowest limit on digits, so no setting makes it raise."""

LONGEST_LINE = 1000
"""Characters of a line in which a quantity is looked for; a longer line has more in it than one number."""

_DIGITS = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_PLAIN = re.compile(rf"[+-]?(?:{_DIGITS})(?:/[0-9]+)?")

_TYPOGRAPHY = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " "})
_CURRENCY = r"[$\u20ac\u00a3\u00a5\u20b9]"
_QUANTITY = re.compile(
    rf"(?P<sign>[+-]?) *{_CURRENCY}? *(?P<late_sign>[+-]?)"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:(?: +(?P<top>[0-9]+))? */ *(?P<bottom>[0-9]+))?"
    rf" *(?:{_CURRENCY}|%)?(?P<unit>[ /]*[^\W\d_][^\d#=+*<>]*)?\.?"
)

_SCALES = ("hundred", "thousand", "million", "billion", "trillion", "dozen")
_WORDS_THAT_CHANGE_IT = frozenset(
    (
        "and",
        "or",
        "to",
        "half",
        "halves",
        "k",
        "bn",
        "x",
        "y",
        "n",
        "pi",
        "\u03c0",
        *_SCALES,
        *(f"{s}s" for s in _SCALES),
    )
)
_LETTERS_THAT_CHANGE_IT = frozenset("MB")


@functools.lru_cache(maxsize=4096)  # the answers of a group are often the same few
def plain_number(text: str) -> Fraction | None:
    """Read a text that is a number and nothing else: an integer, a decimal, or a fraction of the two.

    Args:
        text: the number, in ASCII digits; blanks around it are ignored.

    Returns:
        Its exact value; None where it is no such number, divides by zero, or is longer than 500 characters.

    Example:
        >>> plain_number("091") == plain_number("91.0") == 91
        True
        >>> plain_number("91 apples") is None
        True
    """
    stripped = text.strip()
    if len(stripped) > LONGEST_LITERAL or not _PLAIN.fullmatch(stripped):
        return None
    top, _, bottom = stripped.partition("/")
    return _divide(Fraction(top), bottom)


def quantity(text: str) -> Fraction | None:
    """Read a line that gives one quantity, as final answers of word problems do.

    Around the number there may be a currency sign, a percent sign (dropped: 20% is 20), a unit in words and a full
    stop; the number may have thousands separators, decimals, a fraction or a whole number with a fraction. Words
    that change the number ("5 million", "5 or six", "2 and a half") make the line unreadable, as does anything else
    with a digit in it.

    Args:
        text: one line; blanks around it are ignored.

    Returns:
        The exact value; None where the line gives no number, or more than one.

    Example:
        >>> [str(quantity(line)) for line in ("$1,250.00", "3 1/5", "12 apples.", "5 million", "6 or 7")]
        ['1250', '16/5', '12', 'None', 'None']
    """
    line = text.strip()
    if len(line) > LONGEST_LINE:
        return None
    match = _QUANTITY.fullmatch(line.translate(_TYPOGRAPHY))
    if match is None or len(match["whole"]) > LONGEST_LITERAL or (match["sign"] and match["late_sign"]):
        return None
    words = set(re.findall(r"[^\W\d_]+", match["unit"] or ""))
    if words & _LETTERS_THAT_CHANGE_IT or {word.lower() for word in words} & _WORDS_THAT_CHANGE_IT:
        return None
    value = Fraction(match["whole"].replace(",", ""))
    if match["bottom"] is not None:
        if len(match["bottom"]) > LONGEST_LITERAL or len(match["top"] or "") > LONGEST_LITERAL:
            return None
        part = _divide(value if match["top"] is None else Fraction(match["top"]), match["bottom"])
        if part is None or (match["top"] is not None and value.denominator != 1):
            return None
        value = part if match["top"] is None else value + part
    return -value if "-" in (match["sign"], match["late_sign"]) else value


def _divide(top: Fraction, bottom: str) -> Fraction | None:
    if not bottom:
        return top
    divisor = int(bottom)
    return top / divisor if divisor else None
