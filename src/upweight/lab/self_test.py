"""Five questions: whoever can answer them knows what the algorithms differ in."""

import sys
import textwrap
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from upweight.lab.parameters import SelfTestParameters
from upweight.lab.table import say

WIDTH = 96
"""Characters in a line of an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question, its answer, and the experiment that shows it."""

    question: str
    """What is asked."""

    answer: str
    """What a good answer says."""

    experiment: str
    """Command that shows it in numbers."""


QUESTIONS = (
    Question(
        question="Where does GRPO's advantage come from, and what does a group teach in which every answer is right, "
        "or every answer wrong?",
        answer="From the group itself: the answer's reward minus the mean reward of all answers to the same prompt, "
        "divided by their standard deviation. No critic is needed. Where all rewards are the same every advantage is "
        "0, so the group costs sampling and scoring and teaches nothing; DAPO's dynamic sampling leaves such groups "
        "out and samples others instead.",
        experiment="upweight lab weights --rewards 1,1,1,1",
    ),
    Question(
        question="The loss can be averaged over each answer's tokens and then over the answers, or over all tokens at "
        "once. What is the difference, and why did DAPO choose the second?",
        answer="Per answer first, every answer counts the same in total, so each token of a long one counts less: a "
        "long wrong answer is hardly punished per token, a short right one is rewarded strongly, and wrong answers "
        "grow longer. Over all tokens at once, every token counts the same, and a long wrong answer is punished in "
        "full.",
        experiment="upweight lab weights",
    ),
    Question(
        question="What is each of the KL estimators k1, k2 and k3 good and bad at? Which one is GRPO's?",
        answer="With r = p_ref / pi of the sampled token: k1 = -log r is unbiased, but varies much and is negative "
        "for nearly half the tokens. k2 = (log r)^2 / 2 is never negative and varies little, but is biased. "
        "k3 = r - 1 - log r adds to k1 a term of mean zero, and is unbiased, never negative and steady: it is GRPO's. "
        "Differentiated as a loss term, though, k3 follows the gradient of the KL in the other direction.",
        experiment="upweight lab kl",
    ),
    Question(
        question="Why does GSPO use one importance ratio per answer, and why the geometric mean of its tokens' ratios "
        "rather than their product?",
        answer="The reward was given to the whole answer, and single tokens' ratios are noisy: enough noise puts a "
        "good part of the tokens outside the clip's bounds, and their gradients are lost. The product is the true "
        "importance weight, but its spread grows exponentially with the length. The geometric mean, the exponential "
        "of the mean log-ratio, is steady at any length; it is clipped per answer, within narrow bounds.",
        experiment="upweight lab ratio",
    ),
    Question(
        question="Sampler and trainer give the same token different probabilities. How do TIS and MIS correct for it, "
        "and what do they cost?",
        answer="Both weight a token by the ratio of the trainer's probability to the sampler's. TIS cuts the weight "
        "off at a cap; MIS drops the tokens (or answers) above it. Both keep the noise down that plain importance "
        "sampling has, and pay with a bias; MIS also throws samples away. Both need the sampler's log-probabilities.",
        experiment="upweight lab mismatch",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestResult:
    """The questions, and how to show them."""

    questions: tuple[Question, ...]
    """In order."""

    answers: bool
    """Whether the answers are printed at once."""


def run(parameters: SelfTestParameters) -> SelfTestResult:
    """The questions; there is nothing to compute."""
    return SelfTestResult(questions=QUESTIONS, answers=parameters.answers)


def as_json(result: SelfTestResult) -> dict[str, Any]:
    """`{"questions": [{"question", "answer", "experiment"}]}`."""
    rows = [{"question": item.question, "answer": item.answer, "experiment": item.experiment} for item in QUESTIONS]
    return {"questions": rows}


def show(result: SelfTestResult, console: Console) -> None:
    """Ask. On a terminal Enter opens an answer, and the end of the input (Ctrl-D) ends the questions.

    Where nobody can press Enter, only the questions are printed, unless the answers were asked for.
    """
    asking = console.is_terminal and sys.stdin.isatty() and not result.answers
    for number, item in enumerate(result.questions, start=1):
        _print(console, f"{number}. {item.question}")
        if asking:
            try:
                input("   (think, then press Enter) ")
            except EOFError:
                say(console, "")
                return
        if asking or result.answers:
            _print(console, item.answer, indent="   ")
            say(console, f"   See it: {item.experiment}")
        say(console, "")
    if not asking and not result.answers:
        say(console, "Answers: `upweight lab self-test --answers`, or in a terminal one by one.")


def _print(console: Console, text: str, *, indent: str = "") -> None:
    filled = textwrap.fill(text, min(WIDTH, console.width), initial_indent=indent, subsequent_indent="   ")
    say(console, filled)
