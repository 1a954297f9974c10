"""An explanation as text for a terminal, as Markdown, or as LaTeX. Imports no torch."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from upweight.report.explain import Explanation

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
    """A fragment for a paper: the equations in an align environment, then the sentences. Needs amsmath."""
    equations = [explanation.loss, *(formula for part in explanation.parts for formula in part.formulas)]
    lines = [rf"% {title(explanation)}", r"\begin{align}"]
    lines += [f"  {_aligned(formula.latex)}{_end(n, len(equations))}" for n, formula in enumerate(equations, 1)]
    lines += [r"\end{align}", _escaped(LEGEND)]
    for part in explanation.parts:
        lines += ["", rf"\paragraph{{{part.name[0].upper()}{part.name[1:]}.}}", *map(_escaped, part.says)]
    for name, sentences in explanation.lists().items():
        if sentences:
            lines += ["", rf"\paragraph{{{_escaped(TITLES[name].capitalize())}.}}", *map(_escaped, sentences)]
    return "\n".join(lines) + "\n"


def _aligned(latex: str) -> str:
    left, equals, right = latex.partition(" = ")
    return f"{left} &= {right}" if equals else latex


def _end(n: int, total: int) -> str:
    return r" \\" if n < total else ""


_SPECIAL = {
    **{character: "\\" + character for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
}


def _escaped(sentence: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in sentence)
