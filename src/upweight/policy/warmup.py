"""A short supervised stage, so that a fresh model is right now and then and reinforcement has something to raise."""

import dataclasses
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from upweight.objective.errors import bad_parameter
from upweight.policy.cache import cache_root, written_whole
from upweight.policy.policy import Policy

Example = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and completion ids, end token included."""

# Part of the cache's key: raise it when the same arguments would give other weights.
RECIPE = 2

SMOOTHED = 20
"""Steps that the loss is averaged over before it is compared with `stop_below`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """How long and how fast to warm up."""

    steps: int
    """Optimiser steps at most, >= 0."""

    batch_size: int
    """Examples per step, >= 1; an epoch's remainder is carried into the next."""

    learning_rate: float
    """Peak of AdamW's learning rate, > 0."""

    seed: int = 0
    """Of the order of the examples."""

    stop_below: float = 0.0
    """End as soon as the mean loss of the last 20 steps is below it (nats per token); 0 = never."""


# Two-digit addition comes to a fresh tiny model all at once: between a loss of 0.75 and 0.35, greedy accuracy goes from
# 0.1 to 0.6 within twenty steps. So the warm-up ends at a loss, not after a number of steps, which another machine's
# rounding would shift: at 0.6 a third to a half of the held-out problems are right (docs/experiments.md).
TINY_WARM_UP = WarmUp(steps=400, batch_size=256, learning_rate=2e-3, stop_below=0.6)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUpReport:
    """What a warm-up did."""

    steps: int
    """Optimiser steps taken, when the weights were made."""

    loss: float
    """Cross-entropy of the last batch before its update (nats per token); NaN at 0 steps."""

    seconds: float
    """Wall time of this call."""

    from_cache: bool
    """Whether the weights came from the cache instead of being trained."""


def warm_up(
    policy: Policy,
    examples: Sequence[Example],
    plan: WarmUp,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> WarmUpReport:
    """Train the policy in place on worked answers: mean cross-entropy per completion token.

        L = - (1 / N) sum_n log pi(y_n | prompt, y_<n)        N completion tokens of the batch

    AdamW without weight decay, gradient norm clipped at 1, learning rate rising over the first 20 steps (or a tenth)
    and constant after. Epochs are shuffled by the plan's seed alone, so the result is the same on the same machine.

    Args:
        policy: changed in place; its version stays.
        examples: prompt and completion ids; the prompt is never trained on.
        plan: how long and how fast.
        progress: called after each step with its number (from 1) and its loss.

    Returns:
        The report, `from_cache` False.

    Raises:
        UsageError: no examples, or a number out of range.
    """
    _check(examples, plan)
    start = time.perf_counter()
    losses: list[float] = []
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=plan.learning_rate, weight_decay=0.0)
    rise = max(1, min(20, plan.steps // 10))
    order = _order(len(examples), plan.seed)
    for step in range(1, plan.steps + 1):
        batch = [examples[next(order)] for _ in range(plan.batch_size)]
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * min(1.0, step / rise)
        cross_entropy = -policy.score([p for p, _ in batch], [c for _, c in batch]).logprobs.mean()
        optimizer.zero_grad(set_to_none=True)
        cross_entropy.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(cross_entropy.detach()))
        if progress is not None:
            progress(step, losses[-1])
        if len(losses) >= SMOOTHED and sum(losses[-SMOOTHED:]) / SMOOTHED < plan.stop_below:
            break
    policy.model.zero_grad(set_to_none=True)
    loss = losses[-1] if losses else float("nan")
    return WarmUpReport(steps=len(losses), loss=loss, seconds=time.perf_counter() - start, from_cache=False)


def warm_up_cached(
    policy: Policy,
    examples: Sequence[Example],
    plan: WarmUp,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> WarmUpReport:
    """`warm_up`, or its result from the cache when the same call was made before.

    The key is a hash over the model's name and weights, the examples, the plan and the package's version. A cache
    file that cannot be read, or does not fit, is ignored and written anew.

    Args: as for `warm_up`.

    Returns:
        The report; `from_cache` says which it was.
    """
    _check(examples, plan)
    start = time.perf_counter()
    entry = cache_root() / "warmup" / _key(policy, examples, plan)
    found = _restore(policy, entry)
    if found is not None:
        taken, loss = found
        return WarmUpReport(steps=taken, loss=loss, seconds=time.perf_counter() - start, from_cache=True)
    report = warm_up(policy, examples, plan, progress=progress)
    with written_whole(entry) as folder:
        outcome = {"loss": repr(report.loss), "steps": str(report.steps)}
        save_file(_weights(policy), folder / "weights.safetensors", metadata=outcome)
        call = {"model": policy.name, **dataclasses.asdict(plan)}
        (folder / "call.json").write_text(json.dumps(call, indent=2) + "\n")
    return report


def _check(examples: Sequence[Example], plan: WarmUp) -> None:
    if not examples:
        raise bad_parameter("examples", "warm_up", "at least one", [])
    if plan.steps < 0:
        raise bad_parameter("steps", "warm_up", "at least 0", plan.steps)
    if plan.batch_size < 1:
        raise bad_parameter("batch_size", "warm_up", "at least 1", plan.batch_size)
    if not plan.learning_rate > 0:
        raise bad_parameter("learning_rate", "warm_up", "above 0", plan.learning_rate)


def _order(count: int, seed: int) -> Iterator[int]:
    """Indices of the examples, epoch after epoch, each shuffled."""
    noise = random.Random(seed)
    while True:
        epoch = list(range(count))
        noise.shuffle(epoch)
        yield from epoch


def _weights(policy: Policy) -> dict[str, Tensor]:
    """Trainable weights by name; tied ones appear once, as `named_parameters` gives them."""
    return {name: weight.detach().cpu().contiguous() for name, weight in policy.model.named_parameters()}


def _key(policy: Policy, examples: Sequence[Example], plan: WarmUp) -> str:
    digest = hashlib.sha256()
    try:
        version = metadata.version("upweight")
    except metadata.PackageNotFoundError:
        version = "source"
    digest.update(
        json.dumps([RECIPE, version, policy.name, str(policy.dtype), dataclasses.asdict(plan)], sort_keys=True).encode()
    )
    for name, weight in sorted(_weights(policy).items()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(weight.view(torch.uint8).numpy().tobytes())
    for prompt, completion in examples:
        digest.update(json.dumps([list(prompt), list(completion)]).encode())
    return digest.hexdigest()[:32]


def _restore(policy: Policy, entry: Path) -> tuple[int, float] | None:
    """Load the cached weights into the policy; the steps and the loss they came with, None where there is no entry."""
    file = entry / "weights.safetensors"
    try:
        weights = load_file(file)
        with safe_open(file, framework="pt") as handle:
            outcome = handle.metadata()
        steps, loss = int(outcome["steps"]), float(outcome["loss"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
    own = dict(policy.model.named_parameters())
    if weights.keys() != own.keys() or any(weights[name].shape != own[name].shape for name in own):
        return None
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return steps, loss
