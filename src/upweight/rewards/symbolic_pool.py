"""The one worker that runs sympy and math-verify for the verifier, started when it is first needed."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from upweight.rewards.score import Status
from upweight.rewards.workers.pool import Pool

SECONDS = 0.6
"""A symbolic comparison may take; the worker's start does not count."""

MEMORY = 2 * 1024**3

REMEMBERED = 4_096
"""Verdicts kept: the answers of a group repeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What the symbolic comparison of two texts came to."""

    status: Status
    """`scored`, or why there is no verdict."""

    equal: bool | None = None
    """Whether they were proved equal; None where nobody can read the gold answer."""

    why: str = ""
    """What went wrong."""


def ask_symbolic(answer: str, gold: str) -> Comparison:
    """Compare two texts in the worker."""
    key = (answer, gold)
    if key in _KNOWN:
        return _KNOWN[key]
    reply = symbolic_pool().call({"answer": answer, "gold": gold})
    if reply.status is not Status.SCORED:
        return Comparison(status=reply.status, why=f"symbolic comparison: {reply.why}")
    comparison = Comparison(status=Status.SCORED, equal=reply.content["equal"])
    if len(_KNOWN) >= REMEMBERED:
        _KNOWN.clear()
    _KNOWN[key] = comparison
    return comparison


def symbolic_pool() -> Pool:
    """The pool of one worker; `symbolic_pool().start()` spares the first comparison the wait for sympy."""
    global _pool
    with _LOCK:
        if _pool is None:
            _pool = Pool(
                "upweight.rewards.symbolic_pool:make_judge",
                {},
                seconds=SECONDS,
                memory=MEMORY,
                processes=8,
                preload=("upweight.rewards.maths.symbolic:warm_up",),
            )
        return _pool


def make_judge(_options: Mapping[str, Any]) -> Any:
    """What runs in the worker."""
    from upweight.rewards.maths.symbolic import compare_texts

    return lambda job: {"equal": compare_texts(job["answer"], job["gold"])}


_LOCK = threading.Lock()
_KNOWN: dict[tuple[str, str], Comparison] = {}
_pool: Pool | None = None
