"""The random batches have the edges that they are named after."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from batches import EDGES, Batch, random_batch
from formulas import advantages


def log_ratios(batch: Batch) -> list[float]:
    return [abs(new - old) for new, old in zip(batch.live, batch.old_or_frozen, strict=True)]


def interior(batch: Batch) -> bool:
    return any("101" in "".join(str(int(slot)) for slot in slots) for slots in batch.mask)


def any_nan(values: object) -> bool:
    return any(math.isnan(value) for value in values)


HOLDS: dict[str, Callable[[Batch], bool]] = {
    "plain": lambda batch: len(batch.answer) >= 4 and max(log_ratios(batch)) < 3,
    "an empty mask row": lambda batch: not all(map(any, batch.mask)) and len(batch.answer) > 0,
    "everything masked": lambda batch: not batch.answer,
    "one token": lambda batch: len(batch.answer) == 1,
    "a group of one": lambda batch: 1 in Counter(batch.groups).values(),
    "uneven groups": lambda batch: len(set(Counter(batch.groups).values())) > 1,
    "unscored answers": lambda batch: any_nan(batch.rewards),
    "zero spread": lambda batch: (
        advantages(batch.rewards, batch.groups, "std", "mean")[0] == 0 and not any_nan(batch.rewards)
    ),
    "ratio beyond 20": lambda batch: 18 < max(log_ratios(batch)) < 25,
    "ratio beyond 200": lambda batch: 198 < max(log_ratios(batch)) < 205,
    "first update": lambda batch: batch.old is None,
    "sampler not scored": lambda batch: any_nan(batch.sampler),
    "sampler far out": lambda batch: (
        max(abs(x - y) for x, y in zip(batch.old_or_frozen, batch.sampler, strict=True)) > 14
    ),
    "reference far out": lambda batch: max(abs(x - y) for x, y in zip(batch.live, batch.reference, strict=True)) > 18,
    "masked tokens inside": interior,
    "log-probs above 0": lambda batch: max(batch.live) > 0,
}


@pytest.mark.parametrize("edge", EDGES)
def test_a_batch_has_the_edge_it_is_named_after(edge: str) -> None:
    for seed in range(30):
        batch = random_batch(random.Random(f"{edge} {seed}"), edge)
        assert batch.edge == edge
        assert HOLDS[edge](batch)


@pytest.mark.parametrize("edge", EDGES)
def test_every_row_has_a_masked_slot_for_garbage(edge: str) -> None:
    batch = random_batch(random.Random(edge), edge)
    assert [sum(slots) < len(slots) for slots in batch.mask] == [True] * len(batch.groups)
