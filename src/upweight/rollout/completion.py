"""What travels out of `rollout/`: token lists as an engine sampled them, never re-tokenised text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np


class FinishReason(StrEnum):
    """Why the sampler stopped. The only source of truth about truncation."""

    STOP = "stop"
    """An end token (kept, and trained on) or a stop string."""

    LENGTH = "length"
    """The budget of new tokens was used up: a truncated answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How answers are drawn. The log-probabilities an engine returns are of exactly this distribution."""

    max_new_tokens: int
    """Budget of one answer in tokens, >= 1, end token included."""

    temperature: float = 1.0
    """Logits are divided by it before the softmax; 0 means greedy (log-probabilities are then 0)."""

    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches it, in (0, 1]; 1 keeps all."""

    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all. Applied before top_p."""

    seed: int = 0
    """Key of the sampling noise, with the row, the draw, the sample and the position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One sampled answer, token by token. All per-token fields have the same length T >= 1."""

    token_ids: tuple[int, ...]
    """The sampled ids, the end token included where there is one."""

    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was sampled from (nats); NaN = not scored."""

    loss_mask: tuple[bool, ...]
    """True where the token is the policy's own and is trained on; interior False is tool output."""

    weights_versions: tuple[int, ...]
    """Version of the policy's weights that sampled each token."""

    finish_reason: FinishReason
    """Why it ended, from the sampler."""

    kept: tuple[np.ndarray, ...] | None = None
    """Under top_p/top_k: the token ids (int32) that each token was chosen among; None = all."""

    def __post_init__(self) -> None:
        lengths = {
            "logprobs": len(self.logprobs),
            "loss_mask": len(self.loss_mask),
            "weights_versions": len(self.weights_versions),
            "kept": len(self.token_ids) if self.kept is None else len(self.kept),
        }
        for name, length in lengths.items():
            if length != len(self.token_ids):
                raise ValueError(
                    f"A Completion of {len(self.token_ids)} tokens came with {length} {name}: per-token "
                    "fields must match one to one, and are never filled up or re-tokenised."
                )


class Engine(Protocol):
    """Anything that samples: the built-in engine, a server."""

    def generate(
        self,
        prompt_token_ids: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        *,
        keys: Sequence[tuple[int, int]] | None = None,
    ) -> list[list[Completion]]:
        """Sample `n` answers to each prompt.

        Args:
            prompt_token_ids: P prompts as token ids, none empty, none padded.
            n: answers per prompt (G), >= 1.
            sampling: the distribution and the budget.
            keys: (row, draw) of each prompt, the identity its sampling noise is keyed by; the position in
                the list where None.

        Returns:
            P lists of `n` completions, in order.
        """
        ...
