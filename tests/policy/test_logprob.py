"""Log-probabilities and entropy out of logits."""

import numpy as np
import pytest
import torch

from upweight.policy import logprob
from upweight.policy.logprob import kept_mask, token_logprobs


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, -0.4076060), (0.5, -0.1429316)])
def test_temperature_divides_the_logits(temperature: float, expected: float) -> None:
    got, _ = token_logprobs(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), temperature=temperature)
    assert got.item() == pytest.approx(expected, abs=1e-7)


def test_kept_set_renormalises_over_itself() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().requires_grad_()
    got, entropy = token_logprobs(logits, torch.tensor([0]), kept=[np.array([0, 1], dtype=np.int32)])
    assert got.item() == pytest.approx(np.log(0.625), abs=1e-6)
    assert entropy.item() == pytest.approx(-(0.625 * np.log(0.625) + 0.375 * np.log(0.375)), abs=1e-6)
    got.sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.375, -0.375, 0.0, 0.0]]))


def test_target_outside_its_kept_set_is_an_error() -> None:
    with pytest.raises(ValueError, match="outside the kept set"):
        token_logprobs(torch.zeros(1, 4), torch.tensor([3]), kept=[np.array([0, 1])])


def test_rows_without_a_kept_set_keep_the_whole_vocabulary() -> None:
    mask = kept_mask([None, np.array([2])], 3, torch.device("cpu"))
    assert mask.tolist() == [[True, True, True], [False, False, True]]


@pytest.mark.parametrize("elements", [1, 60, 1 << 22])
def test_chunks_give_the_values_and_the_gradient_of_plain_log_softmax(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprob, "CHUNK_ELEMENTS", elements)
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(7, 20, generator=generator)).requires_grad_()
    plain = logits.detach().clone().requires_grad_()
    targets = torch.randint(20, (7,), generator=generator)
    weights = torch.randn(7, generator=generator)
    got, entropy = token_logprobs(logits, targets, temperature=0.7)
    reference = torch.log_softmax(plain / 0.7, dim=-1)
    torch.testing.assert_close(got, reference.gather(1, targets[:, None]).squeeze(1))
    torch.testing.assert_close(entropy, -(reference.exp() * reference).sum(dim=-1))
    (got * weights).sum().backward()
    (reference.gather(1, targets[:, None]).squeeze(1) * weights).sum().backward()
    torch.testing.assert_close(logits.grad, plain.grad)
    assert not entropy.requires_grad


def test_gradient_agrees_with_finite_differences_of_the_float64_formula() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5]], requires_grad=True)
    token_logprobs(logits, torch.tensor([1]), temperature=2.0)[0].sum().backward()

    def formula(z: torch.Tensor) -> float:
        return float(torch.log_softmax(z.double() / 2.0, dim=-1)[0, 1])

    step = 1e-6
    for word in range(3):
        up = logits.detach().double().clone()
        down = up.clone()
        up[0, word] += step
        down[0, word] -= step
        assert logits.grad is not None
        assert logits.grad[0, word].item() == pytest.approx((formula(up) - formula(down)) / (2 * step), abs=1e-6)


def test_bfloat16_logits_are_scored_in_float32() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    got, _ = token_logprobs(logits, torch.tensor([0]))
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(-0.4076060, abs=1e-6)
    got.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_words_a_model_forbids_and_certain_words_give_no_nan() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0], [1e4, 0.0, 0.0]], requires_grad=True)
    got, entropy = token_logprobs(logits, torch.tensor([0, 0]))
    got.sum().backward()
    torch.testing.assert_close(got, torch.tensor([-np.log(2.0), 0.0], dtype=torch.float32))
    torch.testing.assert_close(entropy, torch.tensor([np.log(2.0), 0.0], dtype=torch.float32))
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, 0.0, -0.5], [0.0, 0.0, 0.0]]))


def test_entropy_of_equal_words_is_the_log_of_their_number() -> None:
    _, entropy = token_logprobs(torch.full((1, 50), 30.0), torch.tensor([0]))
    assert entropy.item() == pytest.approx(np.log(50), abs=1e-6)
