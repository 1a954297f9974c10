"""AdamW with float32 master weights, and the learning-rate schedule."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from upweight.objective.errors import UsageError
from upweight.policy.head import adding_to
from upweight.train.args import TrainArgs
from upweight.train.gradients import GradientSums
from upweight.train.ranks import ALONE, Ranks
from upweight.train.resolve import known


class MasterAdamW:
    """AdamW (arXiv 1711.05101) whose moments and weights are at least float32, whatever the model's dtype.

    For float32 and float64 parameters the masters are the parameters themselves. For bfloat16 ones a float32 copy
    takes the updates: at RL's learning rates an update is smaller than bfloat16's spacing and would round to nothing.
    Of sharded parameters (FSDP2), each rank has the masters and the moments of its own part.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor | tuple[str, Tensor]],
        *,
        weight_decay: float,
        ranks: Ranks = ALONE,
    ) -> None:
        """Take the parameters that are trained.

        Args:
            parameters: those that require a gradient are used; with their names, as `named_parameters()` gives them,
                where the state is to be saved (else they are numbered).
            weight_decay: as AdamW's.
            ranks: who shares the passes of an update.
        """
        named = [(str(n), p) if isinstance(p, Tensor) else p for n, p in enumerate(parameters)]
        self._names = [name for name, p in named if p.requires_grad]
        self._params = [p for _, p in named if p.requires_grad]
        self._ranks = ranks
        self._sharded = any(hasattr(p, "to_local") for p in self._params)
        self._masters = [p.detach().float() if p.dtype.itemsize < 4 else p for p in map(own_part, self._params)]
        # The fused kernel walks weight, gradient and moments as they lie in memory.
        fused = all(master.is_contiguous() for master in self._masters)
        self._adamw = torch.optim.AdamW(self._masters, lr=0.0, weight_decay=weight_decay, fused=fused)
        self._sums = GradientSums(self._masters)

    def zero_grad(self) -> None:
        """Drop the gradients, and give their memory back."""
        for tensor in (*self._params, *self._masters):
            tensor.grad = None
        self._sums.clear()

    def backward(self, loss: Tensor) -> None:
        """The backward of a pass: each gradient goes to the sum over passes as soon as it is there.

        The sum is at least float32, so that no pass's share is rounded to the model's dtype. Gradients of sharded
        parameters go there at the end: FSDP2 makes them on a stream of its own. A head adds its own to the sum, unless
        a hook of the user's waits for it.
        """
        ours = () if self._sharded else tuple(enumerate(self._params))
        sums = {param: partial(self._lend, number) for number, param in ours if not _is_watched(param)}
        hooks = [
            param.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
            for number, param in ours
        ]
        try:
            with adding_to(sums):
                loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()
        self.collect()

    def collect(self) -> None:
        """Move gradients that are on the parameters to the sum over passes."""
        for number in range(len(self._params)):
            self._take(number)

    def _take(self, number: int, _: Tensor | None = None) -> None:
        param, master = self._params[number], self._masters[number]
        if param.grad is None or self._sums.holds(number, param.grad):
            return  # nothing there, or autograd has added to the sum in place
        gradient = own_part(param.grad)
        param.grad = None
        # A parameter that is its own master has its sum as its gradient: another one there was put in its place.
        master.grad = (self._sums.put if master is param else self._sums.add)(number, gradient)

    def _lend(self, number: int) -> Tensor:
        self._take(number)
        self._masters[number].grad = total = self._sums.lend(number)
        return total

    def gradients(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Each parameter with its gradient, collected; None where there is none. Of sharded ones, this rank's part."""
        self.collect()
        for param, master in zip(self._params, self._masters, strict=True):
            yield param, master.grad

    def add_up(self) -> None:
        """The sum of the ranks' gradients, on each; a collective. Of sharded parameters the passes have made it.

        A parameter without a gradient on any rank stays without one: AdamW leaves it alone, as in one process.
        """
        self.collect()
        if self._ranks.world == 1 or self._sharded:
            return
        for master, total in zip(self._masters, self._sums.over_ranks(self._ranks.sum), strict=True):
            master.grad = total

    def grad_norm(self) -> float:
        """Norm of the whole gradient; NaN or inf where any of it is. A collective where parameters are sharded."""
        self.collect()
        grads = [master.grad for master in self._masters if master.grad is not None]
        norm = _norm(grads)
        if self._sharded:
            norm = math.sqrt(float(self._ranks.sum(torch.tensor([norm], dtype=torch.float64) ** 2)))
        return norm

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
                if master.dtype != param.dtype:
                    own_part(param).copy_(master)

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments, step counters and float32 masters, by name.

        The names are `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME` and `master/NAME`, NAME the parameter's. Masters
        are there only where they are not the parameters themselves, moments from the first update on. Of sharded
        parameters it is this rank's part.
        """
        state: dict[str, Tensor] = {}
        for name, param, master in zip(self._names, self._params, self._masters, strict=True):
            for kind, value in self._adamw.state.get(master, {}).items():
                state[f"{kind}/{name}"] = value.detach()
            if master.dtype != param.dtype:
                state[f"master/{name}"] = master.detach()
        return state

    def load_state_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_tensors` gave: the next update is the same to the bit.

        Args:
            state: by name; copied.

        Raises:
            UsageError: it belongs to other parameters.
        """
        kinds = ("step", "exp_avg", "exp_avg_sq")
        owners = dict(zip(self._names, zip(self._params, self._masters, strict=True), strict=True))
        for key, value in state.items():
            kind, _, name = key.partition("/")
            shape = tuple(owners[name][1].shape) if name in owners else None
            if kind not in (*kinds, "master") or shape is None or (kind != "step" and tuple(value.shape) != shape):
                raise UsageError(
                    f"The optimiser's state holds {key!r} of shape {tuple(value.shape)}, which this model does not "
                    "have: go on with the model that the checkpoint was made with."
                )
        for name, (param, master) in owners.items():
            found = {kind: state[f"{kind}/{name}"].detach().clone() for kind in kinds if f"{kind}/{name}" in state}
            self._adamw.state.pop(master, None)
            if found:
                # The fused kernel has the step counter beside the moments; the plain one takes it there as well.
                self._adamw.state[master] = {kind: value.to(master.device) for kind, value in found.items()}
            if master.dtype != param.dtype:
                with torch.no_grad():
                    master.copy_(state[f"master/{name}"] if f"master/{name}" in state else own_part(param))


def _norm(grads: Sequence[Tensor]) -> float:
    norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
    if norm != 0.0:
        return norm
    # In float32 the square of anything under 1e-23 is 0, and a gradient of 0 means that there is nothing to train.
    largest = max((float(grad.abs().max()) for grad in grads if grad.numel()), default=0.0)
    return largest and largest * math.hypot(*(float((grad.double() / largest).norm()) for grad in grads))


def _is_watched(param: Tensor) -> bool:
    """Whether a hook waits for its gradient."""
    return bool(param._backward_hooks or param._post_accumulate_grad_hooks)


def own_part(tensor: Any) -> Any:
    """Of a sharded tensor (a DTensor) this rank's part, in the same memory; any other as it is."""
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor


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
