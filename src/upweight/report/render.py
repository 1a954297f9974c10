"""An explanation as text for a terminal, as Markdown, or as LaTeX. Imports no torch."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from upweight.report.explain import Explanation
from upweight.report.records import latex_number

WIDTH = 100

TITLES: Mapping[str, str] = {
    "translation": "translated",
    "unmatched": "cannot be matched",
    "no_effect": "no effect here",
    "biases": "biases",
    "differences": "differences from the paper",
    "contradictions": "contradictions: upweight train refuses this",
}

TRANSLATED = ("translation", "unmatched")
"""The lists that come first: what somebody asked for in other words."""

LEGEND = (
    "Minimised. t runs over the trainable tokens of one optimiser update; i is t's answer with L_i such tokens, g the "
    "answer's group; pi is the policy."
)


def as_text(explanation: Explanation) -> str:
    """For a terminal of 100 columns."""
    return "\n".join(_text(explanation)) + "\n"


def title(explanation: Explanation) -> str:
    """The objective's name and its paper."""
    paper = explanation.paper
    if paper is None:
        return explanation.name
    return f"{explanation.name}: {paper.title}, arXiv {paper.arxiv}, {paper.where}"


def _text(explanation: Explanation) -> Iterator[str]:
    yield from textwrap.wrap(title(explanation), WIDTH)
    yield from textwrap.wrap(explanation.alike, WIDTH)
    yield ""
    yield f"    {explanation.loss.plain}"
    yield ""
    yield from textwrap.wrap(LEGEND, WIDTH)
    yield from _lists(explanation, TRANSLATED)
    for part in explanation.parts:
        yield ""
        yield part.name
        for formula in part.formulas:
            yield from textwrap.wrap(formula.plain, WIDTH, initial_indent="    ", subsequent_indent=" " * 8)
        for sentence in part.says:
            yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield from _lists(explanation, [name for name in TITLES if name not in TRANSLATED])


def _lists(explanation: Explanation, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        sentences = explanation.lists()[name]
        if sentences:
            yield ""
            yield TITLES[name]
        for sentence in sentences:
            yield from textwrap.wrap(sentence, WIDTH, initial_indent="  - ", subsequent_indent="    ")


def as_latex(explanation: Explanation) -> str:
    """A fragment for a paper: the equations in an align environment, then the sentences. Needs amsmath.

    What contradicts is no part of a paper, and is left out; `upweight explain` ends with it on standard error.
    """
    equations = [explanation.loss, *(formula for part in explanation.parts for formula in part.formulas)]
    lines = [rf"% {title(explanation)}", r"\begin{align}"]
    lines += [f"  {_aligned(formula.latex)}{_end(n, len(equations))}" for n, formula in enumerate(equations, 1)]
    lines += [r"\end{align}", _prose(LEGEND)]
    for part in explanation.parts:
        lines += ["", rf"\paragraph{{{part.name[0].upper()}{part.name[1:]}.}}", *map(_prose, part.says)]
    for name, sentences in explanation.lists().items():
        if sentences and name != "contradictions":
            lines += ["", rf"\paragraph{{{TITLES[name].capitalize()}.}}", *map(_prose, sentences)]
    return "\n".join(lines) + "\n"


def _aligned(latex: str) -> str:
    left, equals, right = re.sub(r"_\{(old|ref)\}", r"_{\\mathrm{\1}}", latex).partition(" = ")
    return f"{left} &= {right}" if equals else latex


def _end(n: int, total: int) -> str:
    return r" \\" if n < total else ""


_SPECIAL = {
    **{character: "\\" + character for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
}

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_SYMBOL = (
    r"\bKL\(pi(?:_ref)? \|\| pi(?:_ref)?\)"
    r"|(?:\blog )?\b(?:pi\(o_[a-z]\)|(?:pi_old|pi_ref|rho_t|[A-Za-z]_(?:max|[a-z])|pi|mu)\b)"
    r"|\b[A-Z](?= [<>])"
)
_MATHS = "|".join(
    (
        rf"(?:{_SYMBOL})(?: (?:<=|>=|[<>=/]) (?:{_SYMBOL}|{_NUMBER})| (?:{_SYMBOL}))*",  # A_i < 0; s_i A_i / L_i
        r"\+-\d+",
        r"(?<![\w.])\d+(?:\.\d+)?e[+-]?\d+\b",
        r"(?<![\w.)])-\d+(?:\.\d+)?",
        r"\(G - 1\)/G",
        r"\bn - \d+",
        r"<=|>=|[<>]|\|\|",
    )
)
_TOKEN = re.compile(rf"`(?P<code>[^`]*)`|(?P<flag>--(?=\w))|(?P<maths>{_MATHS})")
"""What of a sentence is more than text: something to type, the start of a flag, or maths in ASCII."""

_IN_MATHS = {
    "KL": r"\mathrm{KL}",
    "pi_old": r"\pi_{\mathrm{old}}",
    "pi_ref": r"\pi_{\mathrm{ref}}",
    "pi": r"\pi",
    "mu": r"\mu",
    "rho": r"\rho",
    "log": r"\log",
    "_max": r"_{\max}",
    "<=": r"\leq",
    ">=": r"\geq",
    "||": r"\,\|\,",
    "+-": r"\pm ",
}
_WORD_OF_MATHS = re.compile("|".join(map(re.escape, _IN_MATHS)) + r"|\d+(?:\.\d+)?e[+-]?\d+")


def _prose(sentence: str) -> str:
    """A sentence for LaTeX, its symbols, relations and numbers with an exponent in maths."""
    done, at = "", 0
    for token in _TOKEN.finditer(sentence):
        done += _escaped(sentence[at : token.start()]) + _set(token)
        at = token.end()
    return done + _escaped(sentence[at:])


def _set(token: re.Match[str]) -> str:
    if token["maths"]:
        return f"${_WORD_OF_MATHS.sub(_word_of_maths, token['maths'])}$"
    if token["flag"]:
        return "{-}{-}"  # two hyphens on end would become a dash
    code = _escaped(token["code"]).replace("--", "{-}{-}")
    return rf"\texttt{{{code}}}"


def _word_of_maths(word: re.Match[str]) -> str:
    return _IN_MATHS[word[0]] if word[0] in _IN_MATHS else latex_number(float(word[0]))


def _escaped(sentence: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in sentence)
