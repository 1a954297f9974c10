"""The built-in engine against the scorer, against itself, and against Hugging Face's generate."""

from typing import Any

import numpy as np
import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.rollout import engine as engine_module
from upweight.rollout.completion import Completion, Engine, FinishReason, Sampling
from upweight.rollout.engine import LocalEngine

PROMPTS = [[49, 50], [51] * 9, [52], [53, 54, 55]]
KEYS = [(10, 0), (11, 1), (12, 2), (10, 3)]


@pytest.fixture(scope="module")
def lively() -> Policy:
    """A tiny policy that is neither flat nor certain, and ends about one token in ten."""
    policy = load_policy("tiny", seed=5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.08 * torch.randn(parameter.shape, generator=generator)
    policy.end_ids = frozenset({257, *range(24)})
    policy.version = 3
    return policy


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


@pytest.mark.parametrize(
    "choices",
    [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.6, "temperature": 1.3}, {"top_k": 20, "top_p": 0.9}],
)
def test_sampler_and_scorer_speak_of_the_same_distribution(lively: Policy, choices: dict[str, Any]) -> None:
    sampling = Sampling(max_new_tokens=12, **choices)
    groups = LocalEngine(lively).generate(PROMPTS, 5, sampling)
    answers = flat(groups)
    prompts = [prompt for prompt in PROMPTS for _ in range(5)]
    kept = [answer.kept for answer in answers]
    scores = lively.score(
        prompts, [answer.token_ids for answer in answers], temperature=sampling.temperature, kept=kept
    )
    sampled = torch.tensor([logprob for answer in answers for logprob in answer.logprobs])
    # Relative as well: this policy's logits are large, and at temperature 0.5 so is their rounding.
    torch.testing.assert_close(scores.logprobs.detach(), sampled, atol=1e-5, rtol=1e-5)
    assert len({answer.token_ids for answer in answers}) > 10
    if "top_k" in choices or "top_p" in choices:
        plain = lively.score(prompts, [a.token_ids for a in answers], temperature=sampling.temperature)
        assert (plain.logprobs < sampled - 1e-3).any()
        assert all(t in k for a in answers for t, k in zip(a.token_ids, a.kept or (), strict=True))
    else:
        assert kept == [None] * 20


@pytest.mark.parametrize("choices", [{}, {"top_p": 0.8}])
def test_an_answer_is_the_same_alone_in_company_in_any_order_and_any_chunk(
    lively: Policy, choices: dict[str, Any]
) -> None:
    sampling = Sampling(max_new_tokens=10, seed=9, **choices)
    whole = LocalEngine(lively).generate(PROMPTS, 4, sampling, keys=KEYS)
    ids = [[answer.token_ids for answer in group] for group in whole]
    for place, (prompt, key) in enumerate(zip(PROMPTS, KEYS, strict=True)):
        alone = LocalEngine(lively).generate([prompt], 4, sampling, keys=[key])
        assert [answer.token_ids for answer in alone[0]] == ids[place]
        for answer, other in zip(alone[0], whole[place], strict=True):
            assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    backwards = LocalEngine(lively).generate(PROMPTS[::-1], 4, sampling, keys=KEYS[::-1])
    assert [[answer.token_ids for answer in group] for group in backwards[::-1]] == ids
    for tokens in (1, 60, 100):
        cut = LocalEngine(lively, max_batch_tokens=tokens).generate(PROMPTS, 4, sampling, keys=KEYS)
        assert [[answer.token_ids for answer in group] for group in cut] == ids
    fewer = LocalEngine(lively).generate(PROMPTS, 2, sampling, keys=KEYS)
    assert [[answer.token_ids for answer in group] for group in fewer] == [group[:2] for group in ids]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dropping_finished_rows_changes_nothing(lively: Policy, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(max_new_tokens=16, top_k=40)
    expected = flat(LocalEngine(lively).generate(PROMPTS, 6, sampling))
    monkeypatch.setattr(engine_module, "_COMPACT_BELOW", share)
    got = flat(LocalEngine(lively).generate(PROMPTS, 6, sampling))
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]
    assert [answer.finish_reason for answer in got] == [answer.finish_reason for answer in expected]
    for answer, other in zip(got, expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(answer.kept or (), other.kept or (), strict=True))


def test_first_tokens_follow_the_softmax(lively: Policy) -> None:
    answers = LocalEngine(lively).generate([[49, 50]], 4000, Sampling(max_new_tokens=1, seed=1))[0]
    with torch.inference_mode():
        p = torch.softmax(lively.model(torch.tensor([[49, 50]])).logits[0, -1].double(), dim=-1)
    counts = torch.bincount(torch.tensor([answer.token_ids[0] for answer in answers]), minlength=len(p)).double()
    often = p * 4000 >= 5
    observed = torch.cat([counts[often], counts[~often].sum()[None]])
    expected = 4000 * torch.cat([p[often], p[~often].sum()[None]])
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(observed) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_seed_draw_and_row_each_give_other_answers(lively: Policy) -> None:
    def ids(seed: int, key: tuple[int, int]) -> list[tuple[int, ...]]:
        sampling = Sampling(max_new_tokens=8, seed=seed)
        return [a.token_ids for a in LocalEngine(lively).generate([[49]], 8, sampling, keys=[key])[0]]

    assert ids(0, (0, 0)) == ids(0, (0, 0))
    assert len({tuple(ids(*call)) for call in ((0, (0, 0)), (1, (0, 0)), (0, (1, 0)), (0, (0, 1)))}) == 4


def test_greedy_is_that_of_hugging_face(lively: Policy) -> None:
    answers = LocalEngine(lively).generate(PROMPTS, 2, Sampling(max_new_tokens=20, temperature=0.0, top_p=0.5))
    for prompt, group in zip(PROMPTS, answers, strict=True):
        expected = lively.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=sorted(lively.end_ids),
            pad_token_id=256,
        )[0, len(prompt) :]
        for answer in group:
            assert list(answer.token_ids) == expected.tolist()
            assert set(answer.logprobs) == {0.0}
            assert answer.kept is None


def test_completions_say_how_they_ended_and_which_weights_made_them(lively: Policy) -> None:
    answers = flat(LocalEngine(lively).generate(PROMPTS, 8, Sampling(max_new_tokens=6)))
    assert {answer.finish_reason for answer in answers} == {FinishReason.STOP, FinishReason.LENGTH}
    for answer in answers:
        ends = [token in lively.end_ids for token in answer.token_ids]
        assert not any(ends[:-1])
        assert ends[-1] == (answer.finish_reason is FinishReason.STOP)
        assert answer.finish_reason is FinishReason.STOP or len(answer.token_ids) == 6
        assert set(answer.weights_versions) == {3}
        assert all(answer.loss_mask)


def test_new_weights_are_used_at_once() -> None:
    policy = load_policy("tiny")
    engine: Engine = LocalEngine(policy)
    sampling = Sampling(max_new_tokens=1)
    before = engine.generate([[49]], 1, sampling)[0][0]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    policy.version += 1
    after = engine.generate([[49]], 1, sampling)[0][0]
    assert after.weights_versions == (1,)
    assert after.logprobs != before.logprobs


def test_no_prompts_give_no_answers(lively: Policy) -> None:
    assert LocalEngine(lively).generate([], 2, Sampling(max_new_tokens=1)) == []


def test_prompt_that_leaves_no_room_is_refused_with_the_numbers(lively: Policy) -> None:
    with pytest.raises(UsageError, match=r"Prompt 1 has 505 tokens, .* 8 new ones .* 512 tokens: .* at most 7"):
        LocalEngine(lively).generate([[1], [1] * 505], 1, Sampling(max_new_tokens=8))
    LocalEngine(lively).generate([[1] * 504], 1, Sampling(max_new_tokens=8))


@pytest.mark.parametrize(
    "choices", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}, {"max_new_tokens": 0}]
)
def test_sampling_out_of_range_is_refused(lively: Policy, choices: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(choices))):
        LocalEngine(lively).generate([[1]], 1, Sampling(**{"max_new_tokens": 1, **choices}))


def test_other_wrong_calls_are_refused(lively: Policy) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        LocalEngine(lively).generate([[]], 1, Sampling(max_new_tokens=1))
    with pytest.raises(UsageError, match="'n' parameter"):
        LocalEngine(lively).generate([[1]], 0, Sampling(max_new_tokens=1))
    with pytest.raises(ValueError, match="2 keys for 1 prompts"):
        LocalEngine(lively).generate([[1]], 1, Sampling(max_new_tokens=1), keys=[(0, 0), (1, 1)])
    with pytest.raises(UsageError, match="max_batch_tokens"):
        LocalEngine(lively, max_batch_tokens=0)


def test_broken_weights_stop_the_run_instead_of_sampling_noise() -> None:
    policy = load_policy("tiny")
    with torch.no_grad():
        next(iter(policy.model.parameters())).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="produced NaN"):
        LocalEngine(policy).generate([[1]], 2, Sampling(max_new_tokens=2))
