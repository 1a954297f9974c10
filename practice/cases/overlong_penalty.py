"""Cases of overlong_penalty."""

from judging.case import Case, Raises

TITLE = "The overlong ramp: where it starts, where it ends"
HINTS = (
    "Up to max_length - buffer there is no penalty; count the tokens beyond that.",
    "Divide them by buffer, and never go beyond 1.",
    "With buffer 0 there is no ramp to divide by: 0 up to max_length, -1 above."
    " Refuse a buffer below 0 or above max_length.",
)


def at(length: int, buffer: int = 20) -> dict[str, object]:
    """Inputs with a limit of 100 tokens."""
    return {"length": length, "max_length": 100, "buffer": buffer}


CASES = (
    Case(name="where the ramp starts", inputs=at(80), right=0.0, why="80 = 100 - 20 is still free"),
    Case(
        name="one token on the ramp",
        inputs=at(81),
        right=-0.05,
        why="1 / 20",
        traps={"the ramp is as long as the buffer, not the limit": -0.01},
    ),
    Case(name="half way", inputs=at(90), right=-0.5),
    Case(name="one token before the end", inputs=at(99), right=-0.95),
    Case(name="at the limit", inputs=at(100), right=-1.0),
    Case(
        name="above the limit",
        inputs=at(101),
        right=-1.0,
        why="never below -1",
        traps={"the ramp has no end": -1.05},
    ),
    Case(name="far above", inputs=at(5000), right=-1.0),
    Case(
        name="short",
        inputs=at(3),
        right=0.0,
        why="a short answer earns no bonus",
        traps={"the ramp has no start": 3.85},
    ),
    Case(name="no buffer, at the limit", inputs=at(100, 0), right=0.0, why="a step, and no division by 0"),
    Case(name="no buffer, above", inputs=at(101, 0), right=-1.0),
    Case(name="the whole budget is ramp", inputs=at(50, 100), right=-0.5),
    Case(name="a buffer above the limit", inputs=at(50, 101), right=Raises("ValueError")),
    Case(name="a negative buffer", inputs=at(50, -1), right=Raises("ValueError")),
)
