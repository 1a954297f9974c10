"""The shapes of language models, by name, by folder, or by size alone. Imports no torch."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError, bad_parameter, nearest
from upweight.objective.fields import must_be
from upweight.objective.paths import given_path
from upweight.policy.known import CONTEXTS

COMPACT = ("llama", "qwen2", "qwen3")
"""Families that go through the compact decoder on a CPU."""

LARGEST = 10**9
"""Of a size in a configuration: far above any model's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A decoder's sizes, which say how many numbers it holds and makes."""

    family: str
    """`model_type` of its configuration."""

    hidden: int
    """E, features of a token."""

    layers: int
    """L."""

    heads: int
    """H, query heads."""

    key_heads: int
    """K, key and value heads."""

    head_size: int
    """D."""

    feed_forward: int
    """F, features between the two halves of the feed-forward part."""

    vocabulary: int
    """V, words."""

    tied: bool
    """Whether the output head is the embedding."""

    stated: int | None = None
    """Parameters as asked for, where the other sizes are assumed; None = they follow from the other sizes."""

    context: int | None = None
    """Tokens of a prompt with its answer, at most; None = not known."""

    @property
    def queries(self) -> int:
        """H D."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """K D."""
        return self.key_heads * self.head_size

    @property
    def table(self) -> int:
        """V E, numbers of the embedding, and of the head."""
        return self.vocabulary * self.hidden

    @property
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normalised."""
        return self.family == "qwen3"

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        e, extra = self.hidden, 0
        if self.family == "qwen2":
            extra = self.queries + 2 * self.keys  # biases
        if self.has_head_norms:
            extra = 2 * self.head_size
        return 2 * e * self.queries + 2 * e * self.keys + 3 * e * self.feed_forward + 2 * e + extra

    @property
    def parameters(self) -> int:
        """All of them; a tied head counts once."""
        counted = self.layers * self.layer + self.hidden + self.table * (1 if self.tied else 2)
        return counted if self.stated is None else self.stated

    @property
    def body(self) -> int:
        """Parameters of the layers."""
        return max(0, self.parameters - self.hidden - self.table * (1 if self.tied else 2))


def _row(family: str, *sizes: int, tied: bool, context: int | None = None) -> Shape:
    hidden, layers, heads, key_heads, head_size, feed_forward, vocabulary = sizes
    return Shape(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_size=head_size,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        tied=tied,
        context=context,
    )


SHAPES: Mapping[str, Shape] = {
    "tiny": _row("llama", 128, 5, 4, 4, 32, 352, 258, tied=True, context=CONTEXTS["tiny"]),
    "smollm2-135m": _row("llama", 576, 30, 9, 3, 64, 1536, 49152, tied=True, context=CONTEXTS["smollm2-135m"]),
    "smollm2-360m": _row("llama", 960, 32, 15, 5, 64, 2560, 49152, tied=True),
    "smollm2-1.7b": _row("llama", 2048, 24, 32, 32, 64, 8192, 49152, tied=True),
    "qwen2.5-0.5b": _row("qwen2", 896, 24, 14, 2, 64, 4864, 151936, tied=True),
    "qwen2.5-1.5b": _row("qwen2", 1536, 28, 12, 2, 128, 8960, 151936, tied=True),
    "qwen2.5-3b": _row("qwen2", 2048, 36, 16, 2, 128, 11008, 151936, tied=True),
    "qwen2.5-7b": _row("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, tied=False),
    "qwen2.5-14b": _row("qwen2", 5120, 48, 40, 8, 128, 13824, 152064, tied=False),
    "qwen2.5-32b": _row("qwen2", 5120, 64, 40, 8, 128, 27648, 152064, tied=False),
    "qwen2.5-72b": _row("qwen2", 8192, 80, 64, 8, 128, 29568, 152064, tied=False),
    "qwen3-0.6b": _row("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, tied=True),
    "qwen3-1.7b": _row("qwen3", 2048, 28, 16, 8, 128, 6144, 151936, tied=True),
    "qwen3-4b": _row("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, tied=True),
    "qwen3-8b": _row("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, tied=False),
    "qwen3-14b": _row("qwen3", 5120, 40, 40, 8, 128, 17408, 151936, tied=False),
    "qwen3-32b": _row("qwen3", 5120, 64, 64, 8, 128, 25600, 151936, tied=False),
    "llama-3.2-1b": _row("llama", 2048, 16, 32, 8, 64, 8192, 128256, tied=True),
    "llama-3.2-3b": _row("llama", 3072, 28, 24, 8, 128, 8192, 128256, tied=True),
    "llama-3.1-8b": _row("llama", 4096, 32, 32, 8, 128, 14336, 128256, tied=False),
    "llama-3.1-70b": _row("llama", 8192, 80, 64, 8, 128, 28672, 128256, tied=False),
}
"""The two aliases of `--model`, and public families, as their published configurations have them."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([mb])", re.IGNORECASE)
_TRIMMINGS = re.compile(r"^meta-|-(instruct|base|chat|it)$")


def find_shape(name: str) -> tuple[Shape, str]:
    """The shape of a model.

    Args:
        name: an alias or a known model (`tiny`, `Qwen/Qwen2.5-7B-Instruct`), a folder with a config.json, or a size
            (`7b`, `135m`).

    Returns:
        The shape, and in words where it is from.

    Raises:
        UsageError: none of these, a path that cannot be looked at, or a config.json that is no decoder's: it says which
            key, and its value.

    Example:
        >>> shape, says = find_shape("HuggingFaceTB/SmolLM2-135M-Instruct")
        >>> shape.parameters, says
        (134515008, 'the published shape of smollm2-135m')
    """
    known = _TRIMMINGS.sub("", _TRIMMINGS.sub("", name.lower().rstrip("/").rpartition("/")[2]))
    if name and name not in SHAPES and (folder := given_path(name, "--model")).is_dir():
        return _from_config(folder / "config.json"), "the shape in its config.json"
    if known in SHAPES:
        return SHAPES[known], f"the published shape of {known}"
    if size := _SIZE.fullmatch(name):
        return _of_size(name, float(size[1]) * {"m": 1e6, "b": 1e9}[size[2].lower()])
    near = nearest(known, SHAPES)
    hint = f"Did you mean '{near}'?" if near else "Known are the sizes of Qwen2.5, Qwen3, Llama 3 and SmolLM2."
    raise UsageError(
        f"The shape of the model {name!r} is not known. {hint} A folder with a config.json works too, and a number of "
        "parameters, such as 7b."
    )


def _from_config(path: Path) -> Shape:
    config = _object(path)
    hidden, heads = _whole(path, config, "hidden_size"), _whole(path, config, "num_attention_heads")
    key_heads = _whole(path, config, "num_key_value_heads", heads)
    if heads % key_heads:
        must = f"a divisor of num_attention_heads, {heads}"
        raise bad_parameter("num_key_value_heads", str(path), must, key_heads)
    if config.get("head_dim") is None and hidden % heads:
        raise bad_parameter("num_attention_heads", str(path), f"a divisor of hidden_size, {hidden}", heads)
    tied = config.get("tie_word_embeddings")
    if must_be(bool | None, tied):
        raise bad_parameter("tie_word_embeddings", str(path), "true or false", tied)
    return Shape(
        family=str(config.get("model_type", "")),
        hidden=hidden,
        layers=_whole(path, config, "num_hidden_layers"),
        heads=heads,
        key_heads=key_heads,
        head_size=_whole(path, config, "head_dim", hidden // heads),
        feed_forward=_whole(path, config, "intermediate_size"),
        vocabulary=_whole(path, config, "vocab_size"),
        tied=bool(tied),
        context=_context(path, config),
    )


def _object(path: Path) -> dict[str, Any]:
    """What the config.json of a model holds."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"The folder {str(path.parent)!r} holds no config.json, which says a model's shape: give a folder that "
            "has one, or a number of parameters, such as --model 7b."
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path}: the configuration of the model cannot be read: {error.strerror}. Mend that, or give a number of "
            "parameters, such as --model 7b."
        ) from None
    except RecursionError:
        raise UsageError(f"{path}: this is not the configuration of a decoder: it is nested too deeply.") from None
    except ValueError as error:  # no JSON, no UTF-8
        raise UsageError(f"{path}: this is not the configuration of a decoder: {error}.") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: this is not the configuration of a decoder: it is JSON, but no object.")
    return config


def _whole(path: Path, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A size of a configuration.

    Args:
        path: of the configuration, for messages.
        config: what it holds.
        key: of the size.
        default: where it is not there, or null; None = it has to be there.
    """
    value: Any = config.get(key)
    if value is None and default is not None:
        return default
    if key not in config:
        raise UsageError(
            f"{path}: a decoder's configuration has '{key}', and this one does not; give a number of parameters, such "
            "as --model 7b."
        )
    if must_be(int, value) or not 1 <= value <= LARGEST:
        raise bad_parameter(key, str(path), "a whole number, at least 1 and at most 10**9", value)
    return int(value)


def _context(path: Path, config: Mapping[str, Any]) -> int | None:
    """The context that a configuration gives, under the names that `Policy` looks for; None where it gives none."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if config.get(key) is not None:
            return _whole(path, config, key)
    return None


def _of_size(name: str, asked: float) -> tuple[Shape, str]:
    """The known shape nearest in size, stretched where it is not near: width and depth as the cube root."""
    if not 1e6 <= asked <= 1e12:
        raise UsageError(f"A model of {name:.40} parameters is outside what can be assumed: give 1m to 1000b.")
    parameters = round(asked)
    near = min(SHAPES, key=lambda known: abs(math.log(SHAPES[known].parameters / parameters)))
    base = SHAPES[near]
    stretch = (parameters / base.parameters) ** (1 / 3)
    if 0.8 <= stretch <= 1.25:
        stretched, how = base, "with the shape of"
    else:
        heads = max(1, round(base.heads * stretch / base.key_heads)) * base.key_heads
        stretched = dataclasses.replace(
            base,
            heads=heads,
            hidden=max(base.head_size, round(base.hidden * stretch)),
            layers=max(1, round(base.layers * stretch)),
            feed_forward=max(1, round(base.feed_forward * stretch)),
        )
        how = "with a shape stretched from"
    shape = dataclasses.replace(stretched, stated=parameters, context=None)
    return shape, f"assumed: {parameters / 1e9:.3g} billion parameters {how} {near}; a name or a folder says more"
