"""A reader of expressions, LaTeX or plain: recursive descent straight into exact forms, of bounded depth and size."""

import re
from fractions import Fraction

from upweight.rewards.maths.forms import (
    Form,
    TooLarge,
    Undefined,
    Unreadable,
    add,
    atom,
    divide,
    multiply,
    negate,
    number,
    power,
    root,
)
from upweight.rewards.maths.functions import (
    FUNCTIONS,
    GREEK,
    SAME,
    apply_function,
    binomial,
    constant,
    factorial,
    literal,
    logarithm,
    repeating_decimal,
)

DEEPEST = 24
"""Levels of brackets and exponents."""


LARGEST_EXPONENT_LITERAL = 1_000

_NUMBER = re.compile(r"(?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
_PLAIN_NUMBER = re.compile(r"[0-9]+(?:\{,\}[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\overline\s*\{\s*([0-9]+)\s*\}")
_E_NOTATION = re.compile(r"[eE]([+-]?[0-9]+)(?![0-9a-zA-Z.])")
_MIXED = re.compile(r"\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])")
_MIXED_FRAC = re.compile(r"\s*\\frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_SUBSCRIPT = re.compile(r"\s*_\s*(?:\{\s*([0-9a-zA-Z,]+)\s*\}|([0-9a-zA-Z]))")
_COMMAND = re.compile(r"\\([a-zA-Z]+)\s*")
_LETTERS = re.compile(r"[a-zA-Z]+")
_TIMES = re.compile(r"\s*(?:\\times|\\cdot|\*(?!\*))\s*")
_OVER = re.compile(r"\s*(?:/|\\div(?![a-zA-Z]))\s*")
_RAISED = re.compile(r"\s*(?:\^|\*\*)\s*")
_STARTS = re.compile(r"\s*(?:[0-9.(\[a-zA-Z|]|\\\{|\\[a-zA-Z]|\{)")
_DEGREES = re.compile(r"\s*\\degree(?![a-zA-Z])")
_DEGREE = multiply(atom("const", "pi"), number(Fraction(1, 180)))
"""What a degree sign means inside a function; elsewhere it is a unit."""
_NO_FACTORS = (
    "degree le ge ne in cup cap pm mp times cdot div ldots infty emptyset end mid approx to right rfloor rceil rangle"
)
_STOPS = frozenset(_NO_FACTORS.split())


def read_expression(text: str, *, thousands: bool = True, sign: int = 1) -> Form:
    r"""Read an expression.

    Args:
        text: in the spelling that `clean` gives.
        thousands: whether "1,234" is one number; inside brackets a comma separates.
        sign: which of the two `\pm` stands for here; `\mp` for the other.

    Raises:
        Unreadable: not an expression, undefined, or too large.

    Example:
        >>> read_expression(r"\frac{2}{4}").rational, read_expression("3 1/5").rational
        (Fraction(1, 2), Fraction(16, 5))
    """
    reader = _Reader(text, thousands=thousands, sign=sign)
    form = reader.sum()
    reader.skip()
    if reader.at < len(text):
        raise Unreadable(f"{text[reader.at : reader.at + 20]!r} is not understood")
    return form


class _Reader:
    def __init__(self, text: str, *, thousands: bool, sign: int) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.sign = sign
        self.thousands = thousands
        self.bars = 0
        self.angles = 0

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\n":
            self.at += 1

    def take(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def literal(self, word: str) -> bool:
        self.skip()
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def peek(self) -> str:
        self.skip()
        return self.text[self.at : self.at + 1]

    def sum(self) -> Form:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLarge("brackets too deep")
        total: Form | None = None
        while True:
            signed = self._sign()
            if total is not None and signed is None:
                break
            if total is not None and signed is not None and self.at >= len(self.text):
                raise Unreadable("it ends in a sign")
            term = self._product()
            term = negate(term) if signed == -1 else term
            total = term if total is None else add(total, term)
        self.depth -= 1
        return total

    def _sign(self) -> int | None:
        self.skip()
        if self.literal("+"):
            return 1
        if self.literal("-"):
            return -1
        for word, sign in (("\\pm", self.sign), ("\\mp", -self.sign)):
            if self.text.startswith(word, self.at) and not self.text[self.at + 3 : self.at + 4].isalpha():
                self.at += 3
                return sign
        return None

    def _product(self) -> Form:
        result = self._factor()
        while True:
            if self.take(_TIMES):
                result = multiply(result, self._signed_factor())
            elif self.take(_OVER):
                result = divide(result, self._signed_factor())
            elif self._starts_factor():
                result = multiply(result, self._factor())
            else:
                return result

    def _signed_factor(self) -> Form:
        return negate(self._factor()) if self.literal("-") else self._factor()

    def _starts_factor(self) -> bool:
        if not _STARTS.match(self.text, self.at):
            return False
        following = self.peek()
        if following.isdigit() or following in (".", "["):
            return False  # two numbers side by side are no product
        if following == "|" and self.bars:
            return False
        command = _COMMAND.match(self.text, self.at)
        return command is None or command[1] not in _STOPS

    def _factor(self) -> Form:
        base = self._atom()
        while True:
            self.skip()
            if self.literal("!"):
                base = factorial(base)
            elif self.take(_DEGREES):
                base = multiply(base, _DEGREE) if self.angles else base
            elif self.take(_RAISED):
                base = power(base, self._exponent())
            else:
                return base

    def _exponent(self) -> Form:
        if self.peek() == "{":
            return self._group("{", "}")
        if self.literal("-"):
            return negate(self._exponent())
        base = literal(number_[0]) if (number_ := self.take(_PLAIN_NUMBER)) else self._atom()
        return power(base, self._exponent_again()) if self.take(_RAISED) else base

    def _exponent_again(self) -> Form:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLarge("exponents too deep")
        result = self._exponent()
        self.depth -= 1
        return result

    def _group(self, opening: str, closing: str) -> Form:
        if not self.literal(opening):
            raise Unreadable(f"{opening} is missing")
        thousands, bars, self.bars = self.thousands, self.bars, 0
        self.thousands = self.thousands and opening == "{"
        inner = self.sum()
        self.thousands, self.bars = thousands, bars
        if not self.literal(closing):
            raise Unreadable(f"{closing} is missing")
        return inner

    def _atom(self) -> Form:
        following = self.peek()
        if following.isdigit() or following == ".":
            return self._number()
        if following == "(":
            return self._group("(", ")")
        if following == "[":
            return self._group("[", "]")
        if following == "{":
            return self._group("{", "}")
        if following == "|":
            self.at += 1
            self.bars += 1
            inner = self.sum()
            self.bars -= 1
            if not self.literal("|"):
                raise Unreadable("| is not closed")
            return apply_function("abs", [inner])
        if command := self.take(_COMMAND):
            return self._command(command[1])
        if letters := self.take(_LETTERS):
            return self._word(letters[0])
        raise Unreadable(f"{self.text[self.at : self.at + 20]!r} is not understood" if following else "it ends early")

    def _number(self) -> Form:
        if repeating := self.take(_REPEATING):
            return repeating_decimal(*repeating.groups())
        match = self.take(_NUMBER if self.thousands else _PLAIN_NUMBER)
        if match is None:
            raise Unreadable("a lone point")
        value = literal(match[0])
        if subscript := self.take(_SUBSCRIPT):
            return atom("base", match[0], subscript[1] or subscript[2])
        if exponent := self.take(_E_NOTATION):
            if len(exponent[1]) > 5 or abs(int(exponent[1])) > LARGEST_EXPONENT_LITERAL:
                raise TooLarge("a power of ten of too many digits")
            return multiply(value, number(Fraction(10) ** int(exponent[1])))
        return self._mixed(value)

    def _mixed(self, whole: Form) -> Form:
        """A whole number with a fraction behind it: 3 1/5, 5\\frac12."""
        plain = whole.rational
        if plain is None or plain.denominator != 1:
            return whole
        if match := self.take(_MIXED):
            top, bottom = match[1], match[2]
        elif match := self.take(_MIXED_FRAC):
            top, bottom = match[1] or match[2], match[3] or match[4]
        else:
            return whole
        part = divide(literal(top), literal(bottom))
        if not 0 < (part.rational or 0) < 1:
            raise Unreadable("a whole number before a fraction that is not below 1 could be a sum or a product")
        return add(whole, part)

    def _word(self, word: str) -> Form:
        """Letters: a function or constant by name, else letters side by side, which are a product."""
        if word in FUNCTIONS:
            return self._function(word)
        if word in ("pi", "e", "i"):
            return constant(word)
        if word in GREEK:
            return self._variable(word)
        for name in sorted(FUNCTIONS, key=len, reverse=True):
            if word.endswith(name) and len(word) - len(name) <= 2:  # xsin(x)
                self.at -= len(name)
                return self._letters(word[: -len(name)])
        if word.endswith("pi") and len(word) <= 4:
            return multiply(self._letters(word[:-2]), constant("pi"))
        if len(word) > 4:
            raise Unreadable(f"{word[:20]!r} is a word")
        return self._letters(word)

    def _letters(self, letters: str) -> Form:
        result = number(1)
        for letter in letters[:-1]:
            result = multiply(result, constant(letter))
        last = letters[-1]
        return multiply(result, constant(last) if last in "ei" else self._power_of(self._variable(last)))

    def _power_of(self, base: Form) -> Form:
        """In xy^2 only the last letter is squared."""
        return power(base, self._exponent()) if self.take(_RAISED) else base

    def _variable(self, name: str) -> Form:
        subscript = self.take(_SUBSCRIPT)
        primes = 0
        while self.at < len(self.text) and self.text[self.at] == "'":
            self.at += 1
            primes += 1
        index = f"_{subscript[1] or subscript[2]}" if subscript else ""
        return atom("var", name + index + "'" * primes)

    def _command(self, name: str) -> Form:
        if name == "frac":
            top = self._argument()
            return divide(top, self._argument())
        if name == "sqrt":
            degree = self._group("[", "]").rational if self.peek() == "[" else Fraction(2)
            if degree is None or degree.denominator != 1 or not 2 <= degree <= 64:
                raise Unreadable("a root that is not whole")
            return root(self._argument(), 1 / degree, real=True)
        if name in ("binom", "dbinom", "tbinom"):
            return binomial(self._argument(), self._argument())
        if name in ("lfloor", "lceil"):
            inner = self.sum()
            if not self.literal("\\rfloor" if name == "lfloor" else "\\rceil"):
                raise Unreadable(f"\\{name} is not closed")
            return apply_function("floor" if name == "lfloor" else "ceil", [inner])
        if name in FUNCTIONS:
            return self._function(name)
        if name == "pi":
            return constant("pi")
        if name in GREEK:
            return self._variable(name)
        if name == "infty":
            raise Undefined("an infinity is no number")
        raise Unreadable(f"\\{name} is not known here")

    def _argument(self) -> Form:
        """A LaTeX argument: a group, or a single digit, letter or command."""
        following = self.peek()
        if following == "{":
            return self._group("{", "}")
        if following == "(":
            return self._group("(", ")")
        if following.isdigit():
            self.at += 1
            return number(int(following)) if following.isascii() else self._refuse()
        if following.isalpha() and following.isascii():
            self.at += 1
            return constant(following)
        if command := self.take(_COMMAND):
            return self._command(command[1])
        return self._refuse()

    def _refuse(self) -> Form:
        raise Unreadable("an argument is missing")

    def _function(self, name: str) -> Form:
        name = SAME.get(name, name)
        base = None
        if name in ("log",) and self.take(re.compile(r"\s*_\s*")):
            base = self._argument() if self.peek() == "{" or not self.peek().isdigit() else self._digits()
        raised = self._exponent() if self.take(_RAISED) else None
        if raised is not None and raised.rational == -1:
            raise Unreadable("a function to the power of -1 has two meanings")
        self.angles += 1
        parts = self._parts({"(": ")", "{": "}"}[self.peek()]) if self.peek() in ("(", "{") else [self._bare_argument()]
        self.angles -= 1
        if name == "sqrt":
            result = root(parts[0], Fraction(1, 2))
        else:
            result = apply_function(name, parts) if base is None else logarithm(base, parts[0])
        return result if raised is None else power(result, raised)

    def _digits(self) -> Form:
        match = self.take(re.compile(r"[0-9]"))
        return number(int(match[0])) if match else self._refuse()

    def _parts(self, closing: str) -> list[Form]:
        self.at += 1
        thousands, bars, self.bars, self.thousands = self.thousands, self.bars, 0, False
        parts = [self.sum()]
        while self.literal(","):
            parts.append(self.sum())
        self.thousands, self.bars = thousands, bars
        if not self.literal(closing):
            raise Unreadable(f"{closing} is missing")
        return parts

    def _bare_argument(self) -> Form:
        """What a function without brackets takes: the factors side by side behind it, up to the next function."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLarge("functions too deep")
        result = self._factor()
        while self._starts_factor() and self.peek() not in ("(", "[", "{"):
            command, word = _COMMAND.match(self.text, self.at), _LETTERS.match(self.text, self.at)
            if (command and command[1] in FUNCTIONS) or (word and word[0] in FUNCTIONS):
                break
            result = multiply(result, self._factor())
        self.depth -= 1
        return result
