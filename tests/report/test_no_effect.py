"""A choice is said to have no effect exactly where the gradient is the same without it."""

import dataclasses
import functools
import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from upweight.objective.correction import rejected_tokens
from upweight.objective.loss import policy_loss
from upweight.objective.remarks import remarks
from upweight.objective.spec import Objective
from upweight.objective.weights import flat_token_weights

LENGTHS = (9, 1, 12, 6)
SEQ_ID = torch.tensor([i for i, length in enumerate(LENGTHS) for _ in range(length)])
OTHERS: dict[str, object] = {
    "surrogate": "clip",
    "clip": 0.9,
    "clip_high": 5.0,
    "dual_clip": None,
    "ratio_level": "token",
    "kl_grad": "naive",
    "correction_level": "token",
    "correction_cap": 0.2,
    "masked_tokens": "keep",
}
"""Field -> a value that would act, if the field did."""


def noise(seed: int) -> Tensor:
    return torch.randn(len(SEQ_ID), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@functools.cache
def gradient(objective: Objective, seed: int, moves: bool) -> Tensor:
    old = -1.5 + 0.3 * noise(seed)
    apart = 0.9 * noise(seed + 1) + 0.7 * noise(seed + 4)[SEQ_ID]  # answers as a whole as well
    live = (old + apart if moves else old.clone()).requires_grad_()
    sampler = old - 0.8 * noise(seed + 2)
    keep = None
    if objective.masked_tokens == "valid":
        keep = ~rejected_tokens(objective, old, sampler, SEQ_ID)
    loss = policy_loss(
        objective,
        logprobs=live,
        old_logprobs=old if moves else None,
        advantages=torch.tensor([1.3, -0.7, -1.1, 0.5], dtype=torch.float64)[SEQ_ID],
        weights=flat_token_weights(SEQ_ID, objective.loss_agg, keep=keep),
        seq_id=SEQ_ID,
        ref_logprobs=old - 0.5 * noise(seed + 3),
        sampler_logprobs=sampler,
    ).loss
    (found,) = torch.autograd.grad(loss, live)
    return found


AXES: dict[str, tuple[object, ...]] = {
    "surrogate": ("clip", "cispo", "none"),
    "dual_clip": (None, 1.3),
    "ratio_level": ("token", "sequence"),
    "correction": ("none", "is", "tis", "mis"),
    "correction_level": ("token", "sequence", "geometric"),
    "kl_coef": (0.0, 0.3),
    "kl_grad": ("naive", "reverse"),
    "masked_tokens": ("keep", "valid"),
}


@pytest.mark.parametrize("moves", [False, True], ids=["one update", "several"])
@pytest.mark.parametrize("field", OTHERS)
def test_a_choice_without_effect_is_named_and_no_other(field: str, moves: bool) -> None:
    checked: list[bool] = []
    wrong: list[tuple[dict[str, Any], str, list[str]]] = []
    for values in itertools.islice(itertools.product(*AXES.values()), None, None, 5):  # 5 divides no axis: all pairs
        chosen: dict[str, Any] = dict(zip(AXES, values, strict=True))
        objective = Objective(**{**chosen, "correction_cap": 1.1, "clip": 0.1, "clip_high": 0.15})
        other = dataclasses.replace(objective, **{field: OTHERS[field]})  # type: ignore[arg-type]
        if getattr(objective, field) in (getattr(other, field), getattr(Objective(), field)):
            continue
        same = all(
            torch.allclose(gradient(objective, seed, moves), gradient(other, seed, moves), atol=1e-12)
            for seed in range(10, 50, 10)
        )
        texts = [r.text for r in remarks(objective, updates_per_step=2 if moves else 1) if r.kind == "no effect"]
        named = any(re.search(rf"\b{field}=[^:]*ha(s|ve) no effect", text) for text in texts)
        wrong += [] if named == same else [(chosen, "same gradient" if same else "another gradient", texts)]
        checked.append(same)
    assert wrong == []
    assert checked
