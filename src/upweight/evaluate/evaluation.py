"""One model on a list of prompts: greedy accuracy, and pass@k over several seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from upweight.evaluate.accuracy import Accuracy, accuracy_of
from upweight.evaluate.answers import Answer, collect
from upweight.evaluate.compare import Comparison, compare
from upweight.evaluate.pass_at_k import PassRate, pass_rate
from upweight.objective.errors import UsageError, bad_parameter
from upweight.rewards.runner import RewardRunner
from upweight.rollout.completion import Engine, Sampling
from upweight.tasks.prompt import Prompt

GREEDY = "greedy accuracy"
"""What `compare_evaluations` calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a model's answers to a list of prompts came to."""

    greedy: Accuracy
    """The most likely answer to each prompt."""

    pass_rates: tuple[PassRate, ...]
    """pass@k for each k asked for, in order; empty where nothing was sampled."""

    greedy_answers: tuple[Answer, ...]
    """One per prompt, in order."""

    sampled: tuple[tuple[int, tuple[tuple[Answer, ...], ...]], ...]
    """Per seed: the seed, and per prompt its answers."""

    @property
    def unscored(self) -> int:
        """Sampled answers that could not be judged."""
        return sum(answer.correct is None for _, groups in self.sampled for group in groups for answer in group)

    @property
    def truncated(self) -> int:
        """Sampled answers that used up the budget."""
        return sum(answer.truncated for _, groups in self.sampled for group in groups for answer in group)


def evaluate(
    engine: Engine,
    encode: Callable[[Prompt], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    prompts: Sequence[Prompt],
    runner: RewardRunner,
    sampling: Sampling,
    *,
    samples: int = 0,
    ks: Sequence[int] = (),
    seeds: int = 1,
) -> Evaluation:
    """Answer every prompt greedily, and `samples` times with each seed.

    Args:
        engine: samples the answers.
        encode: the prompt's token ids, chat template applied.
        decode: an answer's text from its ids, without the end token.
        prompts: what to ask, at least one.
        runner: judges the answers; correct means a reward above 0.5.
        sampling: budget, temperature, top_p, top_k, and the first seed; seed + 1, seed + 2, ... follow.
        samples: answers per prompt and seed, beside the greedy one; 0 = none.
        ks: which pass@k; at most `samples` each.
        seeds: how many.

    Raises:
        UsageError: no prompts, or a k above `samples`.
    """
    if not prompts:
        raise bad_parameter("prompts", "evaluate", "at least one prompt", prompts)
    for k in ks:
        if not 1 <= k <= samples:
            raise bad_parameter("ks", "evaluate", f"in 1..samples with samples={samples}", k)
    greedy = replace(sampling, temperature=0.0, top_p=1.0, top_k=0)
    first = [group[0] for group in collect(engine, encode, decode, prompts, runner, greedy)]
    sampled = []
    for seed in range(sampling.seed, sampling.seed + seeds) if samples else ():
        groups = collect(engine, encode, decode, prompts, runner, replace(sampling, seed=seed), samples)
        sampled.append((seed, tuple(tuple(group) for group in groups)))
    by_seed = [groups for _, groups in sampled]
    return Evaluation(
        greedy=accuracy_of(first),
        pass_rates=tuple(pass_rate(by_seed, k) for k in ks),
        greedy_answers=tuple(first),
        sampled=tuple(sampled),
    )


def compare_evaluations(first: Evaluation, second: Evaluation) -> list[Comparison]:
    """Two models by every measure that both have.

    Raises:
        UsageError: they answered different prompts.
    """
    rows = [[answer.prompt.row for answer in one.greedy_answers] for one in (first, second)]
    if rows[0] != rows[1]:
        raise UsageError("Two models are compared on the same prompts, and these answered different ones.")
    right = [[None if a.correct is None else float(a.correct) for a in one.greedy_answers] for one in (first, second)]
    found = [compare(GREEDY, right[0], right[1], binary=True)]
    for one, other in zip(first.pass_rates, second.pass_rates, strict=True):
        found.append(compare(f"pass@{one.k}", one.estimates, other.estimates, binary=False))
    return found


def answer_rows(evaluation: Evaluation, model: str) -> Iterator[dict[str, Any]]:
    """Every answer as a row for a JSONL file: greedy ones first, then seed after seed."""
    for answer in evaluation.greedy_answers:
        yield _row(answer, model, seed=None)
    for seed, groups in evaluation.sampled:
        for group in groups:
            for answer in group:
                yield _row(answer, model, seed=seed)


def _row(answer: Answer, model: str, *, seed: int | None) -> dict[str, Any]:
    return {
        "model": model,
        "row": answer.prompt.row,
        "prompt": answer.prompt.said,
        "gold": answer.prompt.answer,
        "seed": seed,
        "sample": None if seed is None else answer.sample,
        "answer": answer.text,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "reward": None if math.isnan(answer.score.value) else answer.score.value,
        "status": str(answer.score.status),
        "correct": answer.correct,
        "why": answer.score.why,
    }
