"""`LocalEngine`: sampling with the policy's own weights, in this process.

Shapes: S sequences of a chunk, A of them still alive, P columns of padded prompts, T new tokens, V words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from upweight.objective.errors import UsageError, bad_parameter
from upweight.policy.policy import Policy, cache_argument
from upweight.rollout.completion import Completion, FinishReason, Sampling
from upweight.rollout.draw import draw_tokens
from upweight.rollout.noise import uniforms
from upweight.rollout.tokens import completion_mask

# Dropping finished rows copies the whole cache: worth it once this share of the batch is dead weight.
_COMPACT_BELOW = 0.75

_KeptStep = tuple[list[int], np.ndarray, np.ndarray]
"""Of one position: the rows [A], the sizes of their kept sets [A], and the sets' ids one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """Sequences that are sampled together: `samples` answers to each of `prompts`."""

    prompts: Sequence[int]
    """Places of the prompts in the call."""

    samples: range
    """Numbers of the answers, the same for each prompt."""


class LocalEngine:
    """Samples from a policy with a KV cache; implements `Engine`.

    Each prompt goes through the model once and its cache is repeated for its answers. Sequences that have ended
    leave the batch. Noise is keyed by (seed, row, draw, sample, position), so an answer does not depend on the
    batch, the order or the chunk it was sampled in (up to rounding of the logits, which can only matter where the
    noise falls within it of a boundary).
    """

    def __init__(self, policy: Policy, *, max_batch_tokens: int = 32768) -> None:
        """Bind a policy; its weights are read at every call, so an update shows at once.

        Args:
            policy: the model that samples.
            max_batch_tokens: bound on sequences x (prompt + new tokens) of one chunk, which bounds the memory of
                the cache. At least one sequence is always sampled. Never changes what is sampled.

        Raises:
            UsageError: max_batch_tokens below 1.
        """
        if max_batch_tokens < 1:
            raise bad_parameter("max_batch_tokens", "LocalEngine", "at least 1", max_batch_tokens)
        self.policy = policy
        self.max_batch_tokens = max_batch_tokens
        self._cache_argument = cache_argument(policy.model)

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
        answers: list[list[Completion]] = [[] for _ in prompt_token_ids]
        with torch.inference_mode():
            for chunk in self._chunks([len(prompt) for prompt in prompt_token_ids], n, sampling.max_new_tokens):
                prompts = [prompt_token_ids[place] for place in chunk.prompts]
                noise = _noise(sampling, [named[place] for place in chunk.prompts], chunk.samples)
                completions = self._sample(prompts, noise, len(chunk.samples), sampling)
                for number, completion in enumerate(completions):
                    answers[chunk.prompts[number // len(chunk.samples)]].append(completion)
        return answers

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

    def _chunks(self, lengths: Sequence[int], n: int, budget: int) -> Iterator[_Chunk]:
        """Prompts of similar length together, as many as fit; one prompt's answers are cut where they do not fit."""
        order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
        start = 0
        while start < len(order):
            # Sorted, so the first prompt of a chunk is its longest.
            room = max(1, self.max_batch_tokens // (lengths[order[start]] + budget))
            count = max(1, room // n)
            for first in range(0, n, room):
                yield _Chunk(prompts=order[start : start + count], samples=range(first, min(n, first + room)))
            start += count

    def _sample(
        self, prompts: Sequence[Sequence[int]], noise: Tensor, repeats: int, sampling: Sampling
    ) -> list[Completion]:
        """Answers to the prompts, `repeats` each, in order; `noise` is [S, T] float64."""
        count, budget = noise.shape
        device = self.policy.device
        ids = torch.full((count, budget), self.policy.pad_id, device=device)
        logprobs = torch.zeros(count, budget, device=device)
        kept: list[_KeptStep] = []
        noise = noise.to(device)
        rows = torch.arange(count, device=device)
        alive = torch.ones(count, dtype=torch.bool, device=device)
        ends = torch.tensor(sorted(self.policy.end_ids), dtype=torch.int64, device=device)
        state = _Decoder(self.policy.model, self._cache_argument, self.policy.pad_id, device)
        logits = state.prefill(prompts, repeats)
        for position in range(budget):
            tokens, logp, mask = draw_tokens(logits, noise[rows, position], sampling)
            ids[rows, position], logprobs[rows, position] = tokens, logp
            if mask is not None:
                kept.append((rows.tolist(), mask.sum(dim=1).cpu().numpy(), mask.nonzero()[:, 1].int().cpu().numpy()))
            alive &= ~torch.isin(tokens, ends)
            left = int(alive.sum())
            if left == 0 or position == budget - 1:
                break
            if left <= _COMPACT_BELOW * len(rows):
                chosen = alive.nonzero().squeeze(1)
                state.select(chosen)
                rows, tokens, alive = rows[chosen], tokens[chosen], alive[chosen]
            logits = state.step(tokens)
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


class _Decoder:
    """The model with its KV cache, attention mask and positions, one token a row at a time."""

    def __init__(self, model: Any, cache_name: str, pad_id: int, device: torch.device) -> None:
        self.model, self.cache_name, self.pad_id, self.device = model, cache_name, pad_id, device
        self.cache = DynamicCache(config=model.config)
        self.mask = torch.zeros(0)
        self.positions = torch.zeros(0)
        self.padded = False

    def prefill(self, prompts: Sequence[Sequence[int]], repeats: int) -> Tensor:
        """Run each prompt once, repeat its cache for its answers; logits [S, V] of the first new token."""
        width = max(len(prompt) for prompt in prompts)
        ids = np.full((len(prompts), width), self.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        self.padded = bool((mask == 0).any())
        attention = torch.from_numpy(mask).to(self.device)
        positions = (attention.cumsum(dim=1) - 1).clamp_(min=0)
        logits = self._forward(torch.from_numpy(ids).to(self.device), attention, positions)
        self.cache.batch_repeat_interleave(repeats)
        self.mask = attention.repeat_interleave(repeats, dim=0)
        self.positions = positions[:, -1:].repeat_interleave(repeats, dim=0)
        return logits.repeat_interleave(repeats, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row; logits [A, V] of the next."""
        self.positions = self.positions + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        return self._forward(tokens[:, None], self.mask, self.positions)

    def select(self, rows: Tensor) -> None:
        """Keep these rows alone."""
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        # Without padding there is nothing to mask, and attention without a mask is the faster kernel.
        logits: Tensor = self.model(
            input_ids=ids,
            attention_mask=mask if self.padded else None,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_name: self.cache},
        ).logits
        return logits[:, -1]


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
