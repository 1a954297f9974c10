"""Cases of leave_one_out."""

from judging.case import Case

TITLE = "Leave-one-out: the others are the baseline"
HINTS = (
    "The others' mean is (sum - reward) / (n - 1). With one answer there are no others: 0.0.",
    "With scale, divide by the std of the others (over their count minus 1), which needs at least two others.",
    "Decide zero spread by comparing the others' min and max, and leave the advantage as it is there. Where all"
    " rewards are equal, return exact zeros before any arithmetic.",
)
CASES = (
    Case(
        name="one right of three",
        inputs={"rewards": [1.0, 0.0, 0.0], "scale": False},
        right=[1.0, -0.5, -0.5],
        why="the others of the first have mean 0, those of the second (1 + 0) / 2",
        traps={"the answer's own reward is in its baseline": [2 / 3, -1 / 3, -1 / 3]},
    ),
    Case(name="two answers", inputs={"rewards": [1.0, 0.0], "scale": False}, right=[1.0, -1.0]),
    Case(
        name="scaled by the others' std",
        inputs={"rewards": [1.0, 0.0, 0.0, 1.0], "scale": True},
        right=[2 / 3**0.5, -2 / 3**0.5, -2 / 3**0.5, 2 / 3**0.5],
        why="the others of the first are (0, 0, 1): mean 1/3, std sqrt(1/3), and 2/3 / sqrt(1/3) = 2 / sqrt(3)",
        traps={"that is the std over n (ddof=0)": [2**0.5, -(2**0.5), -(2**0.5), 2**0.5]},
    ),
    Case(
        name="the others agree, so nothing is divided",
        inputs={"rewards": [0.0, *[0.7] * 7], "scale": True},
        right=[-0.7, *[7**-0.5] * 7],
        why="seven 0.7 have no spread; for a 0.7, the others are 0 and six 0.7: 0.1 / sqrt(0.07) = 1 / sqrt(7)",
    ),
    Case(
        name="a single other has no std",
        inputs={"rewards": [1.0, 0.0], "scale": True},
        right=[1.0, -1.0],
        why="one value has no std, so the advantage stays as it is",
    ),
    Case(name="equal decimals", inputs={"rewards": [0.1] * 3, "scale": True}, right=[0.0] * 3, rel=0, abs=0),
    Case(name="equal decimals, unscaled", inputs={"rewards": [0.7] * 6, "scale": False}, right=[0.0] * 6, rel=0, abs=0),
    Case(name="a group of one", inputs={"rewards": [0.7], "scale": False}, right=[0.0], rel=0, abs=0),
    Case(name="no answers", inputs={"rewards": [], "scale": True}, right=[]),
)
