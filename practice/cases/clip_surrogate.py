"""Cases of clip_surrogate."""

import math

from judging.case import Case

TITLE = "The clipped surrogate, and where its gradient stops"
HINTS = (
    "Write min(rho * A, clipped * A), and note which of the two was taken.",
    "d rho / d logprob = rho. Where the clipped term was taken, the gradient is 0.",
    "The flat sides: A > 0 and rho above 1 + clip_high, or A < 0 and rho below 1 - clip. Nowhere else.",
    "math.exp overflows above 709: clamp the log-ratio to [-20, 20] first.",
)


def at(ratio: float, advantage: float) -> dict[str, object]:
    """Inputs with the bounds 0.8 and 1.28."""
    return {"log_ratio": math.log(ratio), "advantage": advantage, "clip": 0.2, "clip_high": 0.28}


CASES = (
    Case(name="inside the bounds", inputs=at(1.1, 1.0), right=(1.1, 1.1), why="nothing is clipped"),
    Case(
        name="a good token above the bound",
        inputs=at(5.0, 1.0),
        right=(1.28, 0.0),
        why="min(5, 1.28): the constant was taken, so nothing pulls",
        traps={"the bound is 1 + clip_high": (1.2, 0.0), "the gradient does not stop at the bound": (1.28, 5.0)},
    ),
    Case(
        name="a bad token above the bound",
        inputs=at(5.0, -1.0),
        right=(-5.0, -5.0),
        why="min(-5, -1.28) is the unclipped one: a bad token that became likelier is pulled back in full",
        traps={"min of the two was not taken: the clip alone lets a bad token rise unpunished": (-1.28, 0.0)},
    ),
    Case(
        name="a bad token below the bound",
        inputs=at(0.5, -1.0),
        right=(-0.8, 0.0),
        why="min(-0.5, -0.8) is the clipped one",
    ),
    Case(
        name="a good token below the bound",
        inputs=at(0.5, 1.0),
        right=(0.5, 0.5),
        why="min(0.5, 0.8) is the unclipped one: a good token that became rarer is lifted",
        traps={"min of the two was not taken": (0.8, 0.0)},
    ),
    Case(name="another advantage", inputs=at(1.5, 2.0), right=(2.56, 0.0), why="1.28 * 2"),
    Case(name="no advantage", inputs=at(5.0, 0.0), right=(0.0, 0.0)),
    Case(
        name="a huge ratio on the flat side",
        inputs={"log_ratio": 800.0, "advantage": 1.0, "clip": 0.2, "clip_high": 0.28},
        right=(1.28, 0.0),
        why="the exponential that is not chosen must not overflow",
    ),
    Case(
        name="a huge ratio of a bad token",
        inputs={"log_ratio": 200.0, "advantage": -1.0, "clip": 0.2, "clip_high": 0.28},
        right=(-math.exp(20.0), 0.0),
        why="the log-ratio is clamped at 20; beyond it the value no longer moves, so the gradient is 0",
        traps={"the value stands still beyond 20, so its gradient is 0": (-math.exp(20.0), -math.exp(20.0))},
    ),
)
