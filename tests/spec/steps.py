"""Steps at random: what hypothesis decides about them, and the tensors that follow."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from tests.spec.models import BUDGET, Step, decoder, everything, ledger_of, logprob_table, padded, settle
from torch import Tensor

from upweight.objective.presets import preset
from upweight.objective.spec import Objective
from upweight.objective.weights import MODES

CORRECTIONS = (
    ("none", "token", "keep"),
    ("is", "geometric", "keep"),
    ("tis", "token", "keep"),
    ("tis", "sequence", "keep"),
    ("mis", "token", "keep"),
    ("mis", "token", "valid"),
    ("mis", "sequence", "valid"),
)

KLS = ({}, {"kl_coef": 0.3}, {"kl_coef": 0.3, "kl_estimator": "k1", "kl_grad": "reverse"})
AVERAGES = ({}, {}, *({"loss_agg": mode} for mode in MODES))
"""A third of the steps keep the preset's own KL, and a third its own average."""

SPREAD = {"gspo": 6e-4, "cispo": 1.5}
"""How far old log-probs lie from the policy's: about as far as the preset's bounds; 0.3 for the others."""

GARBAGE = (math.nan, math.inf, -math.inf, 1e30, -1e30)


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """What hypothesis decides about a step; noise and ids follow from the seed."""

    groups: tuple[tuple[int, tuple[tuple[int, float], ...]], ...]
    """A group each: length of its prompt, and length and reward of its answers."""

    changes: dict[str, Any]
    """Fields of the preset's objective with other values."""

    holes: bool
    """Some tokens of the answers are not the policy's own."""

    first_update: bool
    """Old log-probs are not given: they are the policy's own, and every ratio is 1."""

    kind: str
    """The model: "llama" knows distances between tokens only, "gpt2" their places."""

    seed: int
    """Of ids and noise."""


@st.composite
def sketches(draw: Callable[..., Any], shortest: int = 0) -> Sketch:
    """Steps with at least one group that has a right and a wrong answer, so that something can be learnt."""
    answer = st.tuples(st.integers(shortest, BUDGET), st.sampled_from((0.0, 1.0, 0.5, math.nan)))
    group = st.tuples(st.integers(1, 4), st.lists(answer, min_size=1, max_size=3).map(tuple))
    groups = draw(st.lists(group, min_size=0, max_size=3))
    known = ((draw(st.integers(1, BUDGET)), 1.0), (draw(st.integers(1, BUDGET)), 0.0), draw(answer))
    groups.insert(draw(st.integers(0, len(groups))), (draw(st.integers(1, 4)), known))
    kind, level, masked = draw(st.sampled_from(CORRECTIONS))
    changes = {"correction": kind, "correction_level": level, "correction_cap": 1.1, "masked_tokens": masked}
    for others in (KLS, AVERAGES, ({}, {"dual_clip": 1.1}), ({}, {"gae_lambda": 0.9})):
        changes |= draw(st.sampled_from(others))
    return Sketch(
        groups=tuple(groups),
        changes=changes,
        holes=draw(st.booleans()),
        first_update=draw(st.integers(0, 3)) == 0 and masked == "keep",
        kind=draw(st.sampled_from(("llama", "gpt2"))),
        seed=draw(st.integers(0, 999)),
    )


def objective_of(name: str, sketch: Sketch) -> Objective:
    return dataclasses.replace(preset(name, max_new_tokens=BUDGET), **sketch.changes)


def step_of(name: str, sketch: Sketch) -> Step:
    """Ids at random; log-probs of the others at random distances from the policy's own."""
    noise = torch.Generator().manual_seed(sketch.seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 256, (length,), generator=noise).tolist())

    prompts, answers, groups, rewards = [], [], [], []
    for g, (prompt_length, members) in enumerate(sketch.groups):
        prompt = ids(prompt_length)
        for length, reward in members:
            prompts.append(prompt)
            answers.append(ids(length))
            groups.append(5 - 7 * g)
            rewards.append(reward)
    count = sum(map(len, answers))
    empty = torch.zeros(count, dtype=torch.float64)
    ours = torch.rand(count, generator=noise) > (0.25 if sketch.holes else -1.0)
    step = Step(
        kind=sketch.kind,
        prompts=tuple(prompts),
        answers=tuple(answers),
        group=torch.tensor(groups),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        ours=ours,
        old=empty,
        ref=empty,
        sampler=empty,
        values=torch.rand(count, generator=noise, dtype=torch.float64),
    )
    layout = padded(step, everything(step))
    with torch.no_grad():
        own = logprob_table(decoder(step.kind), layout)[layout.row, layout.column]

    def away(base: Tensor, size: float) -> Tensor:
        return base + size * torch.randn(count, generator=noise, dtype=torch.float64)

    old = own if sketch.first_update else away(own, SPREAD.get(name, 0.3))
    sampler = away(old, 0.2)
    sampler[torch.rand(count, generator=noise) < 0.15] = math.nan
    return dataclasses.replace(step, old=None if sketch.first_update else old, ref=away(own, 0.4), sampler=sampler)


def drawn(name: str, sketch: Sketch) -> tuple[Step, Objective]:
    return step_of(name, sketch), objective_of(name, sketch)


SMALL = Sketch(
    groups=((2, ((4, 1.0), (2, 0.0), (3, math.nan))), (3, ((6, 0.5), (0, 1.0), (1, math.nan), (5, 1.0)))),
    changes={"correction": "tis", "correction_cap": 1.1, "gae_lambda": 0.9},
    holes=False,
    first_update=False,
    kind="gpt2",
    seed=1,
)
"""Seven answers; numbers 2 and 5 are not scored, number 4 is empty."""


def scrambled(step: Step, objective: Objective) -> Step:
    """Other words in the answers that are not trained on, and in the prompts of groups of which none is."""
    trained = settle(ledger_of(step, objective), objective).trained
    used = [bool(trained[step.tokens_of([b])].any()) for b in range(len(step.answers))]
    needed = {group for group, use in zip(step.group.tolist(), used, strict=True) if use}

    def other(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(255 - i for i in ids)

    return dataclasses.replace(
        step,
        answers=tuple(a if use else other(a) for a, use in zip(step.answers, used, strict=True)),
        prompts=tuple(p if g in needed else other(p) for p, g in zip(step.prompts, step.group.tolist(), strict=True)),
    )


def edges(step: Step, objective: Objective) -> Iterator[str]:
    """What is special about a step."""
    sizes = step.group.unique(return_counts=True)[1].tolist()
    plan, ledger = settle(ledger_of(step, objective), objective), ledger_of(step, objective)
    lengths = torch.bincount(step.seq[step.ours], minlength=len(step.answers))
    layout = padded(step, everything(step))
    with torch.no_grad():
        own = logprob_table(decoder(step.kind), layout)[layout.row, layout.column]
    ratio = torch.ones_like(own) if step.old is None else (own - step.old).exp()
    low, high = objective.bounds
    spread_of = {
        g: step.rewards[(step.group == g) & ~step.rewards.isnan()].unique().numel() for g in step.group.tolist()
    }
    yield from (
        name
        for name, there in {
            "an empty answer": not all(step.answers),
            "an unscored answer": bool(step.rewards.isnan().any()),
            "a group of one": 1 in sizes,
            "uneven groups": len(set(sizes)) > 1,
            "a group without spread": 1 in spread_of.values(),
            "tool output": not bool(step.ours.all()),
            "a ratio of 1": step.old is None,
            "a ratio below": bool((ratio[plan.trained] < low).any()),
            "a ratio above": bool((ratio[plan.trained] > high).any()),
            "a rejected token": bool((ledger.rejected & plan.trained).any()),
            "a gap in mu": bool(step.sampler[plan.trained].isnan().any()),
            "a filtered group": objective.filter_groups and 1 in spread_of.values(),
            "an overlong answer": bool(objective.overlong_buffer) and int(lengths.max()) == BUDGET,
        }.items()
        if there
    )
