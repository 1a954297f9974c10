"""What travels out of `rewards/`: a number and how it came about; an error is never a zero."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How judging an answer ended."""

    SCORED = "scored"
    """A number came back."""

    NOT_APPLICABLE = "not-applicable"
    """The reward function returned None: it has nothing to say about this answer."""

    ERROR = "error"
    """The reward function raised."""

    TIMEOUT = "timeout"
    """The reward function was ended at its deadline."""

    UNPARSABLE_GOLD = "unparsable-gold"
    """The gold answer could not be read, so nothing can be judged against it."""


FAILURES = (Status.ERROR, Status.TIMEOUT)
"""What counts as a failure of a reward function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The verdict on one answer."""

    value: float
    """The task reward; NaN exactly where status is not `scored`. Never 0 for an answer that was not judged."""

    status: Status = Status.SCORED
    """How judging ended."""

    why: str = ""
    """One line for a person: how it was judged, or what went wrong."""

    extracted: str | None = None
    """What a verifier took for the answer; None where it found none, or does not say."""

    gold_parsed: str | None = None
    """What a verifier read the gold answer as; None where it could not, or does not say."""

    def __post_init__(self) -> None:
        if math.isnan(self.value) != (self.status is not Status.SCORED):
            raise ValueError(
                f"A Score is NaN exactly where it was not scored. Got {self.value!r} with {self.status!r}."
            )
