"""AdamW with float32 master weights, and the learning-rate schedule."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from upweight.train.args import TrainArgs
from upweight.train.resolve import known


class MasterAdamW:
    """AdamW (arXiv 1711.05101) whose moments and weights are at least float32, whatever the model's dtype.

    For float32 and float64 parameters the masters are the parameters themselves. For bfloat16 ones a float32 copy
    takes the updates: at RL's learning rates an update is smaller than bfloat16's spacing and would round to nothing.
    """

    def __init__(self, parameters: Iterable[Tensor], *, weight_decay: float) -> None:
        self._params = [p for p in parameters if p.requires_grad]
        self._masters = [p.detach().float() if p.dtype.itemsize < 4 else p for p in self._params]
        self._adamw = torch.optim.AdamW(self._masters, lr=0.0, weight_decay=weight_decay)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for tensor in (*self._params, *self._masters):
            tensor.grad = None

    def collect(self) -> None:
        """Move a pass's gradient to the masters; called after each pass, it keeps their sum in float32 too."""
        for param, master in zip(self._params, self._masters, strict=True):
            if master is param or param.grad is None:
                continue
            grad = param.grad.to(master.dtype)
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            param.grad = None

    def gradients(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Each parameter with its gradient, collected; None where there is none."""
        self.collect()
        for param, master in zip(self._params, self._masters, strict=True):
            yield param, master.grad

    def grad_norm(self) -> float:
        """Norm of the whole gradient; NaN or inf where any of it is."""
        self.collect()
        grads = [master.grad for master in self._masters if master.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0

    def step(self, lr: float, *, scale: float = 1.0) -> None:
        """One update with the gradients multiplied by `scale`."""
        self.collect()
        for master in self._masters:
            if master.grad is not None and scale != 1.0:
                master.grad.mul_(scale)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        with torch.no_grad():
            for param, master in zip(self._params, self._masters, strict=True):
                if master is not param:
                    param.copy_(master)


def learning_rate(step: int, args: TrainArgs) -> float:
    """Learning rate of a step: linear warm-up, then the schedule; never 0 within the run.

    Args:
        step: counts from 1; step `lr_warmup_steps` is the first at the peak (step 1 where that is 0).
        args: with `learning_rate` resolved.

    Example:
        >>> args = TrainArgs(learning_rate=1.0, lr_warmup_steps=4, max_steps=10)
        >>> [round(learning_rate(step, args), 3) for step in (1, 4, 7, 10)]
        [0.25, 1.0, 0.571, 0.143]
    """
    peak, top = known(args.learning_rate), max(1, known(args.lr_warmup_steps))
    if step < top:
        return peak * step / top
    if args.lr_schedule == "constant":
        return peak
    done = (step - top) / (args.max_steps - top + 1)
    return peak * (1 - done) if args.lr_schedule == "linear" else peak * (1 + math.cos(math.pi * done)) / 2
