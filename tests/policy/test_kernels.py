"""Norm, rotation and gate equal what they stand for, value and gradient, in every dtype."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from upweight.policy.kernels import gate, rms_norm, rotate

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def compare(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    up = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    gradients = torch.autograd.grad(ours, inputs, up), torch.autograd.grad(theirs, inputs, up)
    loose = {"rtol": 0.02, "atol": 0.02 * float(theirs.detach().abs().max())}
    near = loose if ours.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    assert ours.dtype == theirs.dtype
    assert_close(ours, theirs, **near)
    for gradient, expected in zip(*gradients, strict=True):
        assert float(expected.norm()) > 0.1
        allowed = {**near, "atol": near["atol"] * max(1.0, float(expected.abs().max()))}
        assert_close(gradient, expected, **allowed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 24), (5, 3, 16)])
def test_the_norm_is_transformers_own(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = drawn(*shape, seed=1, dtype=dtype), drawn(shape[-1], seed=2, dtype=dtype)
    wide = x.float() if dtype == torch.bfloat16 else x
    unit = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    compare(rms_norm(x, weight, 1e-5), weight * unit.to(dtype), [x, weight])


def test_a_row_of_zeros_stays_finite() -> None:
    x, weight = torch.zeros(2, 8, requires_grad=True), torch.ones(8)
    out = rms_norm(x, weight, 1e-6)
    out.sum().backward()
    assert out.tolist() == [[0.0] * 8] * 2
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_rotation_turns_halves_against_each_other(dtype: torch.dtype) -> None:
    x = drawn(6, 3, 8, seed=1, dtype=dtype)
    angles = torch.rand(6, 1, 4, generator=torch.Generator().manual_seed(2)).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    low, high = x.chunk(2, dim=-1)
    compare(rotate(x, cos, sin), x * cos + torch.cat((-high, low), dim=-1) * sin, [x])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gate_is_silu_times_value(dtype: torch.dtype) -> None:
    switch, value = drawn(6, 10, seed=1, dtype=dtype), drawn(6, 10, seed=2, dtype=dtype)
    compare(gate(switch, value), functional.silu(switch) * value, [switch, value])
