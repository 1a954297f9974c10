"""`LocalEngine`: sampling with the policy's own weights, in this process.

Shapes: S sequences of a call, A of them being decoded, T new tokens, V words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from upweight.objective.errors import UsageError, bad_parameter
from upweight.policy.decoder import Decoder
from upweight.policy.policy import Policy
from upweight.rollout.cached import PaddedRows, Rows, SharedRows
from upweight.rollout.completion import Completion, FinishReason, Sampling
from upweight.rollout.draw import draw_tokens
from upweight.rollout.noise import uniforms
from upweight.rollout.tokens import completion_mask

# Dropping finished rows copies the whole cache: worth it once this share of the batch is dead weight.
_COMPACT_BELOW = 0.75

_KeptStep = tuple[list[int], np.ndarray, np.ndarray]
"""Of one position: the rows [A], the sizes of their kept sets [A], and the sets' ids one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """Answers to one prompt that are begun together."""

    prompt: int
    """Place of the prompt in the call."""

    samples: range
    """Numbers of the answers."""


class LocalEngine:
    """Samples from a policy with a KV cache; implements `Engine`.

    Each prompt goes through the model once, and its answers share what the model remembers of it. Sequences that have
    ended leave the batch; where the model's layers are known (`Decoder.fits`), new ones take their place. Noise is
    keyed by (seed, row, draw, sample, position), so an answer does not depend on the batch, the order or the company it
    was sampled in (up to rounding of the logits, which can only matter where the noise falls within it of a boundary).
    """

    def __init__(
        self, policy: Policy, *, max_batch_tokens: int = 32768, between: Callable[[], None] | None = None
    ) -> None:
        """Bind a policy; its weights are read at every call, so an update shows at once.

        Args:
            policy: the model that samples.
            max_batch_tokens: bound on the sequences' prompts and new tokens that are remembered at once, which bounds
                memory. At least one sequence is always sampled. Never changes what is sampled.
            between: called before every token; what it raises ends the sampling.

        Raises:
            UsageError: max_batch_tokens below 1.
        """
        if max_batch_tokens < 1:
            raise bad_parameter("max_batch_tokens", "LocalEngine", "at least 1", max_batch_tokens)
        self.policy = policy
        self.max_batch_tokens = max_batch_tokens
        self.between = between

    def generate(
        self,
        prompt_token_ids: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        *,
        keys: Sequence[tuple[int, int]] | None = None,
    ) -> list[list[Completion]]:
        """Sample `n` answers to each prompt; see `Engine.generate`.

        Raises:
            UsageError: a prompt that is empty or does not leave room for the budget in the context, n below 1, or
                a sampling parameter out of range.
            ValueError: as many keys as prompts were not given.
            RuntimeError: the model produced NaN.
        """
        self._check(prompt_token_ids, n, sampling, keys)
        named = [(place, 0) for place in range(len(prompt_token_ids))] if keys is None else list(keys)
        with torch.inference_mode():
            completions = self._sample(prompt_token_ids, _noise(sampling, named, range(n)), n, sampling)
        return [completions[place * n : (place + 1) * n] for place in range(len(prompt_token_ids))]

    def _check(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        keys: Sequence[tuple[int, int]] | None,
    ) -> None:
        if n < 1:
            raise bad_parameter("n", "LocalEngine.generate", "at least 1", n)
        if keys is not None and len(keys) != len(prompts):
            raise ValueError(f"LocalEngine.generate got {len(keys)} keys for {len(prompts)} prompts: one each.")
        check_sampling(sampling)
        limit = self.policy.context_length
        for place, prompt in enumerate(prompts):
            if not prompt:
                raise UsageError(
                    f"Prompt {place} has no tokens: a model cannot answer an empty prompt; give it a text."
                )
            if len(prompt) + sampling.max_new_tokens > limit:
                raise UsageError(
                    f"Prompt {place} has {len(prompt)} tokens, which with {sampling.max_new_tokens} new ones exceeds "
                    f"the context of {self.policy.name!r}, {limit} tokens: shorten or drop the prompt, or lower "
                    f"--max_new_tokens to at most {max(0, limit - len(prompt))}."
                )

    def _plan(self, lengths: Sequence[int], n: int, budget: int) -> tuple[Rows, list[_Order]]:
        """The memory, and the answers in the order in which they join: prompts of similar length together.

        One prompt's answers are begun in parts where they do not fit at once.
        """
        longest, shared = max(lengths), Decoder.fits(self.policy.model)
        room = self.max_batch_tokens - longest if shared else self.max_batch_tokens
        each = budget if shared else longest + budget
        width = min(n, max(1, room // each))
        orders = [
            _Order(prompt=place, samples=range(first, min(n, first + width)))
            for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
            for first in range(0, n, width)
        ]
        if not shared:
            return PaddedRows(self.policy, max(1, room // (width * each))), orders
        at_once = max(1, self.max_batch_tokens // (longest + width * budget))
        return SharedRows(
            self.policy,
            prompts=min(len(orders), at_once),
            width=width,
            prompt_tokens=longest,
            new_tokens=budget,
        ), orders

    def _sample(self, prompts: Sequence[Sequence[int]], noise: Tensor, n: int, sampling: Sampling) -> list[Completion]:
        """Answers to the prompts, `n` each, in order; `noise` is [S, T] float64."""
        count, budget = noise.shape
        if not count:
            return []
        device = self.policy.device
        ids = torch.full((count, budget), self.policy.pad_id, device=device)
        logprobs = torch.zeros(count, budget, device=device)
        kept: list[_KeptStep] = []
        noise = noise.to(device)
        ends = torch.tensor(sorted(self.policy.end_ids), dtype=torch.int64, device=device)
        memory, waiting = self._plan([len(prompt) for prompt in prompts], n, budget)
        rows = torch.zeros(0, dtype=torch.long, device=device)
        positions, ended, logits = rows, rows.bool(), logprobs[:0]
        while waiting or len(rows):
            if self.between is not None:
                self.between()
            joining, waiting = waiting[: memory.room()], waiting[memory.room() :]
            if joining:
                new = memory.admit([prompts[order.prompt] for order in joining], [len(o.samples) for o in joining])
                logits = torch.cat([logits, new]) if len(rows) else new
                numbers = torch.tensor([o.prompt * n + number for o in joining for number in o.samples], device=device)
                fresh = torch.zeros_like(numbers)
                rows, positions = torch.cat([rows, numbers]), torch.cat([positions, fresh])
                ended = torch.cat([ended, fresh.bool()])
            tokens, logp, mask = draw_tokens(logits, noise[rows, positions], sampling)
            ids[rows, positions], logprobs[rows, positions] = tokens, logp
            if mask is not None:
                kept.append((rows.tolist(), mask.sum(dim=1).cpu().numpy(), mask.nonzero()[:, 1].int().cpu().numpy()))
            positions = positions + 1
            full = positions == budget
            ended |= torch.isin(tokens, ends) | full
            if bool(full.any()) or len(rows) - int(ended.sum()) <= _COMPACT_BELOW * len(rows):
                chosen = (~ended).nonzero().squeeze(1)
                memory.select(chosen)
                rows, positions, ended, tokens = (part[chosen] for part in (rows, positions, ended, tokens))
            if len(rows):
                logits = memory.step(tokens)
        return self._completions(ids, logprobs, kept)

    def _completions(self, ids: Tensor, logprobs: Tensor, kept: list[_KeptStep]) -> list[Completion]:
        mask, finished = completion_mask(ids, self.policy.end_ids)
        if bool((logprobs.isnan() & mask).any()):
            raise RuntimeError(
                f"The model {self.policy.name!r} (weights version {self.policy.version}) produced NaN while sampling: "
                "its weights are broken; go back to the last checkpoint, or lower the learning rate."
            )
        lengths = mask.sum(dim=1).tolist()
        sets = _kept_sets(kept, lengths) if kept else None
        version, completions = self.policy.version, []
        for row, (tokens, logps, length, stopped) in enumerate(
            zip(ids.tolist(), logprobs.tolist(), lengths, finished.tolist(), strict=True)
        ):
            completions.append(
                Completion(
                    token_ids=tuple(tokens[:length]),
                    logprobs=tuple(logps[:length]),
                    loss_mask=(True,) * length,
                    weights_versions=(version,) * length,
                    finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
                    kept=None if sets is None else tuple(sets[row]),
                )
            )
        return completions


def check_sampling(sampling: Sampling) -> None:
    """Raise UsageError where a sampling parameter is out of range."""
    rules = (
        ("max_new_tokens", "at least 1", sampling.max_new_tokens >= 1),
        ("temperature", "at least 0 and finite", 0 <= sampling.temperature < float("inf")),
        ("top_p", "in (0, 1]", 0 < sampling.top_p <= 1),
        ("top_k", "at least 0 (0 keeps all)", sampling.top_k >= 0),
    )
    for name, must, holds in rules:
        if not holds:
            raise bad_parameter(name, "Sampling", must, getattr(sampling, name))


def _noise(sampling: Sampling, keys: Sequence[tuple[int, int]], samples: range) -> Tensor:
    """[len(keys) * len(samples), max_new_tokens] float64: all noise of a chunk, sample after sample."""
    rows = np.array([row for row, _ in keys], dtype=np.int64)[:, None, None]
    draws = np.array([draw for _, draw in keys], dtype=np.int64)[:, None, None]
    numbers = np.arange(samples.start, samples.stop)[None, :, None]
    table = uniforms(sampling.seed, rows, draws, numbers, np.arange(sampling.max_new_tokens)[None, None, :])
    return torch.from_numpy(table.reshape(-1, sampling.max_new_tokens))


def _kept_sets(steps: Sequence[_KeptStep], lengths: Sequence[int]) -> list[list[np.ndarray]]:
    """Per sequence and token the ids it was chosen among."""
    sets: list[list[np.ndarray]] = [[] for _ in lengths]
    for rows, counts, ids in steps:
        for row, chosen in zip(rows, np.split(ids, counts.cumsum()[:-1]), strict=True):
            # A finished row that has not left the batch yet goes on drawing; nothing after its end is kept.
            if len(sets[row]) < lengths[row]:
                sets[row].append(chosen.copy())
    return sets
