"""Sequences that are being decoded, with what the model remembers of them: two ways to keep the same thing.

Shapes: A rows, one a sequence; P prompts that are in use, W places to a prompt; V words; K key heads, D head size.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from upweight.policy.attention import attend_over, attend_shared, merge, prompt_mask
from upweight.policy.blocked import decoder_for_steps
from upweight.policy.decoder import Decoder
from upweight.policy.operand import Operand
from upweight.policy.pack import padded, ranges, unpadded
from upweight.policy.policy import Policy, cache_argument


class Rows(Protocol):
    """A batch of sequences, one token a step."""

    def room(self) -> int:
        """How many more prompts may join now."""
        ...

    def admit(self, prompts: Sequence[Sequence[int]], repeats: Sequence[int]) -> Tensor:
        """Run the prompts once and add `repeats` rows for each behind the rows there are.

        Returns:
            Logits [sum of repeats, V] of the new rows' first tokens.
        """
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row; logits [A, V] of the next."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows alone, in this order."""
        ...


class PaddedRows:
    """Any causal LM, by its own forward: prompts padded on the left, their caches repeated, one batch at a time."""

    def __init__(self, policy: Policy, prompts: int) -> None:
        self.model, self.pad_id, self.device = policy.model, policy.pad_id, policy.device
        self.cache_name = cache_argument(policy.model)
        self.prompts = prompts
        self.rows = 0

    def room(self) -> int:
        """All of it, or nothing: rows that joined later would need other padding."""
        return 0 if self.rows else self.prompts

    def admit(self, prompts: Sequence[Sequence[int]], repeats: Sequence[int]) -> Tensor:
        """See `Rows.admit`."""
        width = max(len(prompt) for prompt in prompts)
        ids = np.full((len(prompts), width), self.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        self.padded = bool((mask == 0).any())
        self.cache = DynamicCache(config=self.model.config)
        attention = torch.from_numpy(mask).to(self.device)
        positions = (attention.cumsum(dim=1) - 1).clamp_(min=0)
        logits = self._forward(torch.from_numpy(ids).to(self.device), attention, positions)
        which = torch.arange(len(prompts), device=self.device).repeat_interleave(
            torch.tensor(repeats, device=self.device)
        )
        self.cache.batch_select_indices(which)
        self.mask, self.positions = attention[which], positions[which, -1:]
        self.rows = len(which)
        return logits[which]

    def step(self, tokens: Tensor) -> Tensor:
        """See `Rows.step`."""
        self.positions = self.positions + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        return self._forward(tokens[:, None], self.mask, self.positions)

    def select(self, rows: Tensor) -> None:
        """See `Rows.select`."""
        self.rows = len(rows)
        if self.rows:
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


class SharedRows:
    """A model that `Decoder` walks through: a prompt's keys and values are there once, and rows come and go.

    The memory is claimed once: for each layer, keys and values of `prompts` prompts, and of
    `prompts` x `width` answers.
    """

    def __init__(self, policy: Policy, *, prompts: int, width: int, prompt_tokens: int, new_tokens: int) -> None:
        """Claim the memory.

        Args:
            policy: what samples.
            prompts: prompts in use at once.
            width: W, rows a prompt may have.
            prompt_tokens: of the longest prompt.
            new_tokens: budget of an answer.
        """
        self.decoder = decoder = Decoder(policy.model)
        self.steps = decoder_for_steps(policy.model)
        self.width, self.capacity = width, prompts
        dtype = policy.dtype

        def memory(rows: int, tokens: int) -> list[Tensor]:
            shape = (rows, decoder.key_heads, tokens, decoder.head_size)
            return [torch.zeros(shape, dtype=dtype) for _ in range(decoder.layers)]

        self.prompt_keys, self.prompt_values = memory(prompts, prompt_tokens), memory(prompts, prompt_tokens)
        self.keys, self.values = memory(prompts * width, new_tokens), memory(prompts * width, new_tokens)
        self.prompt_lengths = torch.zeros(0, dtype=torch.long)
        self.slots = torch.zeros(0, dtype=torch.long)
        self.fed = torch.zeros(0, dtype=torch.long)
        self.mask: Tensor | None = None

    def room(self) -> int:
        """What is free, where it is worth a pass of its own."""
        free = self.capacity - len(self.prompt_lengths)
        return free if not len(self.slots) or free >= max(1, self.capacity // 4) else 0

    def admit(self, prompts: Sequence[Sequence[int]], repeats: Sequence[int]) -> Tensor:
        """See `Rows.admit`."""
        counts = [len(prompt) for prompt in prompts]
        first, longest = len(self.prompt_lengths), max(counts)
        places = ranges([p * longest for p in range(len(prompts))], counts)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Operand:
            q, k, v = (padded(tensor, places, (len(prompts), longest)) for tensor in (q, k, v))
            self.prompt_keys[layer][first : first + len(prompts), :, :longest] = k
            self.prompt_values[layer][first : first + len(prompts), :, :longest] = v
            return Operand.of(unpadded(attend_over(q, k, v, causal=True)[0], places))

        ids = torch.tensor([token for prompt in prompts for token in prompt])
        hidden = self.decoder.hidden(ids, ranges([0] * len(prompts), counts), attend)
        which = torch.arange(len(prompts)).repeat_interleave(torch.tensor(repeats))
        seats, lengths = ranges([0] * len(prompts), repeats), torch.tensor(counts)
        self.slots = torch.cat([self.slots, (first + which) * self.width + seats])
        self.fed = torch.cat([self.fed, torch.zeros(len(which), dtype=torch.long)])
        self.prompt_lengths = torch.cat([self.prompt_lengths, lengths])
        self._remask()
        return self.decoder.logits(hidden[lengths.cumsum(0) - 1])[which]

    def step(self, tokens: Tensor) -> Tensor:
        """See `Rows.step`."""
        rows, prompts = torch.arange(len(tokens)), len(self.prompt_lengths)
        longest = int(self.fed.max()) + 1
        own_mask = prompt_mask(self.fed + 1, longest, self.keys[0].dtype)
        places, widest = prompts * self.width, int(self.prompt_lengths.max())
        whole = torch.equal(self.slots, torch.arange(places))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Operand:
            keys, values = self.keys[layer], self.values[layer]
            keys[rows, :, self.fed], values[rows, :, self.fed] = k, v
            seated = q if whole else q.new_zeros(places, *q.shape[1:]).index_copy_(0, self.slots, q)
            shared = (self.prompt_keys[layer][:prompts, :, :widest], self.prompt_values[layer][:prompts, :, :widest])
            out_1, lse_1 = (found[:, :, 0] for found in attend_shared(seated[:, :, None], *shared, self.mask))
            if not whole:
                out_1, lse_1 = out_1[self.slots], lse_1[self.slots]
            own = (keys[: len(rows), :, :longest], values[: len(rows), :, :longest])
            out_2, lse_2 = (found[:, :, 0] for found in attend_shared(q[:, :, None], *own, own_mask))
            return Operand.of(merge(out_1, lse_1, out_2, lse_2)[0].flatten(1))

        hidden = self.steps.hidden(tokens, self.prompt_lengths[self.slots // self.width] + self.fed, attend)
        self.fed = self.fed + 1
        return self.steps.logits(hidden)

    def select(self, rows: Tensor) -> None:
        """See `Rows.select`."""
        longest = int(self.fed.max()) if len(self.fed) else 0
        self.slots, self.fed = self.slots[rows], self.fed[rows]
        prompts, of_row = torch.unique(self.slots // self.width, return_inverse=True)
        moved = len(prompts) < len(self.prompt_lengths)
        for layer in range(self.decoder.layers):
            for memory in (self.keys[layer], self.values[layer]):
                memory[: len(rows), :, :longest] = memory[rows, :, :longest]
            for memory in (self.prompt_keys[layer], self.prompt_values[layer]) if moved else ():
                memory[: len(prompts)] = memory[prompts]
        if moved:
            self.slots = of_row * self.width + self.slots % self.width
            self.prompt_lengths = self.prompt_lengths[prompts]
            self._remask()

    def _remask(self) -> None:
        if len(self.prompt_lengths):
            widest = int(self.prompt_lengths.max())
            self.mask = prompt_mask(self.prompt_lengths, widest, self.prompt_keys[0].dtype)
