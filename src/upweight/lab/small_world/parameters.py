"""What the small world can be asked. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from upweight.lab.parameters import Parameters

MAX_ANSWERS = 1000
"""Answers per prompt that are still enumerated."""


def count_answers(vocabulary: int, length: int) -> int:
    """Different answers of at most `length` tokens, of which one of the `vocabulary` ends an answer.

    Args:
        vocabulary: tokens, the end token included.
        length: the generation budget in tokens; an answer that reaches it without the end token is cut there.

    Example:
        >>> count_answers(3, 4), count_answers(2, 1)
        (31, 2)
    """
    others = vocabulary - 1
    return int(sum(others**tokens for tokens in range(length)) + others**length)


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallWorldParameters(Parameters):
    """Prompts, a policy that is a table of logits, and every answer enumerated, for `upweight lab small-world`."""

    OWNER: ClassVar[str] = "upweight lab small-world"

    vocabulary: int = 3
    """Tokens to choose from, token 0 among them, which ends an answer."""

    length: int = 4
    """Generation budget: tokens of the longest answer, its end token included."""

    difficulties: tuple[float, ...] = (0.05, 0.2, 0.5, 0.8, 0.95)
    """One prompt for each: the probability that the policy answers it right."""

    spread: float = 1.0
    """Std of the logits that the policy starts from: how peaked it is."""

    group_sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    """Answers per prompt in a group, to compare."""

    samples: int = 200
    """Steps that are sampled for each group size, to check what was enumerated."""

    updates: int = 8
    """Updates on one batch of answers, which grow stale by it."""

    step: float = 0.5
    """How far an update moves the policy along the exact gradient: length of the change of the logits."""

    ref_noise: float = 0.5
    """Std of the difference between the policy's and the reference's logits."""

    noise: float = 0.5
    """Std of the sampler's error on each logit."""

    caps: tuple[float, ...] = (1.25, 1.5, 2.0, 3.0, 4.0)
    """Caps C of tis (cut down to it) and mis (dropped above it)."""

    seed: int = 0
    """Seed of all random numbers."""

    out: str | None = None
    """Write the tables (.md, .json) and the figures (.svg, .png) into this folder; it is made where it is missing."""

    def _check(self) -> None:
        self._within("vocabulary", 2, 50)
        self._within("length", 1, 50)
        answers = count_answers(self.vocabulary, self.length)
        if answers > MAX_ANSWERS:
            must = f"short enough to enumerate every answer: at most {MAX_ANSWERS:,} of them"
            way_out = (
                f"With a vocabulary of {self.vocabulary} there are {answers:,} answers of up to {self.length} tokens."
            )
            raise self._bad("length", must, self.length, way_out)
        if len(self.difficulties) > 10 or not all(0 < share < 1 for share in self.difficulties or (0.0,)):
            raise self._bad("difficulties", "one to ten probabilities above 0 and below 1", self.difficulties)
        self._each("group_sizes", 2, 128)
        self._within("samples", 2, 5000)
        self._within("updates", 1, 64)
        self._each("caps", 0, 1e9, exclusive=True)
        for name, most in (("step", 10), ("ref_noise", 5)):
            self._above_zero(name, most)
        for name in ("spread", "noise"):
            self._within(name, 0, 5)
        self._check_seed()
