"""Two ways to run modules of a model otherwise, in place: a head in float32, layers that recompute.

An object of the module's own class changes its class, as FSDP2 does it: the weights stay where they are, a copy of the
model behaves alike, and nothing of it is saved.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from upweight.objective.errors import UsageError


class Float32Linear(nn.Linear):
    """A linear map in float32, whatever the dtype of its weights and of its input."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out] float32."""
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(input.float(), self.weight.float(), bias)


class Recomputed:
    """Mixed into a layer's class: a pass that needs gradients keeps the layer's input alone."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's call; its activations are made again in the backward pass."""
        call = super().__call__  # type: ignore[misc]
        return recomputed(call, *args, **kwargs) if torch.is_grad_enabled() else call(*args, **kwargs)


def recomputed(function: Any, *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs), its activations made again in the backward pass (arXiv 1604.06174): exactly the same
    numbers, as nothing in a policy's pass is random."""
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def head_in_float32(model: Any) -> None:
    """Let a causal LM's output head multiply in float32.

    Raises:
        UsageError: the head is no plain linear map.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear and not isinstance(head, Float32Linear):
        found = type(head).__name__
        raise UsageError(f"--fp32_head needs a model whose head is a plain linear map; here it is a {found}.")
    head.__class__ = Float32Linear


def layers_recomputed(model: Any) -> None:
    """Let a causal LM's layers keep their inputs alone and make their activations again in the backward pass.

    Raises:
        UsageError: the model has no layers that transformers knows how to recompute.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"--gradient_checkpointing needs a model with layers that can be recomputed; {type(model).__name__} names "
            "none. Lower --micro_batch_tokens instead."
        )
    for layer in layers:
        if not isinstance(layer, Recomputed):
            kind = type(layer)
            layer.__class__ = type(f"Recomputed{kind.__name__}", (Recomputed, kind), {})
