"""Log-probabilities from hidden states, in blocks, are those of the plain logits: value, entropy and gradient."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.policy import head
from upweight.policy.head import adding_to, head_logprobs


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, mask: Tensor | None = None) -> Tensor:
    z = (hidden @ weight.t()) / temperature
    z = z if mask is None else z.masked_fill(~mask, -torch.inf)
    return z.log_softmax(-1)


def inputs(tokens: int = 37, words: int = 101, size: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, size, generator=noise)
    weight = torch.randn(words, size, generator=noise)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, words, (tokens,), generator=noise)


@pytest.fixture(params=[(1024, 1 << 22), (10, 200), (3, 3), (1, 1000)], ids=str)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "TOKENS", request.param[0])
    monkeypatch.setattr(head, "ELEMENTS", request.param[1])


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_blocks_give_the_values_and_the_gradients_of_the_plain_logits(temperature: float) -> None:
    """B101: however tokens and words are cut."""
    hidden, weight, targets = inputs()
    logprobs, entropy = head_logprobs(hidden, weight, targets, temperature=temperature)
    table = plain(hidden, weight, targets, temperature)
    expected = table.gather(1, targets[:, None]).squeeze(1)
    assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    assert_close(entropy, -(table.exp() * table).sum(1), rtol=1e-5, atol=1e-5)
    up = torch.linspace(-1, 1, len(targets))
    ours = torch.autograd.grad((logprobs * up).sum(), (hidden, weight))
    for gradient, theirs in zip(ours, torch.autograd.grad((expected * up).sum(), (hidden, weight)), strict=True):
        assert float(theirs.norm()) > 0.1
        assert_close(gradient, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_blocks")
def test_a_kept_set_restricts_the_softmax_in_every_block() -> None:
    hidden, weight, targets = inputs()
    noise = np.random.default_rng(0)
    sets = [None if n % 3 == 0 else np.unique([int(y), *noise.integers(0, 101, 5)]) for n, y in enumerate(targets)]
    mask = torch.ones(len(targets), 101, dtype=torch.bool)
    for row, ids in enumerate(sets):
        if ids is not None:
            mask[row] = False
            mask[row, torch.from_numpy(ids)] = True
    logprobs, _ = head_logprobs(hidden, weight, targets, kept=sets)
    expected = plain(hidden, weight, targets, 1.0, mask).gather(1, targets[:, None]).squeeze(1)
    assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    (ours,) = torch.autograd.grad(logprobs.sum(), hidden)
    (theirs,) = torch.autograd.grad(expected.sum(), hidden)
    assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_token_outside_its_kept_set_is_refused() -> None:
    hidden, weight, targets = inputs()
    sets = [np.array([(int(y) + 1) % 101]) for y in targets]
    with pytest.raises(ValueError, match="outside the kept set"):
        head_logprobs(hidden, weight, targets, kept=sets)


def test_far_apart_logits_neither_overflow_nor_lose_the_entropy() -> None:
    hidden = torch.tensor([[1.0], [0.0]])
    weight = torch.tensor([[200.0], [-200.0], [199.0]])
    logprobs, entropy = head_logprobs(hidden, weight, torch.tensor([0, 1]))
    assert logprobs.tolist() == pytest.approx([-np.log1p(np.exp(-1)), -np.log(3)], abs=1e-6)
    p = 1 / (1 + np.exp(-1))
    assert entropy.tolist() == pytest.approx([-(p * np.log(p) + (1 - p) * np.log(1 - p)), np.log(3)], abs=1e-5)


def test_half_precision_is_summed_in_float32() -> None:
    hidden, weight, targets = (t.detach() for t in inputs(tokens=300, words=50))
    half, w = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
    logprobs, _ = head_logprobs(half, w, targets)
    assert logprobs.dtype == torch.float32
    table = (half.detach() @ w.detach().t()).float().log_softmax(-1)
    assert_close(logprobs, table.gather(1, targets[:, None]).squeeze(1), rtol=1e-5, atol=1e-5)
    logprobs.sum().backward()
    assert (half.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.bfloat16)


def test_an_entropy_over_many_words_is_nearer_the_exact_one_than_the_plain_sum_is() -> None:
    """-sum p log p takes its log-probabilities from one rounded log-sum-exp; over 152k words that costs 1e-5 nats."""
    hidden, weight, targets = (t.detach() for t in inputs(tokens=16, words=151_936, size=64))
    weight *= 2.0 * 64**-0.5
    exact = torch.log_softmax(hidden.double() @ weight.double().t(), dim=-1)
    rounded = torch.log_softmax(hidden @ weight.t(), dim=-1)
    entropy = -(exact.exp() * exact).sum(dim=-1)
    ours = (head_logprobs(hidden, weight, targets)[1] - entropy).abs().max()
    theirs = (-(rounded.exp() * rounded).sum(dim=-1) - entropy).abs().max()
    assert ours < 4e-6
    assert ours < theirs


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_weight_goes_to_the_sum_that_is_given_for_it(dtype: torch.dtype) -> None:
    """Of its use as a head alone, and only for as long as the sum is given."""
    hidden, weight, targets = inputs()
    weight = weight.detach().to(dtype).requires_grad_()
    hidden = hidden.detach().to(dtype).requires_grad_()

    def loss() -> Tensor:
        return head_logprobs(hidden, weight, targets)[0].sum() + 3 * weight.float().sum()

    loss().backward()
    assert weight.grad is not None
    whole, d_hidden, weight.grad, hidden.grad = weight.grad.float(), hidden.grad, None, None
    total = torch.ones(weight.shape)
    with adding_to({weight: lambda: total}):
        loss().backward()
    assert weight.grad.tolist() == torch.full(weight.shape, 3.0).tolist()
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-5, "atol": 2**-5}
    assert_close(total - 1, whole - 3, **close)
    assert_close(hidden.grad, d_hidden, rtol=0, atol=0)
    weight.grad = None
    loss().backward()
    assert_close(weight.grad.float(), whole, rtol=0, atol=0)
    assert_close(total - 1, whole - 3, **close)


def test_a_sum_is_not_asked_for_where_the_weight_is_frozen() -> None:
    hidden, weight, targets = inputs()
    weight.requires_grad_(False)
    with adding_to({weight: lambda: pytest.fail("nothing to add")}):
        head_logprobs(hidden, weight, targets)[0].sum().backward()
    assert hidden.grad is not None
