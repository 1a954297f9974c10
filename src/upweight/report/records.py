"""What an explanation is made of. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What of a run, beside its objective, decides what the objective means."""

    group_size: int = 8
    """G, answers per prompt."""

    max_new_tokens: int | None = None
    """L_max, the generation budget of an answer in tokens; None = the task says."""

    minibatches: int = 1
    """M, the parts that a batch is split into, one optimiser update each."""

    epochs_per_batch: int = 1
    """K, how often the batch is gone through."""

    temperature: float = 1.0
    """Of sampling."""

    top_p: float = 1.0
    """Nucleus sampling, 1 = off."""

    top_k: int = 0
    """Top-k sampling, 0 = off."""

    buffer_share: int | None = None
    """Where the objective leaves its overlong buffer open: the budget divided by this; None = no buffer."""

    @property
    def updates(self) -> int:
        """Optimiser updates per batch."""
        return self.minibatches * self.epochs_per_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """One equation."""

    plain: str
    """In ASCII."""

    latex: str
    """For a maths environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the objective."""

    name: str
    """What it is about."""

    formulas: tuple[Formula, ...] = ()
    """Its equations."""

    says: tuple[str, ...]
    """What they leave out, sentence by sentence."""

    facts: Mapping[str, object] = field(default_factory=dict)
    """The choices and what follows from them, for programs."""


def math(plain: str, latex: str) -> Formula:
    """One equation in both spellings."""
    return Formula(plain=plain, latex=latex)


def number(value: float) -> str:
    """The shortest spelling of a number.

    Example:
        >>> number(1e-6), number(1 - 0.0003), number(2.0)
        ('1e-06', '0.9997', '2')
    """
    return f"{value:g}"


def latex_number(value: float) -> str:
    """The same for LaTeX.

    Example:
        >>> latex_number(2e-6), latex_number(0.2)
        ('2 \\\\cdot 10^{-6}', '0.2')
    """
    digits, e, exponent = number(value).partition("e")
    if not e:
        return digits
    power = f"10^{{{int(exponent)}}}"
    return power if digits == "1" else rf"{digits} \cdot {power}"
