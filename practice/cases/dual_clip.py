"""Cases of dual_clip; all derivable by hand."""

from judging.case import Case, Raises

TITLE = "Dual clip: a floor under bad tokens that became much likelier"
HINTS = (
    "Start from the clipped surrogate; the floor is one more step after it.",
    "The floor is for A < 0 only: max(surrogate, ceiling * A).",
    "Where the floor is taken, the gradient is 0. A ceiling of 1 or less would cut inside the clip: refuse it.",
)


def at(ratio: float, advantage: float, ceiling: float = 3.0) -> dict[str, object]:
    """Inputs with clip 0.2 on both sides."""
    return {"ratio": ratio, "advantage": advantage, "clip": 0.2, "ceiling": ceiling}


CASES = (
    Case(
        name="a bad token far above",
        inputs=at(5.0, -1.0),
        right=(-3.0, 0.0),
        why="max(min(-5, -1.2), -3) = -3, a constant",
        traps={"there is no floor": (-5.0, -5.0), "the floor is a constant, so its gradient is 0": (-3.0, -5.0)},
    ),
    Case(
        name="a good token far above",
        inputs=at(5.0, 1.0),
        right=(1.2, 0.0),
        why="the floor is not for good tokens",
        traps={"dual clip was applied to A > 0": (3.0, 0.0)},
    ),
    Case(name="a bad token below", inputs=at(0.5, -1.0), right=(-0.8, 0.0), why="max(-0.8, -3) = -0.8"),
    Case(name="a good token below", inputs=at(0.5, 1.0), right=(0.5, 0.5)),
    Case(name="a bad token above, not too far", inputs=at(2.0, -2.0), right=(-4.0, -4.0), why="max(-4, -6) = -4"),
    Case(name="another ceiling", inputs=at(12.0, -0.5, 10.0), right=(-5.0, 0.0), why="max(-6, 10 * -0.5)"),
    Case(name="no advantage", inputs=at(5.0, 0.0), right=(0.0, 0.0)),
    Case(name="a ceiling of 1", inputs=at(5.0, -1.0, 1.0), right=Raises("ValueError")),
    Case(name="a ceiling below 1", inputs=at(1.0, 1.0, 0.5), right=Raises("ValueError")),
)
