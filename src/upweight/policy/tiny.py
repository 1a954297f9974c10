"""`tiny`: a decoder of a million parameters and a byte-level tokenizer, made on the spot."""

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from upweight.policy.known import CONTEXTS

CONTEXT_LENGTH = CONTEXTS["tiny"]


def byte_tokenizer() -> Any:
    """A tokenizer whose id of a byte is the byte, with `<pad>` = 256 and `<eos>` = 257; any text round-trips.

    It adds no special token to a text, and text that spells one is read as bytes: a prompt cannot smuggle one in.
    """
    symbols = byte_symbols()
    core = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<pad>", special=True), AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_max_length=CONTEXT_LENGTH,
    )


def tiny_model(seed: int, tokenizer: Any) -> Any:
    """A fresh Llama of about a million parameters in float32, the same for the same seed; global noise untouched."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LENGTH,
        # Four times the usual: from 0.02, 400 steps of warm-up at 2e-3 left greedy accuracy on addition at 0.08.
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def byte_symbols() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, by byte (GPT-2's table: Radford et al. 2019)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
