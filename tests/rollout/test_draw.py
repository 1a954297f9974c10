"""One sampling step."""

import numpy as np
import pytest
import torch

from upweight.rollout import draw
from upweight.rollout.completion import Sampling
from upweight.rollout.draw import draw_tokens

PROBABILITIES = torch.tensor([[0.15, 0.5, 0.05, 0.3]])


def sampling(**choices: float) -> Sampling:
    return Sampling(max_new_tokens=1, **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "choices", [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.9}]
)
def test_frequencies_are_those_of_the_distribution(choices: dict[str, float]) -> None:
    count = 20000
    noise = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, logprobs, _ = draw_tokens(PROBABILITIES.log().expand(count, 4), noise, sampling(**choices))
    p = PROBABILITIES[0].double() ** (1 / choices.get("temperature", 1.0))
    if "top_k" in choices or "top_p" in choices:
        keep = {(2, 1.0): [1, 3], (0, 0.7): [1, 3], (3, 0.9): [0, 1, 3]}
        mask = torch.zeros(4, dtype=torch.bool)
        mask[keep[int(choices.get("top_k", 0)), choices.get("top_p", 1.0)]] = True
        p = p * mask
    p /= p.sum()
    # Evenly spread noise leaves no sampling error: only the ends of the intervals can differ by one.
    counts = torch.bincount(tokens, minlength=4)
    assert (counts - count * p).abs().max() <= 1.0 + 1e-6 * count
    torch.testing.assert_close(logprobs, p.log()[tokens].float())


def test_top_p_within_top_k_is_taken_of_the_renormalised_top_k() -> None:
    _, _, kept = draw_tokens(PROBABILITIES.log(), torch.zeros(1, dtype=torch.float64), sampling(top_k=2, top_p=0.6))
    assert kept is not None
    assert kept.tolist() == [[False, True, False, False]]  # 0.5 / 0.8 reaches 0.6; 0.5 alone would not


def test_zero_probability_is_never_chosen_at_either_end_of_the_noise() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).expand(3, 5)
    noise = torch.tensor([0.0, 0.5, 1.0 - 2.0**-53], dtype=torch.float64)
    assert draw_tokens(logits, noise, sampling())[0].tolist() == [1, 3, 3]


def test_greedy_takes_the_maximum_with_log_probability_zero() -> None:
    tokens, logprobs, kept = draw_tokens(PROBABILITIES.log(), torch.tensor([0.99]).double(), sampling(temperature=0.0))
    assert (tokens.tolist(), logprobs.tolist(), kept) == ([1], [0.0], None)


@pytest.mark.parametrize("top_k", [0, 30])
def test_nucleus_found_among_few_words_is_that_of_the_whole_vocabulary(
    top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)[:, None]
    noise = torch.full((6,), 0.4, dtype=torch.float64)
    expected = draw_tokens(logits, noise, sampling(top_p=0.8, top_k=top_k))
    for guess in (1, 8):
        monkeypatch.setattr(draw, "_NUCLEUS_GUESS", guess)
        got = draw_tokens(logits, noise, sampling(top_p=0.8, top_k=top_k))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True) if a is not None and b is not None)
    p = torch.softmax(logits.double(), dim=-1).numpy()
    order = np.argsort(-p, axis=1)[:, : top_k or 50]
    top = np.take_along_axis(p, order, axis=1)
    top /= top.sum(axis=1, keepdims=True)
    sizes = ((np.cumsum(top, axis=1) - top) < 0.8).sum(axis=1)
    assert expected[2] is not None
    assert expected[2].sum(dim=1).tolist() == sizes.tolist()


@pytest.mark.parametrize("words", [3, 255, 256, 257, 1000])
def test_the_token_found_by_blocks_is_the_first_whose_cumulative_probability_exceeds_the_noise(
    words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "_ELEMENTS", 7 * words)  # several chunks of rows
    generator = torch.Generator().manual_seed(words)
    logits = 2 * torch.randn(50, words, generator=generator)
    logits[:, ::3] = -torch.inf
    noise = torch.rand(50, generator=generator, dtype=torch.float64)
    noise[:2] = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    tokens, logprobs, _ = draw_tokens(logits, noise, sampling())
    cumulative = torch.softmax(logits.double(), dim=-1).cumsum(-1)
    expected = (cumulative > noise[:, None]).to(torch.uint8).argmax(-1)
    expected[1] = (logits[1] > -torch.inf).nonzero().max()
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1))
