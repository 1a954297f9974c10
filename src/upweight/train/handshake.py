"""Before the first step: do sampler and trainer speak of the same distribution?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.rollout.completion import Completion, Engine, Sampling

PROMPTS = 4
SAMPLES = 2
TOKENS = 32

TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
"""Nats, mean |log-prob difference| at equal weights, by the run's dtype: float32 measures 1e-6, bfloat16 about 1e-2."""


class HandshakeError(RuntimeError):
    """Sampler and trainer disagree at equal weights; training would be off-policy from the first step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handshake:
    """The result of scoring the sampler's own tokens with the trainer's forward pass."""

    gap: float
    """Mean |log pi - log mu| over the tokens, nats."""

    largest: float
    """Its maximum."""

    tokens: int
    """Tokens compared."""


def shake_hands(
    policy: Policy, engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, tolerance: float
) -> Handshake:
    """Let the engine answer a few prompts and score its tokens with the trainer's forward pass.

    Args:
        policy: the trainer's.
        engine: the sampler.
        prompts: token ids; the first few are used.
        sampling: as in training; the budget is cut short.
        tolerance: largest mean |log-prob difference|, nats.

    Raises:
        HandshakeError: above the tolerance; it names the likely cause.
        UsageError: the engine scored none of its tokens.
    """
    chosen = [list(prompt) for prompt in prompts[:PROMPTS]]
    short = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, TOKENS))
    answers = engine.generate(chosen, SAMPLES, short)
    repeated = [prompt for prompt in chosen for _ in range(SAMPLES)]
    completions = [completion for group in answers for completion in group]
    result = _compare(policy, repeated, completions, sampling.temperature, kept=True)
    if result.gap <= tolerance:
        return result
    raise HandshakeError(
        f"Sampler and trainer disagree: over {result.tokens} tokens their log-probabilities differ by "
        f"{result.gap:.3g} nats on average (largest {result.largest:.3g}), and {tolerance:.3g} is allowed. "
        + _likely_cause(policy, repeated, completions, sampling, result.gap)
    )


def _compare(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    temperature: float,
    *,
    kept: bool,
) -> Handshake:
    sets = [completion.kept for completion in completions]
    with torch.no_grad():
        scores = policy.score(
            prompts,
            [completion.token_ids for completion in completions],
            temperature=temperature,
            kept=sets if kept and any(s is not None for s in sets) else None,
        )
    theirs = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    scored = ~theirs.isnan()
    if not scored.any():
        raise UsageError("The engine returned no log-probabilities: nothing says which distribution it samples from.")
    gap = (scores.logprobs.cpu() - theirs)[scored].abs()
    gap = gap.nan_to_num(nan=torch.inf)
    return Handshake(gap=float(gap.mean()), largest=float(gap.max()), tokens=int(scored.sum()))


def _likely_cause(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    sampling: Sampling,
    gap: float,
) -> str:
    """Try the usual mistakes and name the one that explains the numbers."""
    versions = {version for completion in completions for version in completion.weights_versions}
    if versions != {policy.version}:
        return (
            f"The sampler answered with weights version {sorted(versions)}, the trainer holds version "
            f"{policy.version}: the weights did not reach the sampler."
        )
    cool, cut = sampling.temperature != 1.0, any(completion.kept is not None for completion in completions)
    for heated, whole in ((True, False), (False, True), (True, True)):
        if (heated and not cool) or (whole and not cut):
            continue
        temperature = 1.0 if heated else sampling.temperature
        if _compare(policy, prompts, completions, temperature, kept=not whole).gap < gap / 10:
            return _raw_logprobs(sampling, heated=heated, whole=whole)
    return (
        "Temperature, top-p/top-k and weights version agree, so the two compute different functions: compare the "
        "dtype, the model's and the tokenizer's revision, and the chat template."
    )


def _raw_logprobs(sampling: Sampling, *, heated: bool, whole: bool) -> str:
    """The sampler's numbers are explained by temperature 1, by the whole vocabulary, or by both."""
    wrong = ([f"temperature 1, not {sampling.temperature:g}"] if heated else []) + (
        ["the whole vocabulary, not its top-p/top-k set"] if whole else []
    )
    way_out = ", or set --top_p 1 --top_k 0" if whole and not heated else ""
    return (
        f"The sampler's numbers are those of {' and of '.join(wrong)}: it reports raw log-probabilities; ask it for "
        f"processed ones (vLLM: --logprobs-mode processed_logprobs){way_out}."
    )
