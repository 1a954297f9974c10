"""Random ragged batches of a few tokens as plain records, the edges among them, and all combinations of choices."""

import itertools
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

NAN, INF = math.nan, math.inf
GARBAGE = (NAN, INF, -INF, 1e30)
"""What a masked slot may hold."""

EDGES = (
    "plain",
    "an empty mask row",
    "everything masked",
    "one token",
    "a group of one",
    "uneven groups",
    "unscored answers",
    "zero spread",
    "ratio beyond 20",
    "ratio beyond 200",
    "first update",
    "sampler not scored",
    "sampler far out",
    "reference far out",
    "masked tokens inside",
    "log-probs above 0",
)

WEIGHTS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean")
RATIOS = ("token", "sequence")
SURROGATES = ("clip", "clip-high", "dual-clip", "cispo", "none")
KLS = ("off", "k1-reward", "k1-reverse", "k2-naive", "k2-reverse", "k3-naive", "k3-reverse")
CORRECTIONS = (
    ("none", "token", "keep"),
    *((kind, level, "keep") for kind in ("is", "tis", "mis") for level in ("token", "sequence", "geometric")),
    *(("mis", level, "valid") for level in ("token", "sequence", "geometric")),
)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """One combination, and the numbers that go with it."""

    weights: str
    ratio: str
    surrogate: str
    kl: str
    correction: str
    level: str
    masked_tokens: str
    per_token: bool = False
    clip: float = 0.2
    clip_high: float | None = None
    dual_clip: float | None = None
    kl_coef: float = 0.0
    cap: float = 2.0
    max_length: int = 8
    scale: str = "std"
    baseline: str = "mean"

    @property
    def bounds(self) -> tuple[float, float]:
        return 1 - self.clip, 1 + (self.clip if self.clip_high is None else self.clip_high)

    @property
    def estimator(self) -> str:
        return "k3" if self.kl == "off" else self.kl[:2]

    @property
    def axes(self) -> dict[str, object]:
        return {
            "weights": self.weights,
            "ratio": self.ratio,
            "surrogate": self.surrogate,
            "kl": self.kl,
            "correction": (self.correction, self.level, self.masked_tokens),
        }


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Answers of a few tokens. Lists over tokens hold the masked-in ones, in reading order."""

    edge: str
    mask: Sequence[Sequence[bool]]
    groups: Sequence[int]
    rewards: Sequence[float]
    answer: Sequence[int]
    live: Sequence[float]
    old: Sequence[float] | None
    reference: Sequence[float]
    sampler: Sequence[float]
    token_advantages: Sequence[float]

    @property
    def token_groups(self) -> list[int]:
        return [self.groups[a] for a in self.answer]

    @property
    def old_or_frozen(self) -> Sequence[float]:
        return self.live if self.old is None else self.old

    def in_float32(self) -> "Batch":
        """The same batch with every number rounded to what float32 can hold."""
        names = ("rewards", "live", "old", "reference", "sampler", "token_advantages")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{name: None if v is None else list(array("f", v)) for name, v in given.items()})


def all_combinations(per_token: bool = False) -> list[Choices]:
    """Every combination once, each with numbers of its own. With advantages per token there is no KL in the reward,
    and the weights take turns."""
    if not per_token:
        axes = itertools.product(WEIGHTS, RATIOS, SURROGATES, KLS, CORRECTIONS)
    else:
        kls = [kl for kl in KLS if kl != "k1-reward"]
        rest = itertools.product(RATIOS, SURROGATES, kls, CORRECTIONS)
        axes = ((WEIGHTS[i % 4], *choice) for i, choice in enumerate(rest))
    return [_choices(random.Random(f"choices {per_token} {i}"), per_token, *axis) for i, axis in enumerate(axes)]


def _choices(
    rng: random.Random, per_token: bool, weights: str, ratio: str, surrogate: str, kl: str, correction: tuple[str, ...]
) -> Choices:
    kind, level, masked_tokens = correction
    low = rng.choice([0.1, 0.2, 0.3]) if surrogate != "cispo" else rng.choice([0.3, 1.0])
    high = {"clip-high": low + rng.choice([0.08, 0.2]), "cispo": rng.choice([None, 0.15, 0.4])}.get(surrogate)
    return Choices(
        weights=weights,
        ratio=ratio,
        surrogate=surrogate,
        kl=kl,
        correction=kind,
        level=level,
        masked_tokens=masked_tokens,
        per_token=per_token,
        clip=low,
        clip_high=high,
        dual_clip=rng.choice([1.35, 2.0]) if surrogate == "dual-clip" else None,
        kl_coef=0.0 if kl == "off" else rng.choice([0.04, 0.5]),
        cap=rng.choice([0.9, 1.3, 2.0]),
        max_length=rng.choice([3, 16]),
        scale=rng.choice(["std", "none", "batch"]),
        baseline=rng.choice(["mean", "leave-one-out"]),
    )


def random_batch(rng: random.Random, edge: str) -> Batch:
    """A ragged batch that has this edge."""
    groups = _groups(rng, edge)
    mask = _mask(rng, edge, len(groups))
    rewards = [rng.choice([0.0, 1.0, rng.uniform(-1, 1)]) for _ in groups]
    if edge == "zero spread":
        rewards = [0.1 if g == groups[0] else r for g, r in zip(groups, rewards, strict=True)]
    if edge == "unscored answers":
        for row in rng.sample(range(len(groups)), 2):
            rewards[row] = NAN
            if rng.random() < 0.5:  # as a trainer lays it out: an answer without a score has no trainable token
                mask[row] = [False] * len(mask[row])
    answer = [row for row, slots in enumerate(mask) for slot in slots if slot]
    return _with_log_probs(rng, edge, mask, groups, rewards, answer)


def _groups(rng: random.Random, edge: str) -> list[int]:
    sizes = {"a group of one": [1, 3], "one token": [2], "uneven groups": [2, 4]}.get(edge) or rng.choice(
        [[2, 2], [3, 2], [4], [2, 2, 1]]
    )
    names = rng.sample([-3, 0, 7, 11, 40], len(sizes))
    groups = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    rng.shuffle(groups)
    return groups


def _mask(rng: random.Random, edge: str, rows: int) -> list[list[bool]]:
    width = 5
    mask = [[False] * width for _ in range(rows)]
    for slots in mask:
        length, start = rng.randint(1, 4), rng.randint(0, 1)
        for t in range(start, start + length):
            slots[t] = True
    if edge == "masked tokens inside":
        mask[0] = [True, False, True, rng.random() < 0.5, True]
    if edge == "an empty mask row":
        mask[rng.randrange(rows)] = [False] * width
    if edge in ("everything masked", "one token"):
        mask = [[False] * width for _ in range(rows)]
    if edge == "one token":
        mask[rng.randrange(rows)][rng.randrange(width)] = True
    return mask


def _with_log_probs(
    rng: random.Random,
    edge: str,
    mask: list[list[bool]],
    groups: list[int],
    rewards: list[float],
    answer: list[int],
) -> Batch:
    count = len(answer)
    live = [rng.uniform(-3, -0.1) + (3.5 if edge == "log-probs above 0" else 0) for _ in answer]
    old = [x - rng.gauss(0, 0.4) for x in live]
    reference = [x + rng.gauss(0, 0.5) for x in live]
    sampler = [x - rng.gauss(0, 0.5) for x in old]
    for t in rng.sample(range(count), min(count, 2)):
        sign = rng.choice([-1, 1])
        if edge in ("ratio beyond 20", "ratio beyond 200"):
            old[t] = live[t] - sign * (rng.uniform(19, 24) if edge == "ratio beyond 20" else rng.uniform(199, 204))
            sampler[t] = old[t] - rng.gauss(0, 0.5)
        if edge == "reference far out":
            reference[t] = live[t] + sign * rng.uniform(19, 24)
        if edge == "sampler far out":
            sampler[t] = old[t] - sign * rng.uniform(15, 24)
        if edge == "sampler not scored":
            sampler[t] = NAN
    return Batch(
        edge=edge,
        mask=mask,
        groups=groups,
        rewards=rewards,
        answer=answer,
        live=live,
        old=None if edge == "first update" else old,
        reference=reference,
        sampler=sampler,
        token_advantages=[rng.choice([0.0, rng.gauss(0, 1), rng.gauss(0, 1)]) for _ in answer],
    )
