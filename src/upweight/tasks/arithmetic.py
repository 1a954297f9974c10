"""The built-in task: endless small sums with exact answers, and held-out ones that training never draws."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from upweight.objective.errors import UsageError, bad_parameter
from upweight.tasks.keyed import keyed_below, keyed_integer, keyed_permutation
from upweight.tasks.prompt import Draw, Message, Prompt
from upweight.tasks.task import check_state, check_take

OPERATORS = "+-*"
STYLES = ("bare", "chat")

HELD_OUT_ONE_IN = 8
"""One canonical form in so many is held out."""

HELD_OUT_LIMIT = 512
"""Held-out problems a task lists, at most."""

LARGEST_SPACE = 2**63
"""Problems there may be, at most: a row id has to fit into a signed 64-bit integer."""

_LISTED_SPACE = 16_384
"""Spaces up to this size are searched for held-out problems one by one, larger ones by drawing."""

CHAT_BUDGET = 48
"""Tokens of an answer in the chat style: a sentence and the final line."""

Additive = tuple[tuple[str, tuple[int, ...]], ...]
"""An expression as a sum: a sign and the factors of each product, in the order written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArithmeticTask:
    """Sums of numbers with a fixed number of digits.

    Problems are numbered: a row id is the problem's index in the whole space, in mixed radix (operand, operator,
    operand, ...). A keyed hash of a problem's canonical form, which ignores the order of terms and of factors,
    decides whether it is held out, so 57+34 is never trained on where 34+57 is held out. The rule does not depend
    on the run's seed.

    Raises:
        UsageError: a parameter is out of its range, or there are no problems left to train on or to hold out.

    Example:
        >>> task = ArithmeticTask(digits=2)
        >>> draw = task.stream(seed=0).take(1)[0]
        >>> draw.prompt.text.endswith("="), draw.number
        (True, 0)
    """

    digits: int = 2
    """Digits of every operand, >= 1, no leading zero; with 1, operands are 0 to 9."""

    terms: int = 2
    """Operands per problem, >= 2."""

    operators: str = "+"
    """The operators that occur, a subset of `+-*`. Usual precedence: products before sums, left to right."""

    style: str = "bare"
    """`bare`: "34+57=" with the answer "91". `chat`: a question in words, answered after `####`, with one
    worked example as the turn before it."""

    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)
    """Up to 512 distinct problems that training never draws; the same for every seed."""

    def __post_init__(self) -> None:
        owner = "the arithmetic task"
        if not _is_count(self.digits, 1):
            raise bad_parameter("digits", owner, "an integer of at least 1", self.digits)
        if not _is_count(self.terms, 2):
            raise bad_parameter("terms", owner, "an integer of at least 2", self.terms)
        if not self.operators or not set(self.operators) <= set(OPERATORS):
            raise bad_parameter("operators", owner, f"one or more of {' '.join(OPERATORS)}", self.operators)
        if len(set(self.operators)) < len(self.operators):
            raise bad_parameter("operators", owner, "without repeats", self.operators)
        if self.style not in STYLES:
            raise bad_parameter("style", owner, f"one of {', '.join(STYLES)}", self.style)
        # The lower bound comes first: digits=10**9 must not build the number it would be compared with.
        if self.digits * self.terms > 64 or self.space > LARGEST_SPACE:
            raise bad_parameter(
                "digits", owner, "small enough for at most 2**63 problems", self.digits, "Take fewer digits or terms."
            )
        rows = self._held_out_rows()
        if not rows:
            raise UsageError(f"{self!r} has too few problems to hold any out: take more digits, terms or operators.")
        object.__setattr__(self, "held_out", tuple(self._prompt(row) for row in rows))

    @property
    def name(self) -> str:
        """The task's name: arithmetic."""
        return "arithmetic"

    @property
    def reward(self) -> str:
        """`exact` for the bare style, `gsm8k` for chat."""
        return "exact" if self.style == "bare" else "gsm8k"

    @property
    def scorer(self) -> None:
        """None: the reward is a built-in."""
        return

    @property
    def remarks(self) -> tuple[str, ...]:
        """None: there is nothing to say about the rows."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Only `answer`."""
        return ("answer",)

    @property
    def size(self) -> int | None:
        """None: the stream draws with replacement and never ends."""
        return None

    @property
    def space(self) -> int:
        """Number of distinct problems, held-out ones included."""
        return int(self._operands**self.terms * len(self.operators) ** (self.terms - 1))

    @property
    def max_new_tokens(self) -> int:
        """Bare: twice the characters of the longest possible answer with its end token. Chat: 48.

        Twice, so that a right answer never runs into the budget, nor into an overlong penalty before it.
        """
        if self.style == "chat":
            return CHAT_BUDGET
        low, high, others = self._lowest, self._lowest + self._operands - 1, self.terms - 1
        extremes = [low]
        if "+" in self.operators:
            extremes.append(high * self.terms)
        if "*" in self.operators:
            extremes.append(high**self.terms)
        if "-" in self.operators:
            extremes += [high - others * low, low - (high**others if "*" in self.operators else high * others)]
        return 2 * (max(len(str(value)) for value in extremes) + 1)

    def stream(self, seed: int) -> "ArithmeticStream":
        """An endless stream of training problems, drawn with replacement."""
        return ArithmeticStream(self, seed)

    def demonstrations(self, count: int, seed: int) -> list[tuple[Prompt, str]]:
        """Training problems with their answers: the bare number, or a sentence that ends in `#### 91`.

        Args:
            count: how many, >= 0.
            seed: of the draw; the stream of the same seed draws others.

        Returns:
            `count` pairs; problems may repeat.
        """
        prompts = [self._prompt(self._training_row("demonstration", seed, number)) for number in range(count)]
        return [(prompt, self._worked(prompt)) for prompt in prompts]

    @property
    def _lowest(self) -> int:
        return 0 if self.digits == 1 else int(10 ** (self.digits - 1))

    @property
    def _operands(self) -> int:
        return int(10**self.digits) - self._lowest

    def _expression(self, row: int) -> str:
        """The problem with this number: digits of `row` in mixed radix, the last operand first."""
        parts: list[str] = []
        for place in range(self.terms):
            row, operand = divmod(row, self._operands)
            parts.append(str(self._lowest + operand))
            if place < self.terms - 1:
                row, operator = divmod(row, len(self.operators))
                parts.append(self.operators[operator])
        return "".join(reversed(parts))

    def _prompt(self, row: int) -> Prompt:
        expression = self._expression(row)
        answer = str(evaluate(additive_form(expression)))
        if self.style == "bare":
            return Prompt(row=row, text=f"{expression}=", answer=answer)
        question = {"role": "user", "content": _question(expression)}
        return Prompt(row=row, text=(*self._worked_turn(), question), answer=answer)

    def _worked_turn(self) -> tuple[Message, Message]:
        """One training problem asked and answered, in front of every question: it shows the form of an answer.

        Without it a small instruct model hardly ever writes the marker, so no group has a reward to learn from
        (docs/experiments.md).
        """
        expression = self._expression(self._training_row("example", 0, 0))
        reply = _reply(expression, str(evaluate(additive_form(expression))))
        return {"role": "user", "content": _question(expression)}, {"role": "assistant", "content": reply}

    def _worked(self, prompt: Prompt) -> str:
        if self.style == "bare":
            return str(prompt.answer)
        return _reply(self._expression(prompt.row), str(prompt.answer))

    def _is_held_out(self, row: int) -> bool:
        canonical = repr(canonical_form(additive_form(self._expression(row))))
        return keyed_integer("arithmetic: held out", canonical) % HELD_OUT_ONE_IN == 0

    def _held_out_rows(self) -> list[int]:
        """A fixed choice of distinct held-out problems, in a fixed order."""
        if self.space <= _LISTED_SPACE:
            order = keyed_permutation(self.space, "arithmetic: evaluation")
            return [row for row in order if self._is_held_out(row)][:HELD_OUT_LIMIT]
        rows: dict[int, None] = {}
        # The bound only matters should the hash hold out next to nothing; about 4,100 draws find all 512.
        for number in range(64 * HELD_OUT_LIMIT):
            row = keyed_below(self.space, "arithmetic: evaluation", number)
            if self._is_held_out(row):
                rows[row] = None
            if len(rows) == HELD_OUT_LIMIT:
                break
        return list(rows)

    def _training_row(self, purpose: str, seed: int, number: int) -> int:
        """Draw `number` of the stream: the first of its keyed tries that is not held out."""
        attempt = 0
        while self._is_held_out(row := keyed_below(self.space, "arithmetic", purpose, seed, number, attempt)):
            attempt += 1
        return row


class ArithmeticStream:
    """Draw k is a function of (seed, k): the state is one counter."""

    def __init__(self, task: ArithmeticTask, seed: int) -> None:
        """Start at draw 0 of `task`'s stream for `seed`."""
        self._task = task
        self._seed = seed
        self._next = 0

    def take(self, n: int) -> list[Draw]:
        """The next `n` draws; see `PromptStream.take`."""
        check_take(n)
        numbers = range(self._next, self._next + n)
        self._next += n
        rows = [self._task._training_row("stream", self._seed, number) for number in numbers]
        return [Draw(prompt=self._task._prompt(row), number=number) for row, number in zip(rows, numbers, strict=True)]

    def state_dict(self) -> dict[str, int]:
        """The seed, the size of the space, and the number of the next draw."""
        return {"seed": self._seed, "space": self._task.space, "draws": self._next}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved state; see `PromptStream.load_state_dict`."""
        check_state(state, {"seed": self._seed, "space": self._task.space}, ["draws"])
        self._next = state["draws"]


def additive_form(expression: str) -> Additive:
    """Take an expression of `+ - *` apart into signed products.

    Example:
        >>> additive_form("5-2*3")
        (('+', (5,)), ('-', (2, 3)))
    """
    products = re.findall(r"([+-]?)([0-9*]+)", expression)
    return tuple((sign or "+", tuple(int(factor) for factor in product.split("*"))) for sign, product in products)


def canonical_form(form: Additive) -> Additive:
    """The same for all orders of terms and of factors.

    Example:
        >>> canonical_form(additive_form("57+34")) == canonical_form(additive_form("34+57"))
        True
        >>> canonical_form(additive_form("5-2")) == canonical_form(additive_form("2-5"))
        False
    """
    return tuple(sorted((sign, tuple(sorted(factors))) for sign, factors in form))


def evaluate(form: Additive) -> int:
    """The value of a sum of signed products.

    Example:
        >>> evaluate(additive_form("5-2*3"))
        -1
    """
    return sum(math.prod(factors) * (1 if sign == "+" else -1) for sign, factors in form)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _question(expression: str) -> str:
    return f"What is {_spaced(expression)}? Give the final answer as a number after ####."


def _reply(expression: str, answer: str) -> str:
    return f"{_spaced(expression)} = {answer}.\n#### {answer}"


def _spaced(expression: str) -> str:
    return re.sub(r"([+*-])", r" \1 ", expression)
