"""What each experiment can be asked, with the defaults that its numbers are known for. Imports no torch."""

import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from upweight.objective.errors import bad_parameter
from upweight.objective.fields import must_be

MAX_TOKENS = 20_000_000
"""Tokens that an experiment may draw at once; a gigabyte or so of working memory."""

MAX_VOCABULARY = 1_000_000
"""Entries of a vocabulary in the experiment on KL estimators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """What the experiments have in common: a wrong value is refused in one sentence, on construction."""

    OWNER: ClassVar[str] = "upweight lab"

    def __post_init__(self) -> None:
        """Check every field's type; the experiments check their ranges on top of it.

        Raises:
            UsageError: a value of a wrong type or outside its range.
        """
        hints = typing.get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            if must := _must_be(hints[field.name], value):
                raise self._bad(field.name, must, value)
        self._check()

    def _check(self) -> None:
        """Raise for a value outside its range."""

    def _bad(self, name: str, must: str, got: object, way_out: str = "") -> Exception:
        return bad_parameter(name, self.OWNER, must, got, way_out)

    def _within(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise self._bad(name, f"from {least:g} to {most:,.15g}", value)

    def _above_zero(self, name: str, most: float) -> None:
        value = getattr(self, name)
        if not 0 < value <= most:
            raise self._bad(name, f"above 0 and at most {most:,.15g}", value)

    def _each(self, name: str, least: float, most: float, *, exclusive: bool = False) -> None:
        values = getattr(self, name)
        if not values:
            raise self._bad(name, "at least one number", values)
        for value in values:
            if not least <= value <= most or (exclusive and value == least):
                limits = f"above {least:g} and at most {most:,.15g}" if exclusive else f"from {least:g} to {most:,.15g}"
                raise self._bad(name, f"numbers {limits}", value)

    def _check_seed(self) -> None:
        value = getattr(self, "seed", 0)
        if not 0 <= value < 2**62:
            raise self._bad("seed", "from 0 to 2^62 - 1", value)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsParameters(Parameters):
    """One group of answers, for `upweight lab weights`."""

    OWNER: ClassVar[str] = "upweight lab weights"

    rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 1.0)
    """Reward of each answer of the group, two or more."""

    lengths: tuple[int, ...] = (200, 50, 2000, 400)
    """Tokens of each answer."""

    adv_norm: Literal["std", "none"] = "std"
    """Divide the centred rewards by the group's std, or by nothing (Dr. GRPO)."""

    max_length: int | None = None
    """Generation budget in tokens; adds Dr. GRPO's seq-mean-token-sum-norm, which divides by it."""

    def _check(self) -> None:
        if len(self.rewards) < 2:
            way_out = "A group of one has no advantage: there is nothing to compare its answer with."
            raise self._bad("rewards", "at least two numbers", _shown(self.rewards), way_out)
        if len(self.rewards) != len(self.lengths):
            must = f"as many as there are rewards ({len(self.rewards)})"
            raise self._bad("lengths", must, _shown(self.lengths))
        # Beyond, the sum of many leaves the range of a float.
        self._each("rewards", -1e300, 1e300)
        self._each("lengths", 1, MAX_TOKENS)
        if sum(self.lengths) > MAX_TOKENS:
            raise self._bad("lengths", f"at most {MAX_TOKENS:,} tokens in all", _shown(self.lengths))
        if self.max_length is not None and self.max_length < max(self.lengths):
            must = f"at least the longest answer ({max(self.lengths)} tokens)"
            raise self._bad("max_length", must, self.max_length, "It is the budget that answers were sampled with.")


@dataclass(frozen=True, kw_only=True, slots=True)
class KLParameters(Parameters):
    """A reference, a policy near it, and samples from the policy, for `upweight lab kl`."""

    OWNER: ClassVar[str] = "upweight lab kl"

    vocabulary: int = 1000
    """Tokens to choose from at the one position that is looked at."""

    noise: float = 0.3
    """How far the policy is from the reference: std of what is added to its log-probabilities, in nats."""

    samples: int = 100_000
    """Tokens sampled from the policy."""

    seed: int = 0
    """Seed of all random numbers."""

    def _check(self) -> None:
        self._within("vocabulary", 2, MAX_VOCABULARY)
        self._within("noise", 0, 10)
        self._within("samples", 2, MAX_TOKENS)
        self._check_seed()


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioParameters(Parameters):
    """Answers whose tokens' log-ratios are noise, for `upweight lab ratio`."""

    OWNER: ClassVar[str] = "upweight lab ratio"

    sigma: tuple[float, ...] = (0.02, 0.2)
    """Std of a token's log-ratio log(pi / pi_old), in nats; one block of rows for each."""

    lengths: tuple[int, ...] = (100, 1000, 4000)
    """Tokens of each answer; one row for each."""

    answers: int = 512
    """Answers in a row."""

    clip: float = 0.2
    """Lower bound of a token's ratio: 1 - clip."""

    clip_high: float = 0.28
    """Upper bound of a token's ratio: 1 + clip_high."""

    sequence_clip: float = 0.0003
    """Lower bound of an answer's geometric mean, GSPO's: 1 - sequence_clip."""

    sequence_clip_high: float = 0.0004
    """Upper bound of an answer's geometric mean, GSPO's: 1 + sequence_clip_high."""

    seed: int = 0
    """Seed of all random numbers."""

    def _check(self) -> None:
        self._each("sigma", 0, 10)
        self._within("answers", 1, MAX_TOKENS)
        self._each("lengths", 1, MAX_TOKENS // self.answers)
        for name in ("clip", "sequence_clip"):
            self._within(name, 0, 1)
        for name in ("clip_high", "sequence_clip_high"):
            self._within(name, 0, 1000)
        self._check_seed()


@dataclass(frozen=True, kw_only=True, slots=True)
class MismatchParameters(Parameters):
    """A trainer, a sampler that is not quite it, and batches of one-token answers, for `upweight lab mismatch`."""

    OWNER: ClassVar[str] = "upweight lab mismatch"

    vocabulary: int = 200
    """Tokens to choose from."""

    spread: float = 2.0
    """Std of the trainer's logits: how peaked its policy is."""

    noise: float = 0.2
    """Std of the sampler's error on each logit, in nats."""

    outliers: int = 3
    """Likely tokens whose probability the sampler badly underestimates: those that follow the five likeliest."""

    outlier_nats: float = 3.0
    """By how much it underestimates their logits, in nats."""

    batch_size: int = 256
    """Answers in a batch."""

    batches: int = 400
    """Batches, each of which gives one estimate of the gradient."""

    cap: float = 2.0
    """Cap C of tis (cut down to it) and mis (dropped above it) on the ratio pi / mu."""

    seed: int = 0
    """Seed of the two policies and the advantages; the samples are drawn with the next one."""

    SAFE: ClassVar[int] = 5
    """Likeliest tokens that are never outliers."""

    def _check(self) -> None:
        self._within("vocabulary", self.SAFE + 2, 20_000)
        self._above_zero("spread", 20)
        self._within("noise", 0, 10)
        self._within("outliers", 0, self.vocabulary - self.SAFE)
        self._within("outlier_nats", 0, 15)
        self._within("batch_size", 1, 100_000)
        self._within("batches", 2, 10_000)
        if self.batches * self.vocabulary > MAX_TOKENS:
            must = f"at most {MAX_TOKENS // self.vocabulary:,} with a vocabulary of {self.vocabulary:,}"
            raise self._bad("batches", must, self.batches)
        self._above_zero("cap", 1e9)
        self._check_seed()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipHigherParameters(Parameters):
    """Tokens with a positive advantage under several upper bounds, for `upweight lab clip-higher`."""

    OWNER: ClassVar[str] = "upweight lab clip-higher"

    probabilities: tuple[float, ...] = (0.01, 0.9)
    """Probability of each token under the old policy."""

    clip_high: tuple[float, ...] = (0.2, 0.28)
    """Upper bounds to compare: a ratio above 1 + clip_high is no longer pushed."""

    updates: int = 30
    """Updates that the figure follows, each one as large as the bound lets it be."""

    def _check(self) -> None:
        # Below, 1 / probability leaves the range of a float.
        self._each("probabilities", 1e-300, 1)
        self._each("clip_high", 0, 1000)
        self._within("updates", 1, 10_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class StripParameters(Parameters):
    """The six panels at the defaults of their experiments, for `upweight lab strip`."""

    OWNER: ClassVar[str] = "upweight lab strip"

    seed: int = 0
    """Seed of the experiments that draw random numbers."""

    def _check(self) -> None:
        self._check_seed()


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestParameters(Parameters):
    """Five questions, for `upweight lab self-test`."""

    OWNER: ClassVar[str] = "upweight lab self-test"

    answers: bool = False
    """Print every answer below its question, without waiting."""


def _must_be(hint: object, value: object) -> str | None:
    """`must_be`, also for a tuple of any number of values."""
    if typing.get_origin(hint) is not tuple:
        return must_be(hint, value)
    if not isinstance(value, tuple):
        return "a tuple of numbers"
    member = typing.get_args(hint)[0]
    wrong = [must for item in value if (must := must_be(member, item))]
    return f"numbers, each {wrong[0]}" if wrong else None


def _shown(values: Sequence[float]) -> str:
    return ",".join(f"{value:.15g}" for value in values)
