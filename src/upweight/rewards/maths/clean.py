"""The spelling of an answer evened out: typography, spacing commands, delimiters, and its unit taken off."""

import re
from dataclasses import dataclass

LONGEST = 2_000
"""Characters of an answer that is read; a longer one can only be the same text."""

_TYPOGRAPHY = {
    "\u2212": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\ufe63": "-",
    "\uff0d": "-",
    "\u00a0": " ",
    "\u202f": " ",
    "\u2009": " ",
    "\u200b": "",
    "\ufeff": "",
    "\u00d7": "\\times ",
    "\u22c5": "\\cdot ",
    "\u00b7": "\\cdot ",
    "\u2217": "*",
    "\u00f7": "/",
    "\u2044": "/",
    "\u2215": "/",
    "\u221a": "\\sqrt ",
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u00b0": "\\degree ",
    "\u2264": "\\le ",
    "\u2265": "\\ge ",
    "\u2260": "\\ne ",
    "\u00b1": "\\pm ",
    "\u222a": "\\cup ",
    "\u2205": "\\emptyset ",
    "\u2208": "\\in ",
    "\u211d": "\\mathbb{R}",
    "\u2026": "\\ldots ",
    "\u20ac": "\\euro ",
    "\u00a3": "\\pounds ",
    "\u00a5": "\\yen ",
    "\u20b9": "\\rupee ",
    "\u00bd": " 1/2",
    "\u2019": "'",
    **{chr(0x2070 + d): f"^{d}" for d in (0, 4, 5, 6, 7, 8, 9)},
    "\u00b9": "^1",
    "\u00b2": "^2",
    "\u00b3": "^3",
    **{chr(0xFF10 + d): str(d) for d in range(10)},
}
_TABLE = str.maketrans(_TYPOGRAPHY)

_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname\*?)"
    r"\s*\{([^{}]*)\}"
)
_RENAMED = {
    r"\\[dtc]frac(?![a-zA-Z])": r"\\frac",
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|rm|bf|it)(?![a-zA-Z])\s?": "",
    r"\\(?:leq|leqslant)(?![a-zA-Z])": r"\\le",
    r"\\(?:geq|geqslant)(?![a-zA-Z])": r"\\ge",
    r"\\neq(?![a-zA-Z])": r"\\ne",
    r"\\lt(?![a-zA-Z])": "<",
    r"\\gt(?![a-zA-Z])": ">",
    r"\\(?:varnothing|O)(?![a-zA-Z])": r"\\emptyset",
    r"\\(?:dots|cdots|dotsc|dotsb)(?![a-zA-Z])": r"\\ldots",
    r"\\(?:lbrace)(?![a-zA-Z])": r"\\{",
    r"\\(?:rbrace)(?![a-zA-Z])": r"\\}",
    r"\\(?:lvert|rvert|vert)(?![a-zA-Z])": "|",
    r"\^\s*\{?\s*\\circ\s*\}?|\\deg(?:ree)?(?![a-zA-Z])|\^\s*\{\s*\\degree\s*\}": r"\\degree ",
    r"\{,\}\s*|,\s*\\!\s*": "{,}",
    r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))": "{,}",
    r"\\!": "",
    r"(?<!\\)\\[,;: >]|\\q?quad(?![a-zA-Z])|~|\\hspace\{[^{}]*\}|\\hfill(?![a-zA-Z])": " ",
    r"\\\(|\\\)|\\\[|\\\]": " ",
    r"\\dollar(?![a-zA-Z])": r"\\$",
}
_RENAMES = [(re.compile(pattern), new) for pattern, new in _RENAMED.items()]

_WORD_BETWEEN = re.compile(
    r"\x02\s*,?\s*(?:and|or)\s*\x03|\x02[^\x03]*\x03|(?<=[\s\x03}\d)])(?:and|or)(?=[\s\x02\d(\\])", re.IGNORECASE
)
"""The words between two answers, and texts in which such a word is none."""

_AND_OR = re.compile(r"\x02?\s*,?\s*(?:and|or)\s*\x03?", re.IGNORECASE)
_INLINE = re.compile(r"\s*(?:[-+$]*[0-9].*|\(?[A-Z]\)?|[a-z])\s*")

UNITS = {
    "degree": "degree degrees deg \\degree",
    "percent": "percent percents pct",
    "dollar": "dollar dollars usd bucks $",
    "euro": "euro euros eur \\euro",
    "pound sterling": "\\pounds gbp",
    "yen": "yen \\yen jpy",
    "rupee": "rupee rupees \\rupee",
    "cent": "cent cents",
    "millimetre": "mm millimeter millimeters millimetre millimetres",
    "centimetre": "cm centimeter centimeters centimetre centimetres",
    "metre": "m meter meters metre metres",
    "kilometre": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "gram": "g gram grams",
    "kilogram": "kg kilogram kilograms kilo kilos",
    "milligram": "mg milligram milligrams",
    "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces",
    "second": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "litre": "l liter liters litre litres",
    "millilitre": "ml milliliter milliliters millilitre millilitres",
    "morning": "am a.m. a.m",
    "afternoon": "pm p.m. p.m",
    "mile per hour": "mph",
}
_UNIT_OF = {word: unit for unit, words in UNITS.items() for word in words.split()}
_SHORT = frozenset(("m", "g", "s", "h", "l", "in"))
"""Units that are words or letters of their own: taken for units in \\text{} alone."""

_FORMULA_WORDS = "pi sin cos tan sec csc cot log ln exp sqrt inf infty alpha beta gamma theta phi mod"
_MATHS_WORDS = frozenset(_FORMULA_WORDS.split())

SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CHANGE_IT = frozenset(
    ("half", "halves", "quarter", "third", "dozen", "dozens", "k", "bn", "or", "to", "plus", "minus")
)

_CURRENCY = re.compile(r"^([-+]?\s*)(\\\$|\$|\\euro|\\pounds|\\yen|\\rupee)\s*(?=[-+]?[.\d{\\])")
_LATE_CURRENCY = re.compile(r"(?<=[\d}])\s*(\\\$|\$|\\euro|\\pounds|\\yen|\\rupee)\s*$")
_PERCENT = re.compile(r"\s*(?:\\?%|\x02\s*(?:\\?%|percent|pct)\s*\x03|(?<=[\s\d])(?:percent|pct))\s*$", re.IGNORECASE)
_DEGREE = re.compile(r"(?<=[\d})\w])\s*\\degree\s*(?:\x02?([CF])\x03?)?\s*$")
_FUNCTION = re.compile(r"sin|cos|tan|sec|csc|cot")
_TEXT_UNIT = re.compile(
    r"(?<=[\d})\]a-zA-Z\s.])\s*\x02\s*([^\x02\x03]*[a-zA-Z\u00b5][^\x02\x03]*)\x03\s*(?:\^\s*\{?\s*(-?[0-9])\s*\}?)?\s*$"
)
_BARE_UNIT = re.compile(
    r"(?<=\d)(?P<gap>\s*)(?P<slash>/\s*)?(?P<words>[a-zA-Z][a-zA-Z.'-]*(?:[ /]+[a-zA-Z][a-zA-Z.'-]*)*)"
    r"(?:\^\{?([0-9])\}?)?\s*$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    """An answer in one spelling, without its unit."""

    text: str
    """What is left to be read; `\\x02...\\x03` stands around what was text in LaTeX."""

    unit: str = ""
    """Canonical name, "" where there is none: "centimetre^2"."""

    percent: bool = False
    """Whether a percent sign stood behind it."""

    scale: int = 0
    """Power of ten of a number word: 6 for "5 million"."""


def clean(text: str) -> Cleaned:
    r"""Even out the spelling of an answer.

    Example:
        >>> clean(r"\$6{,}400"), clean(r"12\text{ cm}^2").unit
        (Cleaned(text='6{,}400', unit='dollar', percent=False, scale=0), 'centimetre^2')
    """
    text = even_out(text)
    percent = _PERCENT.search(text)
    if percent is not None and percent.start() > 0:
        return Cleaned(text=text[: percent.start()].strip(), percent=True)
    for pattern, group in ((_CURRENCY, 2), (_LATE_CURRENCY, 1)):
        if match := pattern.search(text):
            unit = _UNIT_OF.get(match[group].replace("\\$", "$"), "dollar")
            rest, behind, scale = _words_off(
                text[: match.start()] + (match[1] if group == 2 else "") + text[match.end() :]
            )
            if behind.startswith("per "):
                unit = f"{unit} {behind}"
            elif behind not in ("", unit):
                rest, scale = text, 0
            return Cleaned(text=rest, unit=unit, scale=scale)
    if (degree := _DEGREE.search(text)) and not _FUNCTION.search(text):
        return Cleaned(text=text[: degree.start()].strip(), unit="degree" + (f" {degree[1]}" if degree[1] else ""))
    rest, unit, scale = _words_off(text)
    return Cleaned(text=rest, unit=unit, scale=scale)


def even_out(text: str) -> str:
    """One spelling for everything that is spelled in several ways and means the same."""
    text = text.translate(_TABLE).strip()
    for _ in range(3):
        text = _TEXT.sub(lambda m: m[1] if _INLINE.fullmatch(m[1]) else f"\x02{m[1]}\x03", text)
    for pattern, new in _RENAMES:
        text = pattern.sub(new, text)
    text = text.strip().removeprefix("**").removesuffix("**").strip()
    text = _without_dollars(text)
    if re.search(r"[0-9\\=+<>()^]|\x02", text) or re.search(r"\b[a-zA-Z]\b", text):
        text = _WORD_BETWEEN.sub(lambda m: " , " if _AND_OR.fullmatch(m[0]) else m[0], text)
        text = re.sub(r",\s*,", ", ", text)
    while text.endswith((".", ";", ",")) and not text.endswith(("a.m.", "p.m.")):
        text = text[:-1].rstrip()
    return text


def same_unit(a: str, b: str) -> bool:
    """Whether two units do not contradict: one is missing, they are equal, or one says more than the other."""
    if not a or not b or a == b:
        return True
    left, right = set(a.split()), set(b.split())
    known = set(_UNIT_OF.values())
    return not (a in known and b in known) and (left <= right or right <= left)


def _without_dollars(text: str) -> str:
    """Dollar signs around maths go, a single one in front of a number is money."""
    bare = [m.start() for m in re.finditer(r"(?<!\\)\$", text)]
    return re.sub(r"(?<!\\)\$", "", text).strip() if len(bare) % 2 == 0 and bare else text


def _words_off(text: str) -> tuple[str, str, int]:
    """Text, unit and scale of an answer with words behind its number."""
    match = _TEXT_UNIT.search(text)
    if match is not None:
        words, exponent, short = match[1], match[2], True
        start = match.start()
    else:
        match = _BARE_UNIT.search(text)
        if match is None:
            return text, "", 0
        words, exponent, short = match["words"], match[4], False
        start = match.start()
        if match["slash"]:
            words = "per " + words
    named = [w.lower().rstrip(",;") for w in re.split(r"[\s/]+", words.strip()) if w]
    scale = SCALES.get(named[0].removesuffix("s"), 0) if named else 0
    named = named[1:] if scale else named
    if any(w in _CHANGE_IT or w.removesuffix("s") in SCALES or any(c.isdigit() for c in w) for w in named):
        return text, "", 0
    if not short and not scale and not all(_is_word(w, spaced=bool(match["gap"] or match["slash"])) for w in named):
        return text, "", 0
    unit = " ".join(_UNIT_OF.get(w, _UNIT_OF.get(w.rstrip("."), _singular(w.strip(".")))) for w in named)
    if exponent and exponent != "1":
        unit += f"^{exponent}"
    for prefix, by in (("square ", 2), ("cubic ", 3), ("sq ", 2)):
        if unit.startswith(prefix):
            unit = f"{unit.removeprefix(prefix)}^{by}"
    return text[:start].strip(), unit, scale


def _is_word(word: str, *, spaced: bool) -> bool:
    """Whether bare letters behind a number are a unit, and no letters of a formula."""
    plain = word.rstrip(".")
    if plain in _SHORT or plain in _MATHS_WORDS:
        return False
    if word in _UNIT_OF or plain in _UNIT_OF:
        return True
    return spaced and len(plain) >= 3


def _singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word
