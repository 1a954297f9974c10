"""The sum of the passes' gradients, in one piece of memory."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class GradientSums:
    """A sum for each of several tensors, those of one dtype side by side.

    Gradients stay until the update, while what a pass keeps comes and goes. Each in memory of its own, between a pass's
    tensors, they leave holes that an allocator cannot fill again: with several passes that took more than half as much
    as the largest of them (`docs/experiments.md`, "The memory of a pass").
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Claim nothing yet.

        Args:
            tensors: whose shapes, dtypes and device the sums have.
        """
        self._tensors = tensors
        self._whole: list[Tensor] = []
        self._parts: list[Tensor] = []
        self._filled: set[int] = set()

    def clear(self) -> None:
        """Drop the sums, and give their memory back."""
        self._whole, self._parts, self._filled = [], [], set()

    def holds(self, number: int, gradient: Tensor) -> bool:
        """Whether this is the sum of tensor `number` itself: what was added to it since, was added in place."""
        return number in self._filled and gradient is self._parts[number]

    def put(self, number: int, gradient: Tensor) -> Tensor:
        """Begin the sum of tensor `number` with a gradient, of any dtype; the sum."""
        self._claim()
        self._filled.add(number)
        return self._parts[number].copy_(gradient)

    def add(self, number: int, gradient: Tensor) -> Tensor:
        """Add a gradient, of any dtype, to the sum of tensor `number`; the sum."""
        return self._parts[number].add_(gradient) if number in self._filled else self.put(number, gradient)

    def over_ranks(self, add_up: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """The sums over several processes that hold sums of the same tensors; None where no process has one.

        Args:
            add_up: overwrites a tensor with its sum over the processes; a collective.
        """
        there = add_up(torch.tensor([float(number in self._filled) for number in range(len(self._tensors))]))
        if not bool(there.any()):
            return [None] * len(self._tensors)
        self._claim()
        for number, part in enumerate(self._parts):
            if number not in self._filled:
                part.zero_()
        for whole in self._whole:
            add_up(whole)
        self._filled = {number for number, count in enumerate(there.tolist()) if count}
        return [part if number in self._filled else None for number, part in enumerate(self._parts)]

    def _claim(self) -> None:
        if self._whole:
            return
        parts: dict[int, Tensor] = {}
        for dtype in sorted({tensor.dtype for tensor in self._tensors}, key=str):
            numbers = [number for number, tensor in enumerate(self._tensors) if tensor.dtype == dtype]
            sizes = [self._tensors[number].numel() for number in numbers]
            whole = torch.empty(sum(sizes), dtype=dtype, device=self._tensors[0].device)
            self._whole.append(whole)
            for number, part in zip(numbers, torch.split(whole, sizes), strict=True):
                parts[number] = part.view_as(self._tensors[number])
        self._parts = [parts[number] for number in range(len(self._tensors))]
