"""One case through the library, on padded tensors and on flat ones, and the comparison with the specification."""

import functools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from batches import EDGES, GARBAGE, Batch, Choices, random_batch
from torch import Tensor
from whole import NEAR, contributions, derivative, fix, metrics, near_a_kink, near_a_threshold

from upweight.objective.advantage import group_advantages
from upweight.objective.correction import rejected_tokens
from upweight.objective.dense import grpo_loss
from upweight.objective.loss import policy_loss
from upweight.objective.metrics import metric_means
from upweight.objective.shaping import kl_in_reward
from upweight.objective.spec import Objective
from upweight.objective.weights import flat_token_weights


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What the library may differ by, and how far from a threshold the batches stay."""

    dtype: torch.dtype
    value: float
    """Of the loss, and of a metric, relative to it."""

    cancelled: float
    """Of the loss, relative to the sum of its terms' sizes: where they cancel, their roundings are left."""

    gradient: float
    """Of a derivative, relative to it."""

    floor: float
    """Of a derivative, relative to the terms it moves (and to their weights): what cancels in it leaves a rounding."""

    threshold: float
    """Log-ratios keep this distance from bounds and caps, so that a rounding decides nothing."""


# In float32 a log-prob of -200 is rounded by 1e-5, which is the relative error of its ratio.
FLOAT64 = Tolerance(dtype=torch.float64, value=1e-10, cancelled=1e-14, gradient=1e-6, floor=1e-9, threshold=1e-8)
FLOAT32 = Tolerance(dtype=torch.float32, value=5e-5, cancelled=1e-6, gradient=1e-4, floor=1e-5, threshold=1e-4)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    loss: float
    gradient: Sequence[float]
    """Over the trainable tokens."""

    metrics: Mapping[str, float]


@functools.cache
def case(choices: Choices, index: int, tolerance: Tolerance = FLOAT64) -> Batch:
    """The batch of a combination: the edges take turns, drawn again where a rounding would decide."""
    edge = EDGES[random.Random(f"edge {index}").randrange(len(EDGES))]
    for attempt in range(100):
        batch = random_batch(random.Random(f"batch {index} {attempt}"), edge)
        batch = batch.in_float32() if tolerance.dtype == torch.float32 else batch
        if not near_a_threshold(batch, choices, tolerance.threshold):
            return batch
    raise AssertionError(f"no batch for {choices}")


def padded(values: Sequence[float], batch: Batch, rng: random.Random, dtype: torch.dtype) -> Tensor:
    """[B, T], with garbage in the masked slots."""
    following = iter(values)
    rows = [[next(following) if slot else rng.choice(GARBAGE) for slot in slots] for slots in batch.mask]
    return torch.tensor(rows, dtype=dtype)


def reads(choices: Choices, rng: random.Random) -> tuple[bool, bool]:
    """Whether the reference and the sampler are handed over: where needed, and half of the time where not."""
    needs_reference = choices.kl not in ("off", "k1-reward")
    return needs_reference or rng.random() < 0.5, choices.correction != "none" or rng.random() < 0.5


def library_advantages(batch: Batch, choices: Choices, dtype: torch.dtype) -> Tensor:
    """[B], of the rewards, or of the rewards minus the KL."""
    rewards = torch.tensor(batch.rewards, dtype=dtype)
    if choices.kl == "k1-reward":
        old, reference = (torch.tensor(x, dtype=dtype) for x in (batch.old_or_frozen, batch.reference))
        index = torch.tensor(batch.answer, dtype=torch.long)
        rewards = rewards - choices.kl_coef * kl_in_reward(old, reference, index, len(batch.rewards))
    return group_advantages(rewards, list(batch.groups), scale=choices.scale, baseline=choices.baseline)


def on_padded_tensors(batch: Batch, choices: Choices, dtype: torch.dtype, index: int) -> Outcome:
    rng = random.Random(f"padding {index}")
    reference, sampler = reads(choices, random.Random(f"reads {index}"))
    live = padded(batch.live, batch, rng, dtype).requires_grad_()
    mask = torch.tensor(batch.mask).to(rng.choice([torch.bool, torch.int64, torch.float32]))
    per_token = padded(batch.token_advantages, batch, rng, dtype)
    in_loss = choices.kl != "k1-reward"
    loss, found = grpo_loss(
        live,
        None if batch.old is None else padded(batch.old, batch, rng, dtype),
        per_token if choices.per_token else library_advantages(batch, choices, dtype),
        mask,
        clip=choices.clip,
        clip_high=choices.clip_high,
        ratio_level=choices.ratio,
        surrogate=choices.surrogate if choices.surrogate in ("cispo", "none") else "clip",
        dual_clip=choices.dual_clip,
        loss_agg=choices.weights,
        max_length=choices.max_length,
        group_ids=list(batch.groups),
        kl_coef=choices.kl_coef if in_loss else 0.0,
        ref_logprobs=padded(batch.reference, batch, rng, dtype) if reference else None,
        kl_estimator=choices.estimator if in_loss else "k1",
        kl_grad="reverse" if choices.kl.endswith("reverse") else "naive",
        sampler_logprobs=padded(batch.sampler, batch, rng, dtype) if sampler else None,
        correction=choices.correction,
        correction_level=choices.level,
        correction_cap=choices.cap,
        masked_tokens=choices.masked_tokens,
    )
    (gradient,) = torch.autograd.grad(loss, live)
    inside = torch.tensor(batch.mask)
    assert (gradient[~inside] == 0).all(), "a masked slot has a gradient"
    return Outcome(loss=loss.item(), gradient=gradient[inside].tolist(), metrics=found)


def on_flat_tensors(batch: Batch, choices: Choices, dtype: torch.dtype, index: int) -> Outcome:
    def flat(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    reference, sampler = reads(choices, random.Random(f"reads {index}"))
    objective = Objective(
        loss_agg=choices.weights,
        surrogate=choices.surrogate if choices.surrogate in ("cispo", "none") else "clip",
        clip=choices.clip,
        clip_high=choices.clip_high,
        dual_clip=choices.dual_clip,
        ratio_level=choices.ratio,
        kl_coef=choices.kl_coef,
        kl_estimator=choices.estimator,
        kl_grad="reverse" if choices.kl.endswith("reverse") else "naive",
        kl_place="reward" if choices.kl == "k1-reward" else "loss",
        correction=choices.correction,
        correction_level=choices.level,
        correction_cap=choices.cap,
        masked_tokens=choices.masked_tokens,
    )
    live = flat(batch.live).requires_grad_()
    rows = torch.tensor(batch.answer, dtype=torch.long)
    seq_id = 50 - 7 * rows  # any integers will do, in any order
    keep = None
    if choices.masked_tokens == "valid":
        keep = ~rejected_tokens(objective, flat(batch.old_or_frozen), flat(batch.sampler), seq_id)
    per_answer = library_advantages(batch, choices, dtype)
    terms = policy_loss(
        objective,
        logprobs=live,
        old_logprobs=None if batch.old is None else flat(batch.old),
        advantages=flat(batch.token_advantages) if choices.per_token else per_answer[rows],
        weights=flat_token_weights(
            seq_id,
            choices.weights,
            max_length=choices.max_length,
            group_id=torch.tensor(batch.token_groups, dtype=torch.long),
            keep=keep,
        ),
        seq_id=seq_id,
        ref_logprobs=flat(batch.reference) if reference else None,
        sampler_logprobs=flat(batch.sampler) if sampler else None,
        per_token_advantages=choices.per_token,
    )
    (gradient,) = torch.autograd.grad(terms.loss, live)
    return Outcome(loss=terms.loss.item(), gradient=gradient.tolist(), metrics=metric_means(terms.metrics))


def compare(batch: Batch, choices: Choices, index: int, tolerance: Tolerance) -> tuple[int, int]:
    """Assert that both paths agree with the specification; how many derivatives were compared and left out."""
    fixed = fix(batch, choices)
    terms = contributions(batch, choices, fixed)
    away = [
        t for t in range(len(batch.answer)) if not near_a_kink(batch, choices, fixed, t, max(tolerance.threshold, NEAR))
    ]
    slopes = {t: derivative(batch, choices, fixed, t) for t in away}
    loss, size = math.fsum(terms), math.fsum(map(abs, terms))
    wanted = metrics(batch, choices, fixed, reads(choices, random.Random(f"reads {index}"))[0])
    for path in (on_padded_tensors, on_flat_tensors):
        got = path(batch, choices, tolerance.dtype, index)
        where = f"{path.__name__}: {choices} with {batch.edge} (case {index})"
        assert math.isclose(got.loss, loss, rel_tol=tolerance.value, abs_tol=tolerance.cancelled * size), (
            f"loss {got.loss!r}, specified {loss!r}; {where}"
        )
        for t, (slope, moved) in slopes.items():
            assert math.isclose(got.gradient[t], slope, rel_tol=tolerance.gradient, abs_tol=tolerance.floor * moved), (
                f"derivative {t} is {got.gradient[t]!r}, specified {slope!r}; {where}"
            )
        compare_metrics(got.metrics, wanted, tolerance, where)
    return len(away), len(batch.answer) - len(away)


def compare_metrics(got: Mapping[str, float], wanted: Mapping[str, float], tolerance: Tolerance, where: str) -> None:
    missing = set(wanted) - set(got) - {"mismatch", "kl", "tokens", "ratio_max"}
    assert not missing, f"metrics {missing} are missing; {where}"
    for name in set(wanted) & set(got):
        assert math.isclose(got[name], wanted[name], rel_tol=tolerance.value, abs_tol=tolerance.value), (
            f"{name} is {got[name]!r}, specified {wanted[name]!r}; {where}"
        )
