"""`Launch`: how a run is started. What is computed is `TrainArgs`; of these, shard alone changes numbers, by rounding.

Imports no torch.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from upweight.objective.errors import bad_parameter
from upweight.objective.fields import must_be

LONGEST_WAIT = 2_000_000
"""Seconds, 23 days: what processes wait with counts milliseconds, and some of it in 31 bits."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a run is started, and where its memory goes."""

    resume: str | None = None
    """Go on from a checkpoint: auto takes the newest whole one of --output_dir (and starts afresh where there is
    none); else a folder RUN/checkpoint-N, or RUN."""

    resume_override: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on even where model, tokenizer, data or objective are not those that the checkpoint was made with."""

    shard: Literal["none", "full"] = "none"
    """With several processes (torchrun): every one holds the whole model, or each a part of weights, gradients and
    moments (FSDP2)."""

    rank_timeout: float = 600.0
    """Seconds that one of several processes may keep the others waiting; then they end and say which it was."""

    gradient_checkpointing: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Recompute a layer's activations in the backward pass instead of keeping them: less memory, more time."""


def check_launch(launch: Launch) -> None:
    """Refuse a start that could not work, of one process as of several.

    Raises:
        UsageError: a rank_timeout that no process can wait.

    Example:
        >>> check_launch(Launch(rank_timeout=0))
        Traceback (most recent call last):
        ...
        upweight.objective.errors.UsageError: The 'rank_timeout' parameter of Launch must be at least 1 and at most \
2000000, in seconds. Got 0 instead. 600 is usual.
    """
    seconds = launch.rank_timeout
    if must_be(float, seconds) or not 1 <= seconds <= LONGEST_WAIT:
        must = f"at least 1 and at most {LONGEST_WAIT}, in seconds"
        raise bad_parameter("rank_timeout", "Launch", must, seconds, "600 is usual.")
