"""Products whose left operand is made again: the same numbers and gradients as autograd's own, less of it kept."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from upweight.policy.kernels import gate, rms_norm
from upweight.policy.operand import Operand

Made = tuple[Operand, tuple[Tensor, ...]]


def leaves(*shapes: Sequence[int], dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )


def of_norm(dtype: torch.dtype) -> Made:
    x, weight = leaves((7, 12), (12,), dtype=dtype)
    return Operand(partial(rms_norm, eps=1e-5), (x, weight)), (x, weight)


def of_gate(dtype: torch.dtype) -> Made:
    switch, value = leaves((7, 12), (7, 12), dtype=dtype)
    return Operand(gate, (switch, value)), (switch, value)


def of_itself(dtype: torch.dtype) -> Made:
    (x,) = leaves((7, 12), dtype=dtype)
    return Operand.of(x), (x,)


def maps_of(dtype: torch.dtype, bias: bool) -> list[nn.Linear]:
    torch.manual_seed(1)
    return [nn.Linear(12, out, bias=bias).to(dtype) for out in (5, 3, 4)]


def gradients(results: Sequence[Tensor], of: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum in which every result has a weight of its own."""
    weights = [torch.arange(1.0, 1.0 + part.numel(), dtype=part.dtype).view_as(part) for part in results]
    total = sum((part * weight / part.numel()).sum() for part, weight in zip(results, weights, strict=True))
    return torch.autograd.grad(total, of)


def bytes_kept(run: Callable[[], object], *, beside: Sequence[Tensor]) -> int:
    """By autograd, of memory that is not there anyway."""
    there = {tensor.untyped_storage().data_ptr() for tensor in beside}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        held = run()
    assert held is not None
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("make", [of_norm, of_gate, of_itself])
def test_results_and_gradients_are_those_of_the_maps_one_by_one(make: Callable[..., Made], bias: bool) -> None:
    (operand, inputs), maps = make(torch.float64), maps_of(torch.float64, bias)
    results = operand.through(maps)
    plain = [part(operand.tensor()) for part in maps]
    for ours, theirs in zip(results, plain, strict=True):
        assert torch.equal(ours, theirs)
    wanted = [*inputs, *(weight for part in maps for weight in part.parameters())]
    for ours, theirs in zip(gradients(results, wanted), gradients(plain, wanted), strict=True):
        assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_in_bfloat16_results_are_to_the_bit_those_of_the_maps() -> None:
    (operand, inputs), maps = of_norm(torch.bfloat16), maps_of(torch.bfloat16, bias=False)
    results, plain = operand.through(maps), [part(operand.tensor()) for part in maps]
    for ours, theirs in zip(results, plain, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(gradients(results, inputs), gradients(plain, inputs), strict=True):
        assert_close(ours, theirs, atol=0.05, rtol=0.02)


def test_the_operand_is_not_kept_between_the_passes() -> None:
    """Of a gate's product: its factors are there, and 7 x 12 numbers of 8 bytes are not kept beside them."""

    def one_by_one(made: Tensor) -> list[Tensor]:
        return [part(made) for part in maps]

    maps, (operand, inputs) = maps_of(torch.float64, bias=False), of_gate(torch.float64)
    there = [*inputs, *(part.weight for part in maps)]
    assert bytes_kept(lambda: operand.through(maps), beside=there) == 0
    assert bytes_kept(lambda: one_by_one(operand.tensor()), beside=there) == 7 * 12 * 8


def test_frozen_weights_and_inputs_without_a_gradient_get_none() -> None:
    (operand, (x, weight)), maps = of_norm(torch.float64), maps_of(torch.float64, bias=True)
    maps[1].requires_grad_(False)
    weight.requires_grad_(False)
    sum(part.sum() for part in operand.through(maps)).backward()  # type: ignore[union-attr]
    assert x.grad is not None
    assert weight.grad is None
    assert maps[1].weight.grad is None
    assert maps[1].bias.grad is None
    assert_close(maps[0].weight.grad, operand.tensor().detach().sum(dim=0).expand(5, -1))
    assert maps[2].bias.grad.tolist() == [7.0] * 4


def test_weights_alone_are_trained_where_the_operand_needs_no_gradient() -> None:
    (operand, (x,)), maps = of_itself(torch.float64), maps_of(torch.float64, bias=False)
    x.requires_grad_(False)
    operand.through(maps)[0].sum().backward()
    assert_close(maps[0].weight.grad, x.sum(dim=0).expand(5, -1))
    assert x.grad is None


def test_an_adapter_and_a_map_with_a_hook_are_called_as_they_are() -> None:
    """Whoever looks at a layer's activations, or has put something around it, sees every pass."""

    class Adapter(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    operand, _ = of_itself(torch.float64)
    adapter = Adapter(12, 5).double()
    (found,) = operand.through([adapter])
    assert_close(found, 2 * nn.functional.linear(operand.tensor(), adapter.weight, adapter.bias))
    maps, seen = maps_of(torch.float64, bias=False), []
    maps[2].register_forward_hook(lambda *_: seen.append(1))
    operand.through(maps)
    assert seen == [1]
    (plain,) = maps_of(torch.float64, bias=False)[:1]
    one_less = plain.forward
    plain.forward = lambda input: 3 * one_less(input)  # type: ignore[method-assign]
    (found,) = operand.through([plain])
    assert_close(found, 3 * one_less(operand.tensor()))


def test_under_autocast_the_maps_are_called_as_they_are() -> None:
    (operand, (x,)), maps = of_itself(torch.float32), maps_of(torch.float32, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        (found, *_) = operand.through(maps)
    assert found.dtype is torch.bfloat16
    found.float().sum().backward()
    assert x.grad is not None


def test_without_a_graph_nothing_is_recorded() -> None:
    operand, _ = of_norm(torch.float64)
    with torch.no_grad():
        assert not any(part.requires_grad for part in operand.through(maps_of(torch.float64, bias=False)))
