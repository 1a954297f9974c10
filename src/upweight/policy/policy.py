"""`Policy`: a causal language model with its tokenizer, and the three things the trainer asks of it."""

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upweight.objective.errors import UsageError, bad_parameter
from upweight.policy.decoder import Decoder
from upweight.policy.head import head_logprobs
from upweight.policy.logprob import TokenScores, token_logprobs
from upweight.policy.pack import Pack, attend_for, pack
from upweight.policy.quiet import quiet_transformers
from upweight.policy.variants import Float32Linear
from upweight.tasks.prompt import Prompt

Kept = Sequence[np.ndarray] | None
"""Per token of one completion the ids (int32) it was chosen among; None = the whole vocabulary."""


class Policy:
    """A Hugging Face causal LM, its tokenizer, and what sampler and trainer must agree on.

    The model is put into eval mode once and stays there: sampler, trainer and reference have to compute the same
    function, and a dropout that was active in one of them would make the ratio differ from 1 at identical weights.
    Gradients do not depend on the mode.

    Attributes:
        model: the causal LM; a trainer may wrap its layers in place.
        tokenizer: its tokenizer.
        name: what it was loaded as, for messages and records.
        end_ids: every id that ends an answer: the tokenizer's eos and the generation config's eos list.
        pad_id: the id that fills unused slots; never attended to, so its value changes nothing.
        context_length: prompt plus answer, in tokens, at most.
        version: of the weights; the trainer adds 1 after each optimiser update.
    """

    def __init__(self, *, model: Any, tokenizer: Any, name: str) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.end_ids = _end_ids(model, tokenizer)
        self.pad_id = _pad_id(tokenizer, self.end_ids)
        self.context_length = _context_length(model, tokenizer)
        self.version = 0

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        place: torch.device = next(iter(self.model.parameters())).device
        return place

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of the passes."""
        dtype: torch.dtype = next(iter(self.model.parameters())).dtype
        return dtype

    @property
    def has_chat_template(self) -> bool:
        """Whether lists of messages can be encoded."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def shares_prompts(self) -> bool:
        """Whether a pass encodes a prompt once for all of its answers, and pads nothing."""
        return Decoder.fits(self.model)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, begin-of-sequence token at most once.

        A string goes to the tokenizer as it is. Messages are rendered by the chat template with its generation
        prompt, and tokenised without special tokens: the template has written those itself.

        Args:
            prompt: the row; only its `text` is read.

        Returns:
            The ids, at least one.

        Raises:
            UsageError: messages without a chat template, or a prompt of no tokens.
        """
        if isinstance(prompt.text, str):
            ids = list(self.tokenizer(prompt.text)["input_ids"])
            bos = self.tokenizer.bos_token_id
            # Text copied from a rendered template carries the token that the tokenizer adds as well.
            if bos is not None and ids[:2] == [bos, bos]:
                ids = ids[1:]
        elif not self.has_chat_template:
            raise UsageError(
                f"The prompt of row {prompt.row} is a list of messages, but the tokenizer of {self.name!r} has no chat "
                "template: give the prompt as a string, or choose an instruct model."
            )
        else:
            text = self.tokenizer.apply_chat_template(prompt.said, tokenize=False, add_generation_prompt=True)
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if not ids:
            raise UsageError(
                f"The prompt of row {prompt.row} has no tokens: a model cannot answer an empty prompt; give it a text."
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens skipped. For rewards and people; training uses the ids."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        *,
        temperature: float = 1.0,
        kept: Sequence[Kept] | None = None,
    ) -> TokenScores:
        """Log-probability and entropy of every completion token, given its prompt and the tokens before it.

        One forward pass; the scores of a sequence do not depend on its neighbours. Where the model's layers are known
        (`shares_prompts`), equal prompts are encoded once, nothing is padded, and the logits never exist as a whole.
        Elsewhere prompts are padded on the left and completions on the right, with mask and positions given. The last
        token of a completion is a label only and is not fed.

        Args:
            prompts: B prompts as ids, each at least one token.
            completions: B completions as ids; an empty one contributes no token.
            temperature: > 0; the sampler's, so that both speak of the same distribution.
            kept: B entries where the sampler used top-k or top-p: per token the ids it was chosen among (logits of
                all others are -inf), or None for a sequence sampled from the whole vocabulary.

        Returns:
            Scores of the N = sum of completion lengths tokens, sequence after sequence.

        Raises:
            UsageError: temperature not above 0, an empty prompt, a sequence beyond the context.
            ValueError: lists of different lengths, or a token outside its kept set.
        """
        _check_score(prompts, completions, temperature, kept, self.context_length)
        lengths = [len(completion) for completion in completions]
        flat = [token for completion in completions for token in completion]
        if not flat:
            empty = torch.zeros(0, device=self.device)
            return TokenScores(logprobs=empty, entropy=empty)
        sets = None if kept is None else _per_token(kept, lengths)
        if self.shares_prompts:
            return self._score_packed(pack(prompts, completions), temperature, sets)
        input_ids, attention, positions = self._pad(prompts, completions)
        width = max(lengths)
        logits = self.model(
            input_ids=input_ids,
            attention_mask=attention,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=width,
        ).logits
        if min(lengths) == width:
            rows = logits.reshape(len(flat), -1)
        else:
            real = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]
            rows = logits[real.to(logits.device)]
        logprobs, entropy = token_logprobs(
            rows,
            torch.tensor(flat, device=rows.device),
            temperature=temperature,
            kept=sets,
        )
        return TokenScores(logprobs=logprobs, entropy=entropy)

    def _score_packed(self, layout: Pack, temperature: float, kept: Sequence[np.ndarray | None] | None) -> TokenScores:
        decoder = Decoder(self.model)
        hidden = decoder.hidden(layout.ids, layout.positions, attend_for(layout, self.dtype, decoder.heads))
        hidden, head = hidden[layout.predicts], self.model.lm_head
        if type(head) in (torch.nn.Linear, Float32Linear) and head.bias is None:
            wide = isinstance(head, Float32Linear)
            scores = head_logprobs(
                hidden, head.weight, layout.targets, temperature=temperature, kept=kept, float32=wide
            )
        else:  # an adapter, a bias
            scores = token_logprobs(head(hidden), layout.targets, temperature=temperature, kept=kept)
        return TokenScores(logprobs=scores[0], entropy=scores[1])

    def _pad(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Input ids, attention mask and position ids [B, T] of prompts and completions without their last token."""
        left = max(len(prompt) for prompt in prompts)
        right = max(len(completion) for completion in completions) - 1
        ids = np.full((len(prompts), left + right), self.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            fed = completion[:-1]
            ids[row, left - len(prompt) : left] = prompt
            ids[row, left : left + len(fed)] = fed
            mask[row, left - len(prompt) : left + len(fed)] = 1
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        input_ids, attention, position_ids = (torch.from_numpy(a).to(self.device) for a in (ids, mask, positions))
        return input_ids, attention, position_ids

    def save(self, folder: str | Path) -> None:
        """Write weights (safetensors), configuration and tokenizer so that the Auto classes load the folder."""
        with quiet_transformers():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def frozen_copy(self) -> "Policy":
        """A copy with weights of its own and no gradients: the reference policy."""
        twin = Policy(model=copy.deepcopy(self.model), tokenizer=self.tokenizer, name=self.name)
        twin.model.requires_grad_(False)
        twin.model.zero_grad(set_to_none=True)
        twin.version = self.version
        return twin


def _check_score(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float,
    kept: Sequence[Kept] | None,
    context_length: int,
) -> None:
    if not temperature > 0:
        raise bad_parameter(
            "temperature",
            "Policy.score",
            "above 0",
            temperature,
            "Greedy answers have no distribution to train on: sample with a temperature.",
        )
    if len(prompts) != len(completions) or (kept is not None and len(kept) != len(completions)):
        raise ValueError(
            f"Policy.score got {len(prompts)} prompts, {len(completions)} completions and "
            f"{'no' if kept is None else len(kept)} kept sets: they must match one to one."
        )
    for prompt, completion in zip(prompts, completions, strict=True):
        if not prompt:
            raise bad_parameter("prompts", "Policy.score", "lists of at least one token each", [])
        if len(prompt) + len(completion) > context_length:
            raise UsageError(
                f"A prompt of {len(prompt)} tokens with a completion of {len(completion)} exceeds the context of "
                f"{context_length} tokens: use shorter prompts or a smaller --max_new_tokens."
            )


def _per_token(kept: Sequence[Kept], lengths: Sequence[int]) -> list[np.ndarray | None]:
    flat: list[np.ndarray | None] = []
    for sets, length in zip(kept, lengths, strict=True):
        if sets is not None and len(sets) != length:
            raise ValueError(
                f"A completion of {length} tokens came with {len(sets)} kept sets: one per token, or None."
            )
        flat.extend([None] * length if sets is None else sets)
    return flat


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    listed = getattr(generation, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(listed if isinstance(listed, list | tuple) else [listed])}
    return frozenset(int(end) for end in ids if end is not None)


def _pad_id(tokenizer: Any, end_ids: frozenset[int]) -> int:
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    return min(end_ids, default=0)


def _context_length(model: Any, tokenizer: Any) -> int:
    config = model.config.get_text_config()
    for field in ("max_position_embeddings", "n_positions", "max_seq_len"):
        length = getattr(config, field, None)
        if isinstance(length, int) and length > 0:
            return length
    return int(min(tokenizer.model_max_length, 1 << 20))


def cache_argument(model: Any) -> str:
    """Name of the forward argument that takes the KV cache: transformers 5.24 renamed it to `cache`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
