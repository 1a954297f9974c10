"""`load_policy`: a model by alias, folder, GGUF file or hub name."""

import os
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.paths import given_path
from upweight.policy import smollm2
from upweight.policy.gguf import first_line, read_gguf
from upweight.policy.known import DEVICES
from upweight.policy.policy import Policy
from upweight.policy.quiet import quiet_transformers
from upweight.policy.tiny import byte_tokenizer, tiny_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

PROBE_SECONDS = 3.0
"""How long the hub may take to answer before it counts as out of reach."""


def load_policy(name: str, *, dtype: str = "float32", device: str = "auto", seed: int = 0) -> Policy:
    """Load a policy.

    Args:
        name: `tiny` (a fresh decoder of a million parameters), `smollm2-135m` (a real instruct model, see
            `upweight.policy.smollm2`), a folder that `AutoModelForCausalLM` loads, a `.gguf` file, or the name of a
            model on the Hugging Face hub.
        dtype: of the weights and passes: float32, bfloat16, float16 or float64.
        device: `auto` takes a GPU where there is one; or cpu, cuda or cuda:N.
        seed: of the fresh weights of `tiny`; the global random state is neither read nor changed.

    Returns:
        The policy, in eval mode, with weights version 0.

    Raises:
        UsageError: an unknown dtype or device, or a model that cannot be found or read; it says what was tried.
    """
    if dtype not in DTYPES:
        raise bad_parameter("dtype", "load_policy", f"one of {', '.join(DTYPES)}", dtype)
    place = resolve_device(device)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        model, tokenizer = _find(name, seed, DTYPES[dtype])
    return Policy(model=model.to(place), tokenizer=tokenizer, name=name)


def resolve_device(device: str) -> torch.device:
    """`auto` as a GPU where there is one, else the CPU; cpu, cuda and cuda:N as torch reads them.

    Raises:
        UsageError: another device, or one that is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise bad_parameter("device", "load_policy", DEVICES, device) from error
    if place.type not in ("cpu", "cuda"):
        raise bad_parameter("device", "load_policy", DEVICES, device)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"The device {device!r} is not there: torch sees {torch.cuda.device_count()} GPUs; use auto or cpu."
        )
    return place


def _find(name: str, seed: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model, with weights of this dtype, and tokenizer."""
    if name == "tiny":
        tokenizer = byte_tokenizer()
        return _with_weights(tiny_model(seed, tokenizer), dtype), tokenizer
    if name == smollm2.ALIAS:
        return smollm2.resolve(partial(_folder, dtype=dtype), partial(_hub, dtype=dtype))
    path = given_path(name, "--model")
    if name.endswith(".gguf"):
        if not path.is_file():
            raise UsageError(f"There is no GGUF file {name!r}: check the path.")
        model, tokenizer = read_gguf(path)
        return _with_weights(model, dtype), tokenizer
    if path.is_dir():
        return _folder(path, dtype)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise UsageError(f"There is no model folder {name!r}: check the path, or use --model tiny or smollm2-135m.")
    return _hub(name, dtype)


def _with_weights(model: Any, dtype: torch.dtype) -> Any:
    """The model itself with parameters of this dtype; buffers stay as they are.

    `model.to(dtype)` would round the frequencies of rotary embeddings to bfloat16 as well: a model of other positions.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _folder(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    try:
        return _auto(str(path), dtype, local=True)
    except MemoryError:
        raise
    except Exception as error:  # of a configuration that nobody has checked: what its readers raise has no common base
        raise UsageError(
            f"The folder {str(path)!r} does not hold a causal language model with a tokenizer ({first_line(error)}): "
            "give a folder with config.json, model.safetensors and the tokenizer's files."
        ) from error


def _hub(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """A model of the hub: its local cache first, then the hub itself if it answers quickly."""
    try:
        return _auto(name, dtype, local=True)
    except (OSError, ValueError, KeyError, ImportError):
        pass  # Not in the hub's local cache, or only part of it.
    if not hub_has(name):
        raise UsageError(
            f"The model {name!r} was not found: no such folder, not in the local Hugging Face cache, and the hub does "
            "not offer it or is out of reach; check the name, give a folder or a .gguf file, or use --model tiny or "
            "smollm2-135m."
        )
    try:
        return _auto(name, dtype, local=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(
            f"The model {name!r} is on the Hugging Face hub but could not be loaded ({first_line(error)}): check that "
            "it is a causal language model and that you may read it, or give a folder."
        ) from error


def hub_has(name: str) -> bool:
    """Whether the hub answers within `PROBE_SECONDS` that it has a configuration of this name.

    The hub client itself retries for half a minute when there is no network; one plain request tells at once.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = urllib.request.Request(f"{endpoint}/{name}/resolve/main/config.json", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        # Gated: the client knows the user's token, this probe does not.
        return error.code in {401, 403}
    except (OSError, ValueError):
        return False


def _auto(source: str, dtype: torch.dtype, *, local: bool) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
    model = AutoModelForCausalLM.from_pretrained(source, local_files_only=local, dtype=dtype)
    return model, tokenizer
