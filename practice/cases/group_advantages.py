"""Cases of group_advantages; the numbers are square roots of small fractions."""

from judging.case import Case

NAN = float("nan")
TITLE = "Advantages within a group: subtract the mean, divide by the std"
HINTS = (
    "Take out the answers without a score first (math.isnan), and work on the rest.",
    "Two scores or fewer distinct values? Compare min and max: where they are equal, the answer is 0.0, not a tiny"
    " number divided by a tiny number.",
    "The std divides the sum of squared deviations by n - 1, and eps is added to the std, not under the root.",
)
CASES = (
    Case(
        name="one right answer of four",
        inputs={"rewards": [1.0, 0.0, 0.0, 0.0], "eps": 0.0},
        right=[1.5, -0.5, -0.5, -0.5],
        why="the mean is 1/4, the squared deviations sum to 3/4, and sqrt(3/4 / 3) = 1/2",
        traps={
            "that is the std over n (ddof=0); here it is over n - 1": [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)],
            "the division by the std is missing": [0.75, -0.25, -0.25, -0.25],
        },
    ),
    Case(
        name="eps is added to the std",
        inputs={"rewards": [1.0, 0.0, 0.0, 0.0], "eps": 1e-4},
        right=[0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001],
        why="0.75 / (0.5 + 0.0001) = 1.4997001",
        traps={
            "eps went under the root": [0.75 / 0.2501**0.5, *[-0.25 / 0.2501**0.5] * 3],
            "eps is missing": [1.5, -0.5, -0.5, -0.5],
        },
    ),
    Case(
        name="two right of four, with the default eps",
        inputs={"rewards": [1.0, 0.0, 0.0, 1.0]},
        right=[0.5 / (3**-0.5 + 1e-6), -0.5 / (3**-0.5 + 1e-6), -0.5 / (3**-0.5 + 1e-6), 0.5 / (3**-0.5 + 1e-6)],
        why="the std is sqrt(1/3), so the advantages are 0.866 up to eps",
    ),
    Case(name="all right", inputs={"rewards": [1.0, 1.0, 1.0], "eps": 0.0}, right=[0.0, 0.0, 0.0], rel=0, abs=0),
    Case(
        name="equal decimals give exactly 0",
        inputs={"rewards": [0.1, 0.1, 0.1]},
        right=[0.0, 0.0, 0.0],
        rel=0,
        abs=0,
        why="the floating-point mean of three 0.1 is not 0.1, so the spread must be decided by comparison",
    ),
    Case(name="six equal decimals", inputs={"rewards": [0.7] * 6, "eps": 0.0}, right=[0.0] * 6, rel=0, abs=0),
    Case(name="a group of one", inputs={"rewards": [0.7]}, right=[0.0], rel=0, abs=0),
    Case(name="no answers at all", inputs={"rewards": []}, right=[]),
    Case(
        name="an answer that could not be scored",
        inputs={"rewards": [1.0, NAN, 0.0], "eps": 0.0},
        right=[0.5**0.5, 0.0, -(0.5**0.5)],
        why="the statistics are those of (1, 0): mean 1/2, std sqrt(1/2); no score is not a zero",
        traps={"the missing score was taken as 0": [2 / 3 * 3**0.5, -1 / 3 * 3**0.5, -1 / 3 * 3**0.5]},
    ),
    Case(name="one score is left", inputs={"rewards": [NAN, 1.0, NAN]}, right=[0.0, 0.0, 0.0], rel=0, abs=0),
    Case(name="nobody was scored", inputs={"rewards": [NAN, NAN]}, right=[0.0, 0.0], rel=0, abs=0),
)
