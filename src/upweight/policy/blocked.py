"""The layers of a decoder cut into blocks, for passes of few tokens: a step of a sampler.

A product of few rows reaches little of what a CPU can do: its kernel lays the weights out anew at every call, and has
too few rows to give each thread its part. So the weights are laid out once, and cut as tensor parallelism cuts them
(Megatron-LM, arXiv 1909.08053, section 3): the first product of a pair by columns, the second by rows. The blocks are a
batch of products, a thread takes one at a time, and between the two nothing has to be put together.

Shapes: M tokens of a pass, B blocks, E hidden size, F inner size, O outputs of q, k and v together.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from upweight.policy.decoder import Decoder
from upweight.policy.kernels import gate
from upweight.policy.operand import Operand, is_plain
from upweight.policy.variants import Float32Linear


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """The weights of a layer, a copy; inputs before outputs."""

    qkv: Tensor
    """[B, E, O/B]."""

    bias: Tensor | None
    """[O] of q, k and v; None where they have none."""

    out: Tensor
    """[B, H D/B, E]."""

    gate_up: Tensor
    """[2 B, E, F/B], the gate's blocks first."""

    down: Tensor
    """[B, F/B, E]."""


def decoder_for_steps(model: Any) -> Decoder:
    """A decoder for many small passes at the weights of this moment; the plain one where the layers cannot be cut.

    Args:
        model: a causal LM that `Decoder.fits`. Its weights are copied: take a new decoder after an update.
    """
    plain = Decoder(model)
    linear = [_linear(layer) for layer in model.model.layers]
    whole = all(is_plain(part) for parts in linear for part in parts)
    if not whole or not plain.silu or any(part.bias is not None for parts in linear for part in parts[3:]):
        return plain  # an adapter, a hook, another activation, a bias where these families have none
    return BlockedDecoder(model)


class BlockedDecoder(Decoder):
    """`Decoder`, the products of its layers in blocks; equal to it up to rounding."""

    def __init__(self, model: Any) -> None:
        """Copy the weights into blocks, one for each thread where the sizes allow it."""
        super().__init__(model)
        q, k, v, _, gate_proj, _, _ = _linear(model.model.layers[0])
        sizes = math.gcd(*(part.out_features for part in (q, k, v, gate_proj)))
        self.blocks = _largest_divisor(sizes, torch.get_num_threads())
        with torch.no_grad():
            self.cut = [self._cut(layer) for layer in model.model.layers]
            self.head = _head(model.lm_head)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        if self.head is None:
            return super().logits(hidden)
        x = hidden.to(self.head.dtype).expand(len(self.head), -1, -1)
        return torch.bmm(x, self.head).transpose(0, 1).flatten(1)

    def _cut(self, layer: Any) -> _Layer:
        q, k, v, out, gate_proj, up, down = _linear(layer)
        biases = [part.bias for part in (q, k, v) if part.bias is not None]
        return _Layer(
            qkv=_columns(torch.cat([q.weight, k.weight, v.weight]), self.blocks),
            bias=torch.cat(biases) if biases else None,
            out=_rows(out.weight, self.blocks),
            gate_up=_columns(torch.cat([gate_proj.weight, up.weight]), 2 * self.blocks),
            down=_rows(down.weight, self.blocks),
        )

    def _qkv(self, number: int, part: Any, x: Operand) -> tuple[Tensor, ...]:
        layer, normed = self.cut[number], x.tensor()
        out = torch.bmm(normed.expand(self.blocks, -1, -1), layer.qkv).transpose(0, 1).flatten(1)
        if layer.bias is not None:
            out = out.add_(layer.bias)
        heads = out.view(len(normed), -1, self.head_size)
        return torch.split(heads, [self.heads, self.key_heads, self.key_heads], dim=1)

    def _out(self, number: int, part: Any, heads: Operand) -> Tensor:
        rows = heads.tensor()
        x = rows.view(len(rows), self.blocks, -1).transpose(0, 1)
        return _sum(torch.bmm(x, self.cut[number].out))

    def _feed_forward(self, number: int, part: Any, x: Operand) -> Tensor:
        layer = self.cut[number]
        both = torch.bmm(x.tensor().expand(2 * self.blocks, -1, -1), layer.gate_up)
        return _sum(torch.bmm(gate(both[: self.blocks], both[self.blocks :]), layer.down))


def _head(head: Any) -> Tensor | None:
    """[blocks, E, V/blocks], two blocks for a thread; None where it is no plain linear map."""
    if type(head) not in (nn.Linear, Float32Linear) or head.bias is not None:
        return None
    blocks = _largest_divisor(head.out_features, 2 * torch.get_num_threads())
    return _columns(head.weight.float() if isinstance(head, Float32Linear) else head.weight, blocks)


def _largest_divisor(number: int, most: int) -> int:
    return max(b for b in range(1, most + 1) if number % b == 0)


def _columns(weight: Tensor, blocks: int) -> Tensor:
    """[n, k] -> [blocks, k, n/blocks]."""
    return weight.reshape(blocks, -1, weight.shape[1]).transpose(1, 2).contiguous()


def _rows(weight: Tensor, blocks: int) -> Tensor:
    """[n, k] -> [blocks, k/blocks, n]."""
    return weight.t().contiguous().view(blocks, -1, len(weight))


def _sum(parts: Tensor) -> Tensor:
    """[B, M, E] -> [M, E], added in float32 at least; the first part may be overwritten. For few parts faster than a
    reduction."""
    total = parts[0].to(torch.promote_types(parts.dtype, torch.float32))
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)


def _linear(layer: Any) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )
