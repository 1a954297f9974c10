"""What every side is given: prompts, rewards that make groups informative, and the least work that a step is.

Runs in the peers' environments as well, so it imports nothing of ours.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ONE_IN = {"all": 1, "quarter": 4}
"""Which groups carry a signal -> one in so many."""

_TEXT = (
    "{name} has {a} apples and buys {b} more at the market. On the way home {c} of them are given away. "
    "How many apples are left? Think step by step, then give the number.\n"
)
_NAMES = ("Ada", "Bela", "Chandra", "Dmitri", "Edith", "Farid", "Grace", "Hideo")


def prompt_texts(count: int) -> list[str]:
    """The first `count` prompts, always the same ones; no two of eight that follow each other are equal.

    Example:
        >>> prompt_texts(1)[0][:30]
        'Ada has 866 apples and buys 39'
    """
    numbers = random.Random(0)
    return [
        _TEXT.format(name=_NAMES[row % len(_NAMES)], **{letter: numbers.randrange(2, 1000) for letter in "abc"})
        for row in range(count)
    ]


def random_ids(count: int, vocabulary: int, seed: int) -> list[int]:
    """Token ids, for passes whose time does not depend on what is said."""
    numbers = random.Random(seed)
    return [numbers.randrange(vocabulary) for _ in range(count)]


def cut(pieces: int, cost: int, most: int) -> list[tuple[int, int]]:
    """First and last (exclusive) of each pass, so that none costs more than `most`, unless a piece alone does.

    Example:
        >>> cut(8, 568, 2048), cut(3, 100, 0)
        ([(0, 3), (3, 6), (6, 8)], [(0, 1), (1, 2), (2, 3)])
    """
    at_once = max(1, most // cost)
    return [(start, min(pieces, start + at_once)) for start in range(0, pieces, at_once)]


class Reward:
    """A reward by place: in an informative group every other answer is right, in the others none is.

    It is a reward function of ours and of TRL alike, and counts what both hand it, so that equal work can be checked.
    """

    __name__ = "by_place"

    def __init__(self) -> None:
        self.tokens = self.answers = 0

    def __call__(
        self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]], informative: Sequence[bool], **_: Any
    ) -> list[float]:
        """One reward per completion; groups have an even number of answers, one after the other."""
        self.tokens += sum(len(ids) for ids in completion_ids)
        self.answers += len(completions)
        return [float(flag and place % 2 == 0) for place, flag in enumerate(informative)]

    def counted(self) -> dict[str, int]:
        """Tokens and answers since the last call."""
        counts = {"tokens": self.tokens, "answers": self.answers}
        self.tokens = self.answers = 0
        return counts


def rows(prompts: int, steps: int, informative: str) -> list[dict[str, Any]]:
    """The data set of `steps` steps: `prompt`, and whether its group is to carry a signal."""
    texts = prompt_texts(prompts * steps)
    return [
        {"prompt": text, "informative": place % prompts % ONE_IN[informative] == 0} for place, text in enumerate(texts)
    ]


@dataclass(frozen=True, kw_only=True)
class Model:
    """Weights that a token is multiplied with."""

    body: int
    """Parameters of the layers and norms."""

    head: int
    """Of the output head, whether or not it is the embedding too."""

    vocabulary: int
    """Words."""


def forward_flops(model: Model, *, fed: int, scored: int) -> float:
    """Of the products with weights in a forward pass; attention's own products are left out.

    Args:
        model: its weights.
        fed: tokens that go through the layers.
        scored: tokens that logits are made for.

    Example:
        >>> forward_flops(Model(body=10, head=5, vocabulary=2), fed=3, scored=2)
        80.0
    """
    return 2.0 * (model.body * fed + model.head * scored)


def step_flops(
    model: Model, *, prompts: int, prompt_tokens: int, answers: int, new_tokens: int, informative: str, reference: bool
) -> float:
    """The least work of a GRPO step: prompts go through once a pass, the backward is twice the forward.

    Args:
        model: its weights.
        prompts: P of the step.
        prompt_tokens: of all P.
        answers: G to a prompt.
        new_tokens: of each answer.
        informative: `all` or `quarter`: groups without a signal need no training pass unless there is a KL.
        reference: a KL: a forward pass of the reference, and every answer trained on.

    Example:
        >>> one = Model(body=1, head=0, vocabulary=2)
        >>> shape = dict(prompts=4, prompt_tokens=40, answers=2, new_tokens=11)
        >>> step_flops(one, **shape, informative="all", reference=False)  # (40 + 8 * 10) * (2 + 6)
        960.0
        >>> step_flops(one, **shape, informative="quarter", reference=False)  # 240 to sample, a quarter of 720
        420.0
        >>> step_flops(one, **shape, informative="quarter", reference=True)
        1200.0
    """
    fed, scored = prompt_tokens + prompts * answers * (new_tokens - 1), prompts * answers * new_tokens
    forward = forward_flops(model, fed=fed, scored=scored)
    share = 1.0 if reference else len(range(0, prompts, ONE_IN[informative])) / prompts
    return forward * (1.0 + 3.0 * share + (1.0 if reference else 0.0))
