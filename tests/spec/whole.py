"""The loss as a whole, its derivatives by central differences, and its metrics, in plain Python floats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from batches import Batch, Choices
from formulas import (
    LIMIT,
    advantages,
    average,
    cispo,
    clip,
    correction,
    dual_clip,
    effective_share,
    exp_within_limit,
    gspo_token_ratio,
    kl,
    kl_of_answer,
    log_correction_ratio,
    mismatch,
    reverse_kl,
    sequence_ratio,
    token_ratio,
    unclipped,
    weights,
)

STEP = 2e-5
"""Of the central differences, in nats. Their error is STEP^2/6 = 7e-11 of the third derivative, and a few roundings
over STEP, some 2e-11 of the term; exponentials of a log-prob have third derivatives as large as themselves."""

NEAR = 10 * STEP
"""A derivative this near a kink is left out."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """What is known before the current policy's log-probs are. Lists over tokens."""

    members: Sequence[Sequence[int]]
    """The tokens of the answer that a token belongs to."""

    advantages: Sequence[float]
    corrections: Sequence[float | None]
    """c_t; None = rejected."""

    weights: Sequence[float]


def fix(batch: Batch, choices: Choices) -> Fixed:
    members = [[t for t, other in enumerate(batch.answer) if other == a] for a in batch.answer]
    logs = log_corrections(batch, choices, members)
    corrections = [correction(exp_within_limit(log), choices.correction, choices.cap) for log in logs]
    kept = [choices.masked_tokens == "keep" or c is not None for c in corrections]
    per_answer = answer_advantages(batch, choices)
    return Fixed(
        members=members,
        advantages=batch.token_advantages if choices.per_token else [per_answer[a] for a in batch.answer],
        corrections=corrections,
        weights=weights(batch.answer, choices.weights, batch.token_groups, choices.max_length, kept),
    )


def answer_advantages(batch: Batch, choices: Choices) -> list[float]:
    """Of the task reward, or of it minus kl_coef times the KL of the answer."""
    rewards = list(batch.rewards)
    if choices.kl == "k1-reward":
        for row in range(len(rewards)):
            tokens = [t for t, a in enumerate(batch.answer) if a == row]
            own_old = [batch.old_or_frozen[t] for t in tokens]
            rewards[row] -= choices.kl_coef * kl_of_answer(own_old, [batch.reference[t] for t in tokens])
    return advantages(rewards, batch.groups, choices.scale, choices.baseline)


def log_corrections(batch: Batch, choices: Choices, members: Sequence[Sequence[int]]) -> list[float]:
    gaps = [mismatch(old, sampler) for old, sampler in zip(batch.old_or_frozen, batch.sampler, strict=True)]
    return [log_correction_ratio([gaps[i] for i in own], own.index(t), choices.level) for t, own in enumerate(members)]


def ratio(batch: Batch, choices: Choices, fixed: Fixed, live: Sequence[float], t: int) -> float:
    """rho_t; what the paper freezes reads `batch.live`."""
    old, own = batch.old_or_frozen, fixed.members[t]
    if choices.ratio == "token":
        return token_ratio(live[t], old[t])
    own_old = [old[i] for i in own]
    if choices.per_token:
        return gspo_token_ratio(live[t], batch.live[t], [batch.live[i] for i in own], own_old)
    return sequence_ratio([live[i] for i in own], own_old)


def contribution(batch: Batch, choices: Choices, fixed: Fixed, live: Sequence[float], t: int) -> tuple[float, float]:
    """-w_t c_t f(rho_t, A_t) and w_t beta KL_t; nothing from a rejected token (2402.03300, equation 3, with c)."""
    c = fixed.corrections[t]
    if c is None:
        return 0.0, 0.0
    low, high = choices.bounds
    advantage = fixed.advantages[t]
    if choices.surrogate == "cispo":
        surrogate = cispo(ratio(batch, choices, fixed, batch.live, t), advantage, live[t], low, high)
    elif choices.surrogate == "none":
        surrogate = unclipped(ratio(batch, choices, fixed, live, t), advantage)
    elif choices.dual_clip is not None:
        surrogate = dual_clip(ratio(batch, choices, fixed, live, t), advantage, low, high, choices.dual_clip)
    else:
        surrogate = clip(ratio(batch, choices, fixed, live, t), advantage, low, high)
    penalty = 0.0
    if choices.kl.endswith("naive"):
        penalty = kl(live[t], batch.reference[t], choices.estimator)
    if choices.kl.endswith("reverse"):
        penalty = reverse_kl(c, live[t], batch.old_or_frozen[t], batch.reference[t], choices.estimator)
    return -fixed.weights[t] * c * surrogate, fixed.weights[t] * choices.kl_coef * penalty


def contributions(batch: Batch, choices: Choices, fixed: Fixed) -> list[float]:
    """Of every token, surrogate and KL; their sum is the loss."""
    tokens = range(len(batch.answer))
    return [term for t in tokens for term in contribution(batch, choices, fixed, batch.live, t)]


def derivative(batch: Batch, choices: Choices, fixed: Fixed, t: int) -> tuple[float, float]:
    """Central difference of the loss in the live log-prob of token t, and the size of what it was taken of.

    Differenced term by term, so that one huge term does not round the others away. A log-prob moves the terms of
    its own answer alone.
    """
    up, down = list(batch.live), list(batch.live)
    up[t] += STEP
    down[t] -= STEP
    changes, sizes = [], []
    for i in fixed.members[t]:
        terms_up = contribution(batch, choices, fixed, up, i)
        terms_down = contribution(batch, choices, fixed, down, i)
        for above, below in zip(terms_up, terms_down, strict=True):
            changes.append(above - below)
            sizes.append(abs(above) + fixed.weights[i] if above != below else 0.0)
    return math.fsum(changes) / (up[t] - down[t]), math.fsum(sizes)


def near_a_kink(batch: Batch, choices: Choices, fixed: Fixed, t: int, distance: float = NEAR) -> bool:
    """Whether moving the live log-prob of token t by less than this distance can cross a kink of the loss."""
    return any(
        fixed.corrections[i] is not None and abs(log - kink) < distance
        for i in fixed.members[t]
        for log, kink in kinks(batch, choices, fixed, i)
    )


def kinks(batch: Batch, choices: Choices, fixed: Fixed, t: int) -> list[tuple[float, float]]:
    """(log-ratio, where the term of token t has a kink in it). Caps of frozen factors are none."""
    low, high = choices.bounds
    advantage = fixed.advantages[t]
    log_rho = log_ratio(batch, choices, fixed, t)
    log_token = batch.live[t] - batch.old_or_frozen[t]
    found = []
    if choices.surrogate != "cispo":
        found += [(log_rho, LIMIT), (log_rho, -LIMIT)]
    if choices.surrogate in ("clip", "clip-high", "dual-clip"):
        found += [(log_rho, math.log(high))] if advantage > 0 else []
        found += [(log_rho, math.log(low))] if advantage < 0 else []
        found += [(log_rho, math.log(choices.dual_clip))] if advantage < 0 and choices.dual_clip else []
    if choices.kl.endswith("reverse"):
        found += [(log_token, LIMIT), (log_token, -LIMIT)]
    if choices.kl in ("k3-naive", "k3-reverse"):
        found += [(batch.reference[t] - batch.live[t], LIMIT)]
    return found


def log_ratio(batch: Batch, choices: Choices, fixed: Fixed, t: int) -> float:
    own = fixed.members[t] if choices.ratio == "sequence" else [t]
    return average([batch.live[i] - batch.old_or_frozen[i] for i in own])


def near_a_threshold(batch: Batch, choices: Choices, distance: float) -> bool:
    """Whether a rounding of this size could decide what is clipped, truncated or rejected."""
    fixed = fix(batch, choices)
    low, high = choices.bounds
    logs = [(log, math.log(choices.cap)) for log in log_corrections(batch, choices, fixed.members)]
    for t in range(len(batch.answer)):
        bounds = [low, high, choices.dual_clip or high]
        logs += [(log_ratio(batch, choices, fixed, t), math.log(bound)) for bound in bounds if bound > 0]
    return any(abs(log - threshold) < distance for log, threshold in logs)


def flat_sides(batch: Batch, choices: Choices, fixed: Fixed) -> list[str]:
    """Per token "low", "high" or "dual" where its surrogate has run into that bound, else ""."""
    low, high = choices.bounds
    sides = []
    for t, advantage in enumerate(fixed.advantages):
        rho = ratio(batch, choices, fixed, batch.live, t)
        side = ""
        if choices.surrogate == "cispo" and advantage != 0:
            side = "low" if rho < low else "high" if rho > high else ""
        elif choices.surrogate in ("clip", "clip-high", "dual-clip"):
            side = "high" if advantage > 0 and rho > high else "low" if advantage < 0 and rho < low else ""
            side = "dual" if advantage < 0 and choices.dual_clip and rho > choices.dual_clip else side
        sides.append(side)
    return sides


def metrics(batch: Batch, choices: Choices, fixed: Fixed, with_reference: bool) -> dict[str, float]:
    """Shares and means over kept tokens, under a sequence ratio over answers; `rejected` and `ess` over all tokens."""
    tokens = range(len(batch.answer))
    kept = [t for t in tokens if fixed.corrections[t] is not None]
    sides = flat_sides(batch, choices, fixed)
    rho = [ratio(batch, choices, fixed, batch.live, t) for t in tokens]
    estimates = [kl(batch.live[t], batch.reference[t], choices.estimator) for t in kept]
    gaps = [
        abs(mismatch(batch.old_or_frozen[t], batch.sampler[t])) for t in tokens if batch.sampler[t] == batch.sampler[t]
    ]
    importance = [(fixed.corrections[t] or 0.0) * rho[t] for t in tokens]
    result = {
        f"clipfrac_{side}": unit_mean(batch, choices, kept, [float(s == side) for s in sides])
        for side in ("low", "high", "dual")
    }
    return {
        **result,
        "clipfrac": unit_mean(batch, choices, kept, [float(s != "") for s in sides]),
        "ratio_mean": unit_mean(batch, choices, kept, rho),
        "ratio_max": max(rho, default=0.0),
        "rejected": 1 - len(kept) / len(tokens) if tokens else 0.0,
        "ess": effective_share(importance),
        "kl": average(estimates) if estimates and with_reference else 0.0,
        "mismatch": average(gaps) if gaps else 0.0,
        "tokens": float(len(tokens)),
    }


def unit_mean(batch: Batch, choices: Choices, kept: Sequence[int], values: Sequence[float]) -> float:
    """Mean over the kept tokens; under a sequence ratio over the answers that have any, one answer one voice."""
    if not kept:
        return 0.0
    if choices.ratio == "token":
        return average([values[t] for t in kept])
    answers = sorted({batch.answer[t] for t in kept})
    return average([average([values[t] for t in kept if batch.answer[t] == a]) for a in answers])
