"""Cases of cispo."""

import math

from judging.case import Case

TITLE = "CISPO: clip the weight, keep the gradient"
HINTS = (
    "The weight is a number like any other: it has no derivative. Only log pi does.",
    "weight = min(max(rho, 1 - clip), 1 + clip_high); the bounds are distances from 1.",
    "loss = -weight * A * logprob, gradient = -weight * A; clamp the log-ratio to [-20, 20] before exp.",
)


def at(ratio: float, advantage: float, logprob: float, clip: float, clip_high: float) -> dict[str, object]:
    """Inputs whose ratio is the given one."""
    old = logprob - math.log(ratio)
    return {"logprob": logprob, "old_logprob": old, "advantage": advantage, "clip": clip, "clip_high": clip_high}


CASES = (
    Case(
        name="above the cap",
        inputs=at(3.0, 2.0, -1.5, 1.0, 0.28),
        right=(3.84, -2.56),
        why="the weight is 1.28: -1.28 * 2 * (-1.5), and -1.28 * 2",
        traps={
            "the factor log pi is missing": (-2.56, 0.0),
            "the factor log pi is missing from the loss": (-2.56, -2.56),
            "the gradient survives the cap: that is what CISPO is for": (3.84, 0.0),
            "the cap was taken as 0.28 itself; it is 1 + 0.28": (0.84, -0.56),
            "the weight was not clipped": (9.0, -6.0),
        },
    ),
    Case(
        name="inside the bounds",
        inputs=at(1.1, 1.0, -0.5, 1.0, 4.0),
        right=(0.55, -1.1),
        why="-1.1 * 1 * (-0.5), and -1.1",
        traps={"the weight was differentiated as well": (0.55, -0.55)},
    ),
    Case(
        name="far below, with clip 1",
        inputs=at(0.01, 1.0, -2.0, 1.0, 4.0),
        right=(0.02, -0.01),
        why="the lower bound is 1 - 1 = 0, so nothing is raised",
    ),
    Case(
        name="raised to the lower bound",
        inputs=at(0.5, 1.0, -2.0, 0.2, 0.2),
        right=(1.6, -0.8),
        why="the weight is max(0.5, 1 - 0.2)",
        traps={"there is no lower bound": (1.0, -0.5)},
    ),
    Case(
        name="a bad token",
        inputs=at(8.0, -1.0, -3.0, 1.0, 4.0),
        right=(-15.0, 5.0),
        why="the weight is 5: -5 * (-1) * (-3), and 5",
        traps={"CISPO clips whatever the sign of A": (-24.0, 8.0)},
    ),
    Case(name="no advantage", inputs=at(2.0, 0.0, -1.0, 1.0, 4.0), right=(0.0, 0.0)),
    Case(
        name="a huge log-ratio",
        inputs={"logprob": -1.0, "old_logprob": -901.0, "advantage": 1.0, "clip": 1.0, "clip_high": 4.0},
        right=(5.0, -5.0),
        why="the weight is cut to 5, and exp(900) must not be asked for",
    ),
)
