"""Products whose left operand is made again in the backward pass instead of being kept.

A linear map keeps what it is applied to. In a decoder layer that is often cheap to make from tensors that are kept
anyway: a norm's output from its input, the gate's product from its factors, attention's output in rows from the one in
heads. Leaving those out saves a third of a pass's memory for a few sweeps, and no product is made twice. Gradient
checkpointing (`upweight.policy.variants`) goes further: it makes everything again.

Shapes: N tokens, E features, O outputs of a map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor [N, E], as what it is made of."""

    make: Callable[..., Tensor]
    """Differentiable; at every call the same numbers."""

    inputs: tuple[Tensor, ...]
    """Its arguments."""

    @classmethod
    def of(cls, tensor: Tensor) -> "Operand":
        """A tensor that is there, to be kept as it is."""
        return cls(_itself, (tensor,))

    def tensor(self) -> Tensor:
        """The tensor."""
        return self.make(*self.inputs)

    def through(self, maps: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        """The result of each map, [N, O].

        Where a gradient is needed and all maps are plain linear ones, the operand's inputs are kept in its place, once
        for all of them. An adapter, and a map with a hook, is called as it is and keeps what it keeps; so is any
        under autocast.
        """
        ours = torch.is_grad_enabled() and all(map(is_plain, maps))
        if not ours or torch.is_autocast_enabled(self.inputs[0].device.type):
            made = self.tensor()
            return tuple(part(made) for part in maps)
        weights, biases = [part.weight for part in maps], [part.bias for part in maps]
        results: tuple[Tensor, ...] = _Through.apply(self.make, len(maps), *self.inputs, *weights, *biases)  # type: ignore[no-untyped-call]
        return results


def is_plain(part: nn.Module) -> bool:
    """Whether a call of this module is its linear map and nothing else: no adapter, no hook, no other forward."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return type(part) is nn.Linear and not any(hooks) and "forward" not in vars(part)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


class _Through(torch.autograd.Function):
    """Y_i = X W_i^T + b_i of each map; dX = sum_i dY_i W_i, dW_i = dY_i^T X, db_i = the sum of dY_i over tokens.

    X is made of the operand's inputs, forward and again backward, and dX goes on to those. Arguments: the inputs, then
    the maps' weights, then their biases or None.
    """

    @staticmethod
    def forward(ctx: Any, make: Callable[..., Tensor], maps: int, *tensors: Any) -> tuple[Tensor, ...]:
        inputs, weights, biases = _apart(tensors, maps)
        ctx.save_for_backward(*inputs, *weights)
        ctx.make, ctx.maps = make, maps
        made = make(*inputs)
        return tuple(functional.linear(made, *both) for both in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, maps = ctx.saved_tensors, ctx.maps
        inputs, weights = saved[:-maps], saved[-maps:]
        wanted, of_weights, of_biases = _apart(ctx.needs_input_grad[2:], maps)
        with torch.enable_grad():
            again = [tensor.detach().requires_grad_(want) for tensor, want in zip(inputs, wanted, strict=True)]
            made = ctx.make(*again)
        kept = made.detach()
        d_weights = [grad.t() @ kept if want else None for grad, want in zip(grads, of_weights, strict=True)]
        d_biases = [grad.sum(dim=0) if want else None for grad, want in zip(grads, of_biases, strict=True)]
        d_inputs: list[Tensor | None] = [None] * len(inputs)
        if any(wanted):
            d_made = grads[0] @ weights[0]
            for grad, weight in zip(grads[1:], weights[1:], strict=True):
                d_made.addmm_(grad, weight)
            found = iter(torch.autograd.grad(made, [tensor for tensor in again if tensor.requires_grad], d_made))
            d_inputs = [next(found) if want else None for want in wanted]
        return None, None, *d_inputs, *d_weights, *d_biases


def _apart(arguments: Sequence[Any], maps: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """What belongs to the operand's inputs, to the weights, and to the biases."""
    return arguments[: -2 * maps], arguments[-2 * maps : -maps], arguments[-maps:]
