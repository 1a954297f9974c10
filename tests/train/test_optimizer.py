"""The optimiser: float32 masters, clipping, skipped parameters; and the learning rate over the steps."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from upweight.policy.head import head_logprobs
from upweight.train.args import TrainArgs
from upweight.train.optimizer import MasterAdamW, learning_rate

Args = Callable[..., TrainArgs]


def parameter(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.nn.Parameter(torch.full((3,), value, dtype=dtype))


def test_bfloat16_weights_take_in_updates_that_are_too_small_for_them() -> None:
    """At 1.0 bfloat16's spacing is 2^-7; forty updates of 1e-3 must arrive as 1 - 0.04."""
    weight = parameter(1.0, torch.bfloat16)
    optimizer = MasterAdamW([weight], weight_decay=0.0)
    for _ in range(40):
        optimizer.zero_grad()
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e-3)
    assert weight.tolist() == pytest.approx([0.96] * 3, abs=2**-8)
    plain = torch.tensor(1.0, dtype=torch.bfloat16)
    for _ in range(40):
        plain -= 1e-3
    assert float(plain) == 1.0


def test_float32_weights_are_their_own_masters() -> None:
    """The same numbers as torch's AdamW, and no second copy of the weights."""
    ours, theirs = parameter(1.0), parameter(1.0)
    optimizer, adamw = MasterAdamW([ours], weight_decay=0.1), torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for step in range(5):
        ours.grad = torch.tensor([1.0, -2.0, 0.1 * step])
        theirs.grad = ours.grad.clone()
        optimizer.step(0.01)
        adamw.step()
    assert torch.equal(ours.detach(), theirs.detach())
    assert optimizer._masters[0] is ours


def test_float64_weights_do_not_lose_precision() -> None:
    """Rounding them to float32 would move them at a learning rate of 0."""
    value = 1.0 + 2.0**-40
    weight = parameter(value, torch.float64)
    weight.grad = torch.ones_like(weight)
    MasterAdamW([weight], weight_decay=0.0).step(0.0)
    assert weight.tolist() == [value] * 3


def test_the_gradient_is_scaled_before_the_moments() -> None:
    """Clipping by scale: the step is that of the scaled gradient; AdamW's first step hides it, the second does not."""
    one, other = parameter(1.0), parameter(1.0)
    first, second = MasterAdamW([one], weight_decay=0.0), MasterAdamW([other], weight_decay=0.0)
    for gradient, scale in ((1.0, 1.0), (8.0, 0.25)):
        one.grad = torch.full_like(one, gradient)
        first.step(0.01, scale=scale)
        other.grad = torch.full_like(other, gradient * scale)
        second.step(0.01)
    assert torch.equal(one.detach(), other.detach())


def test_adam_has_its_usual_constants_and_the_weights_do_not_decay_by_default(run_args: Args) -> None:
    """Gradients 1 and then 3: moments with betas 0.9 and 0.999, bias-corrected, over the root plus 1e-8."""
    weight = parameter(1.0)
    optimizer = MasterAdamW([weight], weight_decay=run_args().weight_decay)
    expected, first, second = 1.0, 0.0, 0.0
    for step, gradient in enumerate((1.0, 3.0), start=1):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step(0.1)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected -= 0.1 * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.999**step)) + 1e-8)
    assert weight.tolist() == pytest.approx([expected] * 3, rel=1e-6)


def test_the_norm_is_over_all_parameters_and_not_finite_where_any_is() -> None:
    """sqrt(3 * 1 + 3 * 4) = sqrt(15)."""
    one, other, idle = parameter(0.0), parameter(0.0), parameter(0.0)
    optimizer = MasterAdamW([one, other, idle], weight_decay=0.0)
    assert optimizer.grad_norm() == 0.0
    one.grad, other.grad = torch.full_like(one, 1.0), torch.full_like(other, 2.0)
    assert optimizer.grad_norm() == pytest.approx(math.sqrt(15))
    one.grad[1] = math.nan
    assert math.isnan(optimizer.grad_norm())
    one.grad[1] = math.inf
    assert math.isinf(optimizer.grad_norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_grad_leaves_nothing_behind(dtype: torch.dtype) -> None:
    """A parameter without a gradient is not moved by the one it had before, nor by weight decay."""
    one, other = parameter(1.0, dtype), parameter(1.0, dtype)
    optimizer = MasterAdamW([one, other], weight_decay=0.5)
    one.grad, other.grad = torch.ones_like(one), torch.ones_like(other)
    optimizer.step(0.1)
    optimizer.zero_grad()
    assert (one.grad, other.grad) == (None, None)
    resting = other.tolist()
    one.grad = torch.ones_like(one)
    optimizer.step(0.1)
    assert other.tolist() == resting
    assert one.tolist() != resting


def test_the_gradients_of_bfloat16_passes_are_added_up_in_float32() -> None:
    """256 + 1 is 256 in bfloat16: the sum over passes must not depend on how many there are."""
    weight = parameter(0.0, torch.bfloat16)
    optimizer = MasterAdamW([weight], weight_decay=0.0)
    for gradient in (256.0, 1.0, 1.0):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.collect()
    assert optimizer.grad_norm() == pytest.approx(258 * math.sqrt(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_backwards_are_summed_and_leave_no_hook_behind(dtype: torch.dtype) -> None:
    """The next user of the model's backward gets its gradients where autograd puts them."""
    weight = parameter(0.0, dtype)
    optimizer = MasterAdamW([weight], weight_decay=0.0)
    for factor in (256.0, 1.0):
        optimizer.backward((weight.float() * factor).sum())
    assert [gradient.tolist() for _, gradient in optimizer.gradients() if gradient is not None] == [[257.0] * 3]
    with pytest.raises(RuntimeError):
        optimizer.backward(torch.zeros(()))
    optimizer.zero_grad()
    (weight.float() * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3
    assert not weight._post_accumulate_grad_hooks


def test_a_gradient_leaves_the_parameter_while_the_backward_goes_on() -> None:
    """In half precision the gradients of a whole model are never there beside their sum."""
    first, last = parameter(1.0, torch.bfloat16), parameter(1.0, torch.bfloat16)
    optimizer = MasterAdamW([first, last], weight_decay=0.0)
    seen: list[Tensor | None] = []
    hidden = first * 1.0
    hidden.register_hook(lambda _: seen.append(last.grad))
    optimizer.backward((hidden * 1.0 * last).sum())
    assert seen == [None]
    assert [gradient.tolist() for _, gradient in optimizer.gradients() if gradient is not None] == [[1.0] * 3] * 2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_that_adds_to_the_sum_gives_the_gradient_that_autograd_gives(tied: bool, dtype: torch.dtype) -> None:
    """Over two passes, embedding and head one weight or two; a hook of the user's sees the whole gradient as ever."""
    noise = torch.Generator().manual_seed(3)
    embedding = torch.nn.Parameter(torch.randn(11, 4, generator=noise).to(dtype))
    head = embedding if tied else torch.nn.Parameter(torch.randn(11, 4, generator=noise).to(dtype))
    passes = [torch.randint(0, 11, (2, 5), generator=noise) for _ in range(2)]
    weights = [embedding] if tied else [embedding, head]

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        return head_logprobs(torch.nn.functional.embedding(ids, embedding), head, targets)[0].sum()

    expected = [torch.zeros(11, 4) for _ in weights]
    for ids, targets in passes:
        for total, gradient in zip(expected, torch.autograd.grad(loss(ids, targets), weights), strict=True):
            total += gradient
    seen: list[Tensor] = []
    for watched in (False, True):
        optimizer = MasterAdamW(weights, weight_decay=0.0)
        hook = head.register_hook(seen.append) if watched else None  # type: ignore[no-untyped-call]
        for ids, targets in passes:
            optimizer.backward(loss(ids, targets))
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-6, "atol": 2**-6}
        for (_, found), total in zip(optimizer.gradients(), expected, strict=True):
            assert found is not None
            torch.testing.assert_close(found, total, **close)
        optimizer.zero_grad()
        assert hook is None or [gradient.shape for gradient in seen] == [(11, 4)] * 2
    assert torch.allclose(seen[0].float() + seen[1].float(), expected[-1], atol=2**-6, rtol=2**-6)


def test_a_parameter_that_lies_transposed_in_memory_is_updated_like_any_other() -> None:
    """PyTorch's fused kernel would pair its elements with those of other places."""
    rows = torch.arange(12.0).view(3, 4)
    lying, plain = torch.nn.Parameter(rows.t()), torch.nn.Parameter(rows.t().contiguous())
    for weight in (lying, plain):
        optimizer = MasterAdamW([weight], weight_decay=0.0)
        for factor in (1.0, -3.0):
            optimizer.zero_grad()
            optimizer.backward((weight * torch.arange(12.0).view(4, 3) * factor).sum())
            optimizer.step(0.1)
    assert torch.allclose(lying.detach(), plain.detach(), atol=1e-6)


def test_frozen_parameters_are_left_alone() -> None:
    """The optimiser holds what is trained."""
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = MasterAdamW([frozen, parameter(1.0)], weight_decay=0.5)
    optimizer._params[0].grad = torch.ones(3)
    optimizer.step(0.1)
    assert frozen.tolist() == [1.0, 1.0]


def test_the_gradient_of_a_step_is_scaled_down_to_the_limit(
    recording: Any, group: Any, policy: Any, run_args: Args
) -> None:
    """--max_grad_norm 0.01: the norm that is logged is the one before, the step's own is the limit; 0 = never."""
    from upweight.train.step import training_step

    norms = []
    for limit in (0.01, 0.0, 1e6):
        learner, recorder = recording([group([1.0, 0.0])], policy, max_grad_norm=limit)
        report, _ = training_step(learner, 1)
        norms.append((report.grad_norm, float(recorder.gradients[0].norm())))
    (logged, clipped), (_, unlimited), (_, below) = norms
    assert logged > 0.02
    assert clipped == pytest.approx(0.01, rel=1e-4)
    assert unlimited == below == pytest.approx(logged, rel=1e-5)


def rates(args: TrainArgs) -> list[float]:
    return [learning_rate(step, args) for step in range(1, args.max_steps + 1)]


def test_the_rate_rises_linearly_and_stays(run_args: Args) -> None:
    """Step lr_warmup_steps is the first at the peak."""
    args = run_args(learning_rate=1.0, lr_warmup_steps=4, max_steps=6, lr_schedule="constant")
    assert rates(args) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(run_args(learning_rate=1.0, lr_warmup_steps=0, max_steps=2, lr_schedule="constant")) == [1.0, 1.0]


def test_the_rate_falls_linearly_and_reaches_0_one_step_after_the_run(run_args: Args) -> None:
    """lr_schedule linear."""
    args = run_args(learning_rate=1.0, lr_warmup_steps=2, max_steps=6, lr_schedule="linear")
    assert rates(args) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_the_rate_falls_along_a_cosine(run_args: Args) -> None:
    """lr_schedule cosine: half way down at half time."""
    args = run_args(learning_rate=2.0, lr_warmup_steps=0, max_steps=4, lr_schedule="cosine")
    assert rates(args) == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)])


def test_a_warm_up_longer_than_the_run_is_no_division_by_zero(run_args: Args) -> None:
    """The peak is not reached."""
    for schedule in ("constant", "linear", "cosine"):
        args = run_args(learning_rate=1.0, lr_warmup_steps=9, max_steps=3, lr_schedule=schedule)
        assert rates(args) == pytest.approx([1 / 9, 2 / 9, 3 / 9])
