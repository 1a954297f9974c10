"""What fits into a machine's memory, and what to change where it does not. Imports no torch."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upweight.report.footprint import BYTES, GB, Footprint, Setup, footprint
from upweight.report.pace import Pace

STEP = 64
"""Tokens to which the largest pass is rounded down."""

MOST_PROCESSES = 1024
"""Up to which more GPUs are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One way to run the same thing, and whether it fits."""

    changes: Mapping[str, str]
    """Flags, and the values that this way gives them."""

    peak: int
    """Bytes of a process."""

    fits: bool | None
    """Whether that is within the memory; None where the memory is not known."""

    largest_pass: int | None
    """The largest --micro_batch_tokens that fits; None where none does, or the memory is not known."""

    def as_json(self) -> dict[str, Any]:
        """The same as a plain mapping."""
        return {
            **self.changes,
            "peak_bytes": self.peak,
            "fits": self.fits,
            "largest_micro_batch_tokens": self.largest_pass,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run needs."""

    name: str
    """The model, as asked for."""

    setup: Setup
    """The run."""

    says: tuple[str, ...]
    """Where the shape is from, and what was assumed."""

    memory: int | None
    """Bytes that a process has; None = not given."""

    footprint: Footprint
    """What it needs, as asked for."""

    choices: tuple[Choice, ...]
    """The same run in each dtype, sharded or not, with and without recomputing activations."""

    remedies: tuple[Choice, ...]
    """The smallest changes with which it fits, where it does not."""

    processes: int | None
    """How many GPUs it takes with everything done to save memory, where no change alone makes it fit; None = no number
    does, or it is not needed."""

    pace: Pace
    """How long a step takes."""

    @property
    def fits(self) -> bool | None:
        """Whether it fits as asked for; None where the memory is not known."""
        return None if self.memory is None else self.footprint.peak <= self.memory

    def as_json(self) -> dict[str, Any]:
        """The same as plain lists and mappings."""
        found = self.footprint
        return {
            "model": self.name,
            "parameters": self.setup.shape.parameters,
            "setup": dataclasses.asdict(self.setup),
            "says": list(self.says),
            "memory_bytes": self.memory,
            "peak_bytes": found.peak,
            "fits": self.fits,
            "fullest": found.fullest.name,
            "always": [dataclasses.asdict(part) for part in found.always],
            "phases": [
                {
                    "name": phase.name,
                    "total_bytes": found.total(phase),
                    "parts": [dataclasses.asdict(part) for part in phase.parts],
                }
                for phase in found.phases
            ],
            "choices": [choice.as_json() for choice in self.choices],
            "remedies": [choice.as_json() for choice in self.remedies],
            "processes_needed": self.processes,
            "seconds": {**dataclasses.asdict(self.pace), "step": self.pace.seconds},
        }


def make_plan(name: str, setup: Setup, pace: Pace, *, memory: int | None, says: Sequence[str] = ()) -> Plan:
    """Count what a run needs, and look for what fits.

    Args:
        name: of the model, for the heading.
        setup: the run.
        pace: how long its steps take.
        memory: bytes that a process has; None where that is not known.
        says: what was assumed.
    """
    found = footprint(setup)
    remedies: tuple[Choice, ...] = ()
    processes = None
    if memory is not None and found.peak > memory:
        remedies = tuple(_remedies(setup, memory))
        processes = None if remedies else _processes(setup, memory)
    return Plan(
        name=name,
        setup=setup,
        says=tuple(says),
        memory=memory,
        footprint=found,
        choices=tuple(_choices(setup, memory)),
        remedies=remedies,
        processes=processes,
        pace=pace,
    )


def largest_pass(setup: Setup, memory: int) -> int | None:
    """The largest `micro_batch_tokens` that fits, rounded down; None where not even one answer does.

    It ends where one pass takes in all of an update.
    """
    least = setup.prompt_tokens + setup.new_tokens
    most = max(least, setup.step_tokens // setup.updates)

    def fits(tokens: int) -> bool:
        return _fits(dataclasses.replace(setup, micro_batch_tokens=tokens), memory)

    # A single pass needs no gradients of the passes before it, so it may fit where two do not.
    if fits(most):
        return most
    if not fits(least):
        return None
    low, high = 0, (most - least) // STEP
    while low < high:
        middle = -(-(low + high) // 2)
        low, high = (middle, high) if fits(least + middle * STEP) else (low, middle - 1)
    return least + low * STEP


def _fits(setup: Setup, memory: int) -> bool:
    return footprint(setup).peak <= memory


def _choices(setup: Setup, memory: int | None) -> Iterator[Choice]:
    shards = ("none", "full") if setup.processes > 1 else ("none",)
    for dtype, shard, recompute in itertools.product(BYTES, shards, (False, True)):
        made = dataclasses.replace(setup, dtype=dtype, shard=shard, checkpointing=recompute)
        changes = {"dtype": dtype, "shard": shard, "gradient_checkpointing": str(recompute).lower()}
        yield _choice(made, memory, changes)


def _choice(setup: Setup, memory: int | None, changes: Mapping[str, str]) -> Choice:
    peak = footprint(setup).peak
    return Choice(
        changes=changes,
        peak=peak,
        fits=None if memory is None else peak <= memory,
        largest_pass=None if memory is None else largest_pass(setup, memory),
    )


_Change = tuple[str, str, Callable[[Setup], Setup]]
"""A flag, its value, and what it makes of a setup."""


def _changes(setup: Setup) -> Iterator[_Change]:
    """What can be done to save memory, the mildest first; the last two change what is computed."""
    if not setup.checkpointing:
        yield "gradient_checkpointing", "true", lambda s: dataclasses.replace(s, checkpointing=True)
    if setup.processes > 1 and setup.shard == "none":
        yield "shard", "full", lambda s: dataclasses.replace(s, shard="full")
    if setup.dtype == "float32":
        yield "dtype", "bfloat16", lambda s: dataclasses.replace(s, dtype="bfloat16")
    if setup.has_reference:
        yield "kl_coef", "0", lambda s: dataclasses.replace(s, has_reference=False)


def _remedies(setup: Setup, memory: int) -> Iterator[Choice]:
    """The smallest sets of changes that make it fit: all that have the same number of changes."""
    changes = list(_changes(setup))
    for count in range(1, len(changes) + 2):
        tried = [
            *(_remedy(setup, memory, chosen, smaller=True) for chosen in itertools.combinations(changes, count - 1)),
            *(_remedy(setup, memory, chosen, smaller=False) for chosen in itertools.combinations(changes, count)),
        ]
        if found := [choice for choice in tried if choice is not None]:
            yield from found
            return


def _remedy(setup: Setup, memory: int, chosen: Sequence[_Change], *, smaller: bool) -> Choice | None:
    flags = {flag: value for flag, value, _ in chosen}
    for _, _, change in chosen:
        setup = change(setup)
    if smaller:
        tokens = largest_pass(setup, memory)
        if tokens is None or tokens >= setup.micro_batch_tokens:
            return None
        setup = dataclasses.replace(setup, micro_batch_tokens=tokens)
        flags = {"micro_batch_tokens": str(tokens), **flags}
    choice = _choice(setup, memory, flags)
    return choice if choice.fits else None


def _processes(setup: Setup, memory: int) -> int | None:
    """The smallest power of two of processes with which it fits, everything done to save memory."""
    least = dataclasses.replace(
        setup, shard="full", checkpointing=True, dtype="bfloat16", has_reference=False, micro_batch_tokens=1
    )
    count = 2
    while count <= MOST_PROCESSES:
        if count > setup.processes and _fits(dataclasses.replace(least, processes=count), memory):
            return count
        count *= 2
    return None


def shown(size: int) -> str:
    """Bytes for people.

    Example:
        >>> shown(3 * GB // 2), shown(5 << 20)
        ('1.5 GB', '5 MB')
    """
    return f"{size / GB:,.1f} GB" if size >= GB else f"{size / (1 << 20):,.0f} MB"
