"""Where a step's groups come from: one interface for plain, dynamic and, later, asynchronous sampling."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch

from upweight.objective.advantage import informative_groups
from upweight.objective.errors import UsageError
from upweight.rewards.runner import Failures, RewardRunner
from upweight.rollout.completion import Engine, Sampling
from upweight.tasks.prompt import Draw, Prompt
from upweight.tasks.task import PromptStream
from upweight.train.divided import divided
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Group, Sampled
from upweight.train.saving.held import group_from_json, group_to_json
from upweight.train.signals import SamplingDropped


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


class StaleError(RuntimeError):
    """An answer was sampled by weights that are too old to be trained on, or by none that there are yet."""


class SamplingSource:
    """Samples from an engine as the step asks: once, or with `only_informative` on and on (DAPO, section 3.2).

    Dynamic sampling has a budget of rounds. Each round draws exactly as many prompts as groups are missing, so no
    informative group is ever thrown away. When the budget is used up, the step gets the informative groups there are,
    possibly none; or, unless `when_starved` is "train", it gets none, and the source holds them for the next step: no
    update comes in between, so they are on-policy then too.

    With several ranks each samples and judges its share of a round, and all see all of it: the same groups, the same
    decision. Where sampling or judging fails on one rank, it fails on all; what reward functions failed on is counted
    over all ranks.
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
        when_starved: Literal["stop", "train", "skip"] = "train",
        version: Callable[[], int] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        ranks: Ranks = ALONE,
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
        self._when_starved = when_starved
        self._version = version
        self._interrupted = interrupted
        self._ranks = ranks
        self._held: tuple[Group, ...] = ()

    def next_groups(self, count: int) -> Sampled:
        """Sample and judge a step's groups; see `GroupSource.next_groups`.

        Raises:
            SamplingDropped: a signal came between two rounds. As after any exception, the source stands where it
                stood before the call.
            StaleError: the engine answered with other weights than the trainer's.
        """
        position, held = self._stream.state_dict(), self._held
        try:
            return self._collect(count)
        except BaseException:
            self._stream.load_state_dict(position)
            self._held = held
            raise

    def _collect(self, count: int) -> Sampled:
        carried = tuple(group for group in self._held if self._age(group) == 0)
        kept, rounds = list(carried), 0
        discarded: list[Group] = []
        while rounds < self._budget and len(kept) < count:
            if rounds and not self._ranks.agree(not self._interrupted()):
                raise SamplingDropped
            rounds += 1
            for group in self._sample(self._stream.take(count - len(kept))):
                wanted = not self._only_informative or is_informative(group)
                (kept if wanted else discarded).append(group)
            if not self._only_informative:
                break
        missing = max(0, count - len(kept)) if self._only_informative else 0
        if missing and self._when_starved != "train":
            self._held = tuple(kept)
            return Sampled(
                groups=(),
                discarded=tuple(discarded),
                held=tuple(kept[len(carried) :]),
                missing=missing,
                rounds=rounds,
            )
        self._held = ()
        return Sampled(
            groups=tuple(kept), discarded=tuple(discarded), carried=len(carried), missing=missing, rounds=rounds
        )

    def _sample(self, draws: Sequence[Draw]) -> list[Group]:
        """The draws' groups, in order."""
        prompt_ids = [self._encode(draw.prompt) for draw in draws]
        for draw, ids in zip(draws, prompt_ids, strict=True):
            check_fits(draw.prompt, len(ids), self._sampling.max_new_tokens, self._context_length)
        return divided(
            [len(ids) + self._group_size * self._sampling.max_new_tokens for ids in prompt_ids],
            lambda mine: self._answer([draws[place] for place in mine], [prompt_ids[place] for place in mine]),
            self._runner,
            self._ranks,
        )

    def _answer(self, draws: Sequence[Draw], prompt_ids: Sequence[list[int]]) -> tuple[list[Group], Failures]:
        if not draws:
            return [], {}
        keys = [(draw.prompt.row, draw.number) for draw in draws]
        answers = self._engine.generate(prompt_ids, self._group_size, self._sampling, keys=keys)
        if self._ranks.world == 1 and self._interrupted():  # judging may take long
            raise SamplingDropped
        texts = [[self._decode(answer.token_ids) for answer in group] for group in answers]
        prompts = [draw.prompt for draw in draws for _ in range(self._group_size)]
        scores, failures = self._runner.judge(
            prompts,
            [text for group in texts for text in group],
            completion_ids=[answer.token_ids for group in answers for answer in group],
        )
        groups = [
            Group(
                draw=draw,
                prompt_ids=tuple(prompt_ids[g]),
                completions=tuple(answers[g]),
                texts=tuple(texts[g]),
                scores=tuple(scores[g * self._group_size : (g + 1) * self._group_size]),
            )
            for g, draw in enumerate(draws)
        ]
        if self._version is not None:
            for group in groups:
                check_age(group, self._version())
        return groups, failures

    def _age(self, group: Group) -> int:
        return 0 if self._version is None else age(group, self._version())

    def state_dict(self) -> Mapping[str, object]:
        return {"stream": dict(self._stream.state_dict()), "held": [group_to_json(group) for group in self._held]}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        stream, held = state["stream"], state.get("held", [])
        if not isinstance(stream, Mapping):
            raise TypeError(f"the state of a prompt stream is a mapping, got {type(stream).__name__}")
        if not isinstance(held, list):
            raise TypeError(f"the groups that a source holds are a list, got {type(held).__name__}")
        self._stream.load_state_dict(stream)
        self._held = tuple(group_from_json(group) for group in held)


def age(group: Group, version: int) -> int:
    """By how many updates the oldest token of a group is older than the weights that would train on it.

    Args:
        group: judged answers; each token says which version sampled it.
        version: of the weights now.
    """
    versions = [v for completion in group.completions for v in completion.weights_versions]
    if versions and max(versions) > version:
        return version - max(versions)
    return version - min(versions) if versions else 0


def check_age(group: Group, version: int, max_age: int = 0) -> None:
    """Refuse a group that was sampled by older weights than allowed, or by weights that the trainer does not have.

    Args:
        group: judged answers.
        version: of the weights now; each optimiser update adds 1.
        max_age: updates that may lie between sampling and training; 0 = none, on-policy.

    Raises:
        StaleError: naming the row and both versions.
    """
    years = age(group, version)
    if not 0 <= years <= max_age:
        raise StaleError(
            f"The answers to {group.draw.prompt.place} were sampled by weights version {version - years}, and the "
            f"trainer holds version {version}; at most {max_age} updates may lie between: the weights did not reach "
            "the sampler."
        )


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
