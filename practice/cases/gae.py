"""Cases of gae."""

from judging.case import Case

NAN = float("nan")
TITLE = "GAE over the tokens that count"
HINTS = (
    "Go through the tokens from the last to the first, and skip those with mask 0 before reading anything.",
    "delta = reward + gamma * next_value - value; advantage = delta + gamma * lam * next_advantage.",
    "next_value and next_advantage start at 0, and change only at tokens that count.",
)
CASES = (
    Case(
        name="two tokens and a pad",
        inputs={"rewards": [0.0, 1.0, 0.0], "values": [0.2, 0.4, NAN], "mask": [1, 1, 0], "gamma": 1.0, "lam": 0.9},
        right=[0.74, 0.6, 0.0],
        why="1 - 0.4 = 0.6, and (0.4 - 0.2) + 0.9 * 0.6 = 0.74; the pad's value is never read",
    ),
    Case(
        name="a pad with a plausible value",
        inputs={"rewards": [0.0, 1.0, 0.0], "values": [0.2, 0.4, 0.9], "mask": [1, 1, 0], "gamma": 1.0, "lam": 0.9},
        right=[0.74, 0.6, 0.0],
        why="the same, whatever the pad's value",
        traps={"the pad's value leaked in": [1.55, 1.5, 0.0]},
    ),
    Case(
        name="tool output in the middle",
        inputs={"rewards": [0.0, 5.0, 1.0], "values": [0.2, NAN, 0.4], "mask": [1, 0, 1], "gamma": 1.0, "lam": 0.9},
        right=[0.74, 0.0, 0.6],
        why="the next token is the next one that counts",
    ),
    Case(
        name="lambda 1 and gamma 1: reward to come minus value",
        inputs={"rewards": [0.5, 0.0, 1.0], "values": [0.3, 0.6, 0.9], "mask": [1, 1, 1], "gamma": 1.0, "lam": 1.0},
        right=[1.2, 0.4, 0.1],
        why="1.5 - 0.3, 1 - 0.6, 1 - 0.9",
    ),
    Case(
        name="lambda 0: one step ahead",
        inputs={"rewards": [0.0, 0.0, 1.0], "values": [0.3, 0.6, 0.9], "mask": [1, 1, 1], "gamma": 0.5, "lam": 0.0},
        right=[0.0, -0.15, 0.1],
        why="0.5 * 0.6 - 0.3, 0.5 * 0.9 - 0.6, 1 - 0.9",
    ),
    Case(
        name="gamma and lambda between",
        inputs={"rewards": [0.0, 0.0, 1.0], "values": [0.0, 0.0, 0.0], "mask": [1, 1, 1], "gamma": 0.5, "lam": 0.5},
        right=[0.0625, 0.25, 1.0],
        why="each step back multiplies by 0.5 * 0.5",
        traps={"lambda is missing from the decay": [0.25, 0.5, 1.0]},
    ),
    Case(
        name="nothing counts",
        inputs={"rewards": [1.0, NAN], "values": [NAN, 1.0], "mask": [0, 0], "gamma": 1.0, "lam": 0.95},
        right=[0.0, 0.0],
    ),
    Case(name="no tokens", inputs={"rewards": [], "values": [], "mask": [], "gamma": 1.0, "lam": 1.0}, right=[]),
)
