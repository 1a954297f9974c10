"""The sum of the passes' gradients, on a CPU in one piece of memory."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class GradientSums:
    """A sum for each of several tensors; on a CPU those of one dtype lie side by side.

    Gradients stay until the update, while what a pass keeps comes and goes. Each in memory of its own, between a pass's
    tensors, they leave holes that glibc cannot fill again: some 0.3 GB with SmolLM2 (`docs/experiments.md`, "The memory
    of a pass"). On other devices, whose allocators deal in blocks, each has its own memory, from its first gradient on.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Claim nothing yet.

        Args:
            tensors: whose shapes, dtypes and device the sums have.
        """
        self._tensors = tensors
        self._parts: dict[int, Tensor] = {}
        self._pieces: list[Tensor] = []
        self._filled: set[int] = set()

    def clear(self) -> None:
        """Drop the sums, and give their memory back."""
        self._parts, self._pieces, self._filled = {}, [], set()

    def holds(self, number: int, gradient: Tensor) -> bool:
        """Whether this is the sum of tensor `number` itself: what was added to it since, was added in place."""
        return number in self._filled and gradient is self._parts[number]

    def put(self, number: int, gradient: Tensor) -> Tensor:
        """Begin the sum of tensor `number` with a gradient, of any dtype; the sum."""
        self._claim(number)
        self._filled.add(number)
        return self._parts[number].copy_(gradient)

    def add(self, number: int, gradient: Tensor) -> Tensor:
        """Add a gradient, of any dtype, to the sum of tensor `number`; the sum."""
        return self._parts[number].add_(gradient) if number in self._filled else self.put(number, gradient)

    def lend(self, number: int) -> Tensor:
        """The sum of tensor `number`, to be added to in place; 0 where nothing was added yet."""
        if number not in self._filled:
            self._claim(number)
            self._filled.add(number)
            self._parts[number].zero_()
        return self._parts[number]

    def over_ranks(self, add_up: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """The sums over several processes that hold sums of the same tensors; None where no process has one.

        Args:
            add_up: overwrites a tensor with its sum over the processes; a collective.
        """
        there = add_up(torch.tensor([float(number in self._filled) for number in range(len(self._tensors))]))
        used = {number for number, count in enumerate(there.tolist()) if count}
        for number in used:
            self._claim(number)
        for number, part in self._parts.items():
            if number not in self._filled:
                part.zero_()
        self._filled = used
        for piece in self._pieces or [self._parts[number] for number in sorted(used)]:
            add_up(piece)
        return [self._parts[number] if number in used else None for number in range(len(self._tensors))]

    def _claim(self, number: int) -> None:
        if number in self._parts:
            return
        if self._tensors[number].device.type != "cpu":
            self._parts[number] = torch.empty_like(self._tensors[number])
            return
        for dtype in sorted({tensor.dtype for tensor in self._tensors}, key=str):
            numbers = [each for each, tensor in enumerate(self._tensors) if tensor.dtype == dtype]
            sizes = [self._tensors[each].numel() for each in numbers]
            piece = torch.empty(sum(sizes), dtype=dtype)
            self._pieces.append(piece)
            for each, part in zip(numbers, torch.split(piece, sizes), strict=True):
                self._parts[each] = part.view_as(self._tensors[each])
