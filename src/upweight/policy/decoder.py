"""A compact forward pass over the modules of a Llama, Qwen2 or Qwen3: tokens packed, prompts shared, no padding.

The weights stay in the Hugging Face model, which saves, loads and optimises them; only the way through its layers is
ours. The sampler and the trainer take the same way, with another `Attend` each.

Shapes: N packed tokens, H query heads, K key heads, D head size, E hidden size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from upweight.policy.kernels import gate, rms_norm, rotate
from upweight.policy.operand import Operand
from upweight.policy.variants import Recomputed, recomputed

Attend = Callable[[int, Tensor, Tensor, Tensor], Operand]
"""(layer, queries [N, H, D], keys [N, K, D], values [N, K, D]) -> [N, H D]; scores are divided by sqrt(D)."""

FAMILIES = ("llama", "qwen2", "qwen3")
"""`model_type`s whose layers are what `Decoder` takes them for; the others go through their own forward."""

_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


class Decoder:
    """The layers of a causal LM, walked through with an attention of the caller's."""

    def __init__(self, model: Any) -> None:
        """Bind a model that `Decoder.fits`.

        Args:
            model: the causal LM; its weights are read at every pass.
        """
        self.model = model
        config = model.config
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.key_heads: int = config.num_key_value_heads
        self.silu = config.hidden_act == "silu"
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether a model's forward is the one below: its family, full attention without dropout, static positions.

        On devices other than the CPU the answer is no: `TreeAttention` is written for the CPU's kernels.
        """
        config = getattr(model, "config", None)
        core = getattr(model, "model", None)
        parts = (hasattr(core, part) for part in ("embed_tokens", "layers", "norm", "rotary_emb"))
        if getattr(config, "model_type", None) not in FAMILIES or not all(parts) or not hasattr(model, "lm_head"):
            return False  # another family, or one that something is wrapped around
        if hasattr(model, "reshard"):
            return False  # sharded (FSDP2): its weights are whole only inside its own forward
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        on_cpu = next(iter(model.parameters())).device.type == "cpu"
        plain = kinds == {"full_attention"} and not getattr(config, "attention_dropout", 0.0)
        return plain and rope in _STATIC_ROPE and on_cpu

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Last hidden states, after the final norm.

        Args:
            ids: [N] token ids.
            positions: [N] their places in their sequences.
            attend: says who looks at whom.

        Returns:
            [N, E].
        """
        core = self.model.model
        x = core.embed_tokens(ids)
        cos, sin = (table[0, :, None, :] for table in core.rotary_emb(x, positions[None]))
        for number, layer in enumerate(core.layers[: self.layers]):
            if isinstance(layer, Recomputed) and torch.is_grad_enabled():
                x = recomputed(self._layer, number, layer, x, cos, sin, attend)
            else:
                x = self._layer(number, layer, x, cos, sin, attend)
        return _normed(x, core.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, E] -> [N, V]: the model's head."""
        logits: Tensor = self.model.lm_head(hidden)
        return logits

    def _layer(self, number: int, layer: Any, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self._attention(number, layer.self_attn, _norm(x, layer.input_layernorm), cos, sin, attend)
        return x + self._feed_forward(number, layer.mlp, _norm(x, layer.post_attention_layernorm))

    def _attention(self, number: int, part: Any, x: Operand, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q, k, v = self._qkv(number, part, x)
        if hasattr(part, "q_norm"):
            q, k = _normed(q, part.q_norm), _normed(k, part.k_norm)
        return self._out(number, part, attend(number, rotate(q, cos, sin), rotate(k, cos, sin), v))

    def _qkv(self, number: int, part: Any, x: Operand) -> tuple[Tensor, ...]:
        """[N, E] -> queries [N, H, D], keys and values [N, K, D]."""
        three = x.through((part.q_proj, part.k_proj, part.v_proj))
        return tuple(each.view(len(each), -1, self.head_size) for each in three)

    def _out(self, number: int, part: Any, heads: Operand) -> Tensor:
        """[N, H D] -> [N, E]."""
        (projected,) = heads.through((part.o_proj,))
        return projected

    def _feed_forward(self, number: int, part: Any, x: Operand) -> Tensor:
        if not self.silu:
            out: Tensor = part(x.tensor())
            return out
        (projected,) = Operand(gate, x.through((part.gate_proj, part.up_proj))).through((part.down_proj,))
        return projected


def _normed(x: Tensor, norm: Any) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon)


def _norm(x: Tensor, norm: Any) -> Operand:
    """`_normed`, for products."""
    return Operand(partial(rms_norm, eps=norm.variance_epsilon), (x, norm.weight))
