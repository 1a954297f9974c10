"""Answers to a list of prompts, sampled and judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from upweight.rewards.runner import Failures, RewardRunner
from upweight.rewards.score import Score, Status
from upweight.rollout.completion import Engine, FinishReason, Sampling
from upweight.tasks.prompt import Prompt

CORRECT_ABOVE = 0.5
"""An answer is correct where its reward is above it: a verifier's 1 is, a partial credit of up to one half is not."""

ANSWERS_AT_ONCE = 4096
"""Answers of one call of the engine: bounds what is held of them, never changes what is sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer, judged."""

    prompt: Prompt
    """The row it answers."""

    sample: int
    """Which of the answers to that prompt, from 0."""

    text: str
    """What was answered, without the end token."""

    tokens: int
    """Its length, the end token included."""

    truncated: bool
    """Whether it used up the budget."""

    score: Score
    """The verdict."""

    @property
    def correct(self) -> bool | None:
        """Whether its reward is above one half; None where it could not be judged."""
        return self.score.value > CORRECT_ABOVE if self.score.status is Status.SCORED else None


def collect(
    engine: Engine,
    encode: Callable[[Prompt], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    prompts: Sequence[Prompt],
    runner: RewardRunner,
    sampling: Sampling,
    n: int = 1,
) -> list[list[Answer]]:
    """Answer every prompt `n` times and judge the answers.

    Args:
        engine: samples the answers.
        encode: the prompt's token ids, chat template applied.
        decode: an answer's text from its ids, without the end token.
        prompts: what to ask.
        runner: judges the answers.
        sampling: budget, temperature and seed.
        n: answers per prompt.

    Returns:
        P lists of `n` answers, in order.
    """
    answers: list[list[Answer]] = []
    at_once = max(1, ANSWERS_AT_ONCE // n)
    for start in range(0, len(prompts), at_once):
        made, failures = answered(engine, encode, decode, prompts[start : start + at_once], runner, sampling, n)
        runner.check_failures([failures])
        answers += made
    return answers


def answered(
    engine: Engine,
    encode: Callable[[Prompt], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    prompts: Sequence[Prompt],
    runner: RewardRunner,
    sampling: Sampling,
    n: int = 1,
) -> tuple[list[list[Answer]], Failures]:
    """`collect` in one call of the engine, however many answers reward functions failed on; same arguments.

    Returns:
        The answers, and the failures for `RewardRunner.check_failures`.
    """
    if not prompts:
        return [], {}
    keys = [(prompt.row, 0) for prompt in prompts]
    groups = engine.generate([encode(prompt) for prompt in prompts], n, sampling, keys=keys)
    completions = [completion for group in groups for completion in group]
    asked = [prompt for prompt in prompts for _ in range(n)]
    texts = [decode(completion.token_ids) for completion in completions]
    ids = [completion.token_ids for completion in completions]
    scores, failures = runner.judge(asked, texts, completion_ids=ids)
    judged = [
        Answer(
            prompt=prompt,
            sample=place % n,
            text=text,
            tokens=len(completion.token_ids),
            truncated=completion.finish_reason is FinishReason.LENGTH,
            score=score,
        )
        for place, (prompt, text, completion, score) in enumerate(zip(asked, texts, completions, scores, strict=True))
    ]
    return [judged[place : place + n] for place in range(0, len(judged), n)], failures
