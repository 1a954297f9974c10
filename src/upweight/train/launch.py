"""`Launch`: how a run is started. What is computed is `TrainArgs`; of these, shard alone changes numbers, by rounding.

Imports no torch.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


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
