"""Before the first step sampler and trainer are compared, and the usual mistakes are named."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.rollout.completion import Completion, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.train.handshake import HandshakeError, shake_hands

PROMPTS = [[65, 66], [67, 68, 69], [70], [71, 72, 73, 74], [75]]
PLAIN = Sampling(max_new_tokens=12)
COOL = Sampling(max_new_tokens=12, temperature=0.5)
TOP_K = Sampling(max_new_tokens=12, top_k=3)
COOL_TOP_K = Sampling(max_new_tokens=12, temperature=0.5, top_k=3)

Change = Callable[[Policy, list[int], Completion], Completion]


class ChangedEngine:
    """The built-in engine with its completions changed on the way out."""

    def __init__(self, policy: Policy, change: Change) -> None:
        self.policy = policy
        self.change = change
        self.inner = LocalEngine(policy)

    def generate(
        self, prompt_token_ids: Sequence[Sequence[int]], n: int, sampling: Sampling, **keys: Any
    ) -> list[list[Completion]]:
        groups = self.inner.generate(prompt_token_ids, n, sampling, **keys)
        return [
            [self.change(self.policy, list(prompt), completion) for completion in group]
            for prompt, group in zip(prompt_token_ids, groups, strict=True)
        ]


def rescored(temperature: float, *, with_kept: bool = True) -> Change:
    """Reports log-probs of another distribution than the one that was sampled from."""

    def change(policy: Policy, prompt: list[int], completion: Completion) -> Completion:
        kept = [completion.kept] if with_kept and completion.kept is not None else None
        with torch.no_grad():
            scores = policy.score([prompt], [completion.token_ids], temperature=temperature, kept=kept)
        return dataclasses.replace(completion, logprobs=tuple(scores.logprobs.tolist()))

    return change


def shifted(by: float) -> Change:
    def change(policy: Policy, prompt: list[int], completion: Completion) -> Completion:
        return dataclasses.replace(completion, logprobs=tuple(logprob + by for logprob in completion.logprobs))

    return change


def stale(policy: Policy, prompt: list[int], completion: Completion) -> Completion:
    return dataclasses.replace(
        completion,
        weights_versions=(policy.version - 1,) * len(completion.token_ids),
        logprobs=tuple(logprob - 0.5 for logprob in completion.logprobs),
    )


def unscored(policy: Policy, prompt: list[int], completion: Completion) -> Completion:
    return dataclasses.replace(completion, logprobs=(float("nan"),) * len(completion.token_ids))


def refusal(policy: Policy, change: Change, sampling: Sampling) -> str:
    with pytest.raises(HandshakeError) as caught:
        shake_hands(policy, ChangedEngine(policy, change), PROMPTS, sampling, 1e-3)
    return str(caught.value)


@pytest.mark.parametrize("sampling", [PLAIN, COOL, TOP_K, COOL_TOP_K, Sampling(max_new_tokens=12, top_p=0.7)], ids=str)
def test_the_built_in_engine_agrees_with_the_trainer(policy: Policy, sampling: Sampling) -> None:
    """B57, B58: the same weights give the same log-probs, temperature and kept set included."""
    result = shake_hands(policy, LocalEngine(policy), PROMPTS, sampling, 1e-3)
    assert result.gap < 1e-5
    assert result.gap <= result.largest < 1e-4
    assert result.tokens >= 8


def test_log_probs_of_temperature_1_are_refused_with_advice(policy: Policy) -> None:
    """B57: a sampler at 0.5 that reports raw values would make false ratios at identical weights."""
    message = refusal(policy, rescored(1.0), COOL)
    assert "temperature 1, not 0.5" in message
    assert "--logprobs-mode processed_logprobs" in message
    assert "nats on average" in message


def test_log_probs_of_the_whole_vocabulary_are_refused_with_advice(policy: Policy) -> None:
    """B58: the kept mass would be in every ratio."""
    message = refusal(policy, rescored(1.0, with_kept=False), TOP_K)
    assert "whole vocabulary" in message
    assert "--top_k 0" in message


def test_log_probs_that_know_nothing_of_top_p_are_refused_with_advice(policy: Policy) -> None:
    """Trial 25: top-p below 1 and a sampler that reports raw values, as vLLM does unless told otherwise."""
    message = refusal(policy, rescored(1.0, with_kept=False), Sampling(max_new_tokens=12, top_p=0.7))
    assert "whole vocabulary, not its top-p/top-k set" in message
    assert "--top_p 1" in message


def test_a_sampler_that_reads_prompts_with_another_tokenizer_is_refused(policy: Policy) -> None:
    """Trial 25: its revision opens prompts with a token that ours does not: the answers fit another prompt."""

    class Other(LocalEngine):
        def generate(self, prompts: Any, n: int, sampling: Sampling, **keys: Any) -> list[list[Completion]]:
            return super().generate([[90, *prompt] for prompt in prompts], n, sampling, **keys)

    with pytest.raises(HandshakeError, match=r"model's and the tokenizer's revision, and the chat template"):
        shake_hands(policy, Other(policy), PROMPTS, PLAIN, 1e-3)


def test_raw_log_probs_are_named_also_where_temperature_and_top_k_are_both_set(policy: Policy) -> None:
    """B57 and B58 at once: what a server reports by default knows of neither."""
    message = refusal(policy, rescored(1.0, with_kept=False), COOL_TOP_K)
    assert "raw" in message
    assert "processed" in message


def test_a_stale_sampler_is_named_by_its_weights_version(policy: Policy) -> None:
    """B95: the weights did not reach the sampler."""
    policy.version = 7
    message = refusal(policy, stale, PLAIN)
    assert "weights version [6]" in message
    assert "version 7" in message


def test_a_disagreement_without_a_known_cause_says_what_to_compare(policy: Policy) -> None:
    """Neither temperature nor kept set nor version explains half a nat."""
    message = refusal(policy, shifted(-0.5), COOL_TOP_K)
    assert "0.5 nats on average" in message
    assert "0.001 is allowed" in message
    assert "dtype" in message


def test_a_gap_within_the_tolerance_passes(policy: Policy) -> None:
    """The tolerance is on the mean difference."""
    engine = ChangedEngine(policy, shifted(-0.01))
    assert shake_hands(policy, engine, PROMPTS, PLAIN, 0.02).gap == pytest.approx(0.01, rel=1e-3)


def test_one_odd_token_among_many_passes(policy: Policy) -> None:
    """The mean decides, not the largest difference: single tokens near a rounding edge are no disagreement."""
    odd: list[int] = []

    def once(policy: Policy, prompt: list[int], completion: Completion) -> Completion:
        odd.append(1)
        by = 0.4 if len(odd) == 1 else 0.0
        return dataclasses.replace(completion, logprobs=(completion.logprobs[0] - by, *completion.logprobs[1:]))

    result = shake_hands(policy, ChangedEngine(policy, once), PROMPTS, PLAIN, 0.05)
    assert result.largest == pytest.approx(0.4, abs=1e-4)
    assert result.gap == pytest.approx(0.4 / result.tokens, rel=1e-2)


def test_an_engine_without_log_probs_is_refused(policy: Policy) -> None:
    """B33: nothing says which distribution it samples from."""
    with pytest.raises(UsageError, match="no log-probabilities"):
        shake_hands(policy, ChangedEngine(policy, unscored), PROMPTS, PLAIN, 1e-3)


def test_weights_that_are_not_finite_are_refused(policy: Policy) -> None:
    """A NaN difference is not below any tolerance."""
    engine = LocalEngine(policy)
    frozen = engine.generate(PROMPTS[:4], 2, PLAIN)

    class Replay:
        def generate(self, *_: Any, **__: Any) -> list[list[Completion]]:
            return frozen

    with torch.no_grad():
        next(iter(policy.model.parameters())).fill_(float("nan"))
    with pytest.raises(HandshakeError, match="inf nats"):
        shake_hands(policy, Replay(), PROMPTS, PLAIN, 1e-3)


def test_a_few_short_answers_are_enough(policy: Policy) -> None:
    """At most four prompts, two answers each, 32 tokens: the budget is cut short, the rest of the sampling is kept."""
    seen: list[tuple[int, int, Sampling]] = []

    class Spy(LocalEngine):
        def generate(self, prompts: Any, n: int, sampling: Sampling, **keys: Any) -> list[list[Completion]]:
            seen.append((len(prompts), n, sampling))
            return super().generate(prompts, n, sampling, **keys)

    shake_hands(policy, Spy(policy), PROMPTS, dataclasses.replace(COOL, max_new_tokens=90), 1e-3)
    assert seen == [(4, 2, dataclasses.replace(COOL, max_new_tokens=32))]
