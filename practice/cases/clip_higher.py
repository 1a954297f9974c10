"""Cases of clip_higher."""

from judging.case import Case

TITLE = "Clip-Higher: how far one update can move a probability"
HINTS = (
    "The clip bounds the ratio new / old, so it bounds the relative change.",
    "clip_high=None means the same as clip; 0.0 means no room upwards, and is not None.",
    "(max(0, p * (1 - clip)), min(1, p * (1 + clip_high))): a probability is never above 1.",
)
CASES = (
    Case(
        name="a rare token at 0.2",
        inputs={"probability": 0.01, "clip": 0.2},
        right=(0.008, 0.012),
        why="0.01 * 0.8 and 0.01 * 1.2",
        traps={"that bounds the absolute change": (0.0, 0.21)},
    ),
    Case(
        name="a rare token with the bound widened",
        inputs={"probability": 0.01, "clip": 0.2, "clip_high": 0.28},
        right=(0.008, 0.0128),
        why="only the upper bound moves: 0.01 * 1.28",
        traps={"the lower bound was widened too": (0.0072, 0.0128)},
    ),
    Case(
        name="a likely token is not limited",
        inputs={"probability": 0.9, "clip": 0.2},
        right=(0.72, 1.0),
        why="0.9 * 1.2 = 1.08, and no probability is above 1",
        traps={"a probability cannot be above 1": (0.72, 1.08)},
    ),
    Case(
        name="a likely token at 0.28",
        inputs={"probability": 0.9, "clip": 0.2, "clip_high": 0.28},
        right=(0.72, 1.0),
    ),
    Case(
        name="no room upwards",
        inputs={"probability": 0.5, "clip": 0.2, "clip_high": 0.0},
        right=(0.4, 0.5),
        why="0.0 was given, so it is not the default",
        traps={"0.0 was taken as not given: test for None": (0.4, 0.6)},
    ),
    Case(
        name="a clip above 1",
        inputs={"probability": 0.1, "clip": 1.5, "clip_high": 0.0},
        right=(0.0, 0.1),
        why="a probability is never below 0",
    ),
)
