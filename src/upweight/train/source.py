"""Where a step's groups come from: one interface for plain, dynamic and, later, asynchronous sampling."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from upweight.objective.advantage import informative_groups
from upweight.objective.errors import UsageError
from upweight.rewards.runner import RewardRunner
from upweight.rollout.completion import Engine, Sampling
from upweight.tasks.prompt import Draw, Prompt
from upweight.tasks.task import PromptStream
from upweight.train.records import Group, Sampled


class GroupSource(Protocol):
    """Hands out judged groups and can say where it stands."""

    def next_groups(self, count: int) -> Sampled:
        """Sample and judge the next step's groups: `count` of them, fewer at the end of an epoch."""
        ...

    def state_dict(self) -> Mapping[str, object]:
        """Position, as plain JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a position."""
        ...


class SamplingSource:
    """Samples from an engine as the step asks: once, or with `only_informative` on and on (DAPO, section 3.2).

    Dynamic sampling has a budget of rounds. Each round draws exactly as many prompts as groups are missing, so no
    informative group is ever thrown away. When the budget is used up, the step gets the informative groups there are,
    possibly none.
    """

    def __init__(
        self,
        *,
        stream: PromptStream,
        engine: Engine,
        encode: Callable[[Prompt], list[int]],
        decode: Callable[[Sequence[int]], str],
        runner: RewardRunner,
        sampling: Sampling,
        group_size: int,
        context_length: int,
        only_informative: bool = False,
        budget: int = 1,
    ) -> None:
        self._stream = stream
        self._engine = engine
        self._encode = encode
        self._decode = decode
        self._runner = runner
        self._sampling = sampling
        self._group_size = group_size
        self._context_length = context_length
        self._only_informative = only_informative
        self._budget = budget

    def next_groups(self, count: int) -> Sampled:
        kept: list[Group] = []
        discarded: list[Group] = []
        rounds = 0
        while rounds < self._budget and len(kept) < count:
            rounds += 1
            for group in self._sample(self._stream.take(count - len(kept))):
                wanted = not self._only_informative or is_informative(group)
                (kept if wanted else discarded).append(group)
            if not self._only_informative:
                break
        return Sampled(groups=tuple(kept), discarded=tuple(discarded), rounds=rounds)

    def _sample(self, draws: Sequence[Draw]) -> list[Group]:
        prompt_ids = [self._encode(draw.prompt) for draw in draws]
        for draw, ids in zip(draws, prompt_ids, strict=True):
            check_fits(draw.prompt, len(ids), self._sampling.max_new_tokens, self._context_length)
        keys = [(draw.prompt.row, draw.number) for draw in draws]
        answers = self._engine.generate(prompt_ids, self._group_size, self._sampling, keys=keys)
        texts = [[self._decode(answer.token_ids) for answer in group] for group in answers]
        prompts = [draw.prompt for draw in draws for _ in range(self._group_size)]
        scores = self._runner.score(
            prompts,
            [text for group in texts for text in group],
            completion_ids=[answer.token_ids for group in answers for answer in group],
        )
        return [
            Group(
                draw=draw,
                prompt_ids=tuple(prompt_ids[g]),
                completions=tuple(answers[g]),
                texts=tuple(texts[g]),
                scores=tuple(scores[g * self._group_size : (g + 1) * self._group_size]),
            )
            for g, draw in enumerate(draws)
        ]

    def state_dict(self) -> Mapping[str, object]:
        return {"stream": dict(self._stream.state_dict())}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        stream = state["stream"]
        if not isinstance(stream, Mapping):
            raise TypeError(f"the state of a prompt stream is a mapping, got {type(stream).__name__}")
        self._stream.load_state_dict(stream)


def is_informative(group: Group) -> bool:
    """Whether the group's task rewards differ; looks at what the task says, before any shaping."""
    rewards = torch.tensor([score.value for score in group.scores], dtype=torch.float64)
    return bool(informative_groups(rewards).any())


def check_fits(prompt: Prompt, length: int, max_new_tokens: int, context_length: int) -> None:
    """Refuse a prompt that leaves no room for its answer; never shorten it.

    Raises:
        UsageError: naming the row, its length, the context and the way out.
    """
    if length + max_new_tokens > context_length:
        raise UsageError(
            f"The prompt of {prompt.place} has {length} tokens; with max_new_tokens={max_new_tokens} that is more "
            f"than the model's context of {context_length}. Shorten or drop the row, or lower --max_new_tokens."
        )
