"""A GGUF file as a plain Hugging Face model: de-quantised, without `quantization_config`, so that it saves."""

import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from upweight.objective.errors import UsageError


def read_gguf(path: Path) -> tuple[Any, Any]:
    """Model (float32) and tokenizer of a GGUF file.

    `from_pretrained(gguf_file=...)` marks the model as quantised; this rebuilds it from its configuration and loads
    the de-quantised tensors, so saving and training work as with any other model.

    Args:
        path: the file.

    Raises:
        UsageError: the file cannot be read as GGUF of a supported architecture, or lacks tensors.
    """
    folder, name = str(path.parent), path.name
    try:
        # The converter's progress bar has no switch; it writes to whatever stderr is.
        with contextlib.redirect_stderr(io.StringIO()):
            config = AutoConfig.from_pretrained(folder, gguf_file=name)
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
            with torch.device("meta"):
                skeleton = AutoModelForCausalLM.from_config(config)
            tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)["tensors"]
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError, struct.error) as error:
        raise UsageError(
            f"{path} could not be read as a GGUF model ({first_line(error)}): give another file, or a model folder."
        ) from error
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {key: torch.as_tensor(value) for key, value in tensors.items()}
    result = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    absent = sorted(set(result.missing_keys) - tied)
    if absent or result.unexpected_keys:
        raise UsageError(
            f"{path} does not fit its own architecture {config.model_type} (missing {absent[:3]}, unexpected "
            f"{result.unexpected_keys[:3]}): give another file, or a model folder."
        )
    model.tie_weights()
    return model, tokenizer


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
