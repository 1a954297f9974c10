"""Norm, rotation and gate of a decoder layer with backwards of their own: fewer sweeps over memory, less of it kept.

Each equals the composition of PyTorch's functions that it stands for; only intermediate results are not stored.

Shapes: N tokens, E features, D head size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight x / sqrt(mean(x^2) + eps) over the last dimension (arXiv 1910.07467, equation 4); float32 inside at least.

    Args:
        x: [..., E].
        weight: [E].
        eps: added to the mean square.
    """
    if not torch.is_grad_enabled():  # a sampler's step is short enough for the detour through autograd to show
        return _normed(x, weight, eps)[0]
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864): pairs (x_d, x_{d + D/2}) turned by their angles.

    Args:
        x: [N, heads, D].
        cos, sin: [N, 1, D], the two halves of D alike; no gradient.
    """
    if not torch.is_grad_enabled():
        return _turned(x, cos, sin, 1.0)
    return _Rotate.apply(x, cos, sin)  # type: ignore[no-any-return, no-untyped-call]


def gate(switch: Tensor, value: Tensor) -> Tensor:
    """silu(switch) value (SwiGLU, arXiv 2002.05202)."""
    if not torch.is_grad_enabled():
        return functional.silu(switch).mul_(value)
    return _Gate.apply(switch, value)  # type: ignore[no-any-return, no-untyped-call]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = _wide(x)
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight), scale


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, scale = _normed(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        unit, grad = _wide(x) * scale, _wide(grad)
        d_weight = (grad * unit).flatten(0, -2).sum(dim=0).to(weight.dtype)
        d_unit = grad * weight
        along = (d_unit * unit).mean(dim=-1, keepdim=True)
        return d_unit.addcmul_(unit, along, value=-1).mul_(scale).to(x.dtype), d_weight, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, sin, -1.0), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, switch: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(switch, value)
        return functional.silu(switch).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        switch, value = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * value, switch), functional.silu(switch).mul_(grad)
