"""What a pass keeps for its backward as a recipe: tensors that one sweep over memory makes again, to the bit the same.

A decoder layer hands some of its results to a product that keeps them, although what they are made of is kept too: a
norm's output beside its input, the gate's product beside its factors, attention's output in two layouts. Without them a
token takes a third less memory. Making them again costs sweeps, not products: gradient checkpointing
(`upweight.policy.variants.recomputed`) goes further and makes everything again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

Make = Callable[[], Tensor]
"""Makes a tensor again; no gradient flows through it."""


class _Recipe:
    """Stands for a tensor; the products that share it make it once, and it goes with the last of them."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._made: Tensor | None = None

    def tensor(self) -> Tensor:
        if self._made is None:
            with torch.no_grad():
                self._made = self._make()
        return self._made


def remade(tensor: Tensor, make: Make) -> Tensor:
    """The tensor itself, which passes under `recipes_kept` keep as `make` alone.

    Args:
        tensor: must not be changed in place, nor be seen by autograd as a view of it.
        make: returns the same numbers; what it holds on to should be kept by the pass anyway.
    """
    tensor.recipe = _Recipe(make)  # type: ignore[attr-defined]
    return tensor


def recipes_kept() -> AbstractContextManager[Any]:
    """Where a graph is recorded, keep recipes in place of the tensors that have one."""
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack) if torch.is_grad_enabled() else nullcontext()


def _pack(tensor: Tensor) -> Tensor | _Recipe:
    return getattr(tensor, "recipe", tensor)


def _unpack(kept: Tensor | _Recipe) -> Tensor:
    return kept.tensor() if isinstance(kept, _Recipe) else kept
