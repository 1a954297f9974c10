"""Cases of pass_at_k; exact fractions."""

from judging.case import Case, Raises

TITLE = "pass@k without bias"
HINTS = (
    "Count the ways to draw k of the n answers, and those that draw only wrong ones.",
    "1 - C(n - c, k) / C(n, k); where there are fewer than k wrong answers, every draw has a right one.",
    "Divide whole numbers (math.comb), and turn only the quotient into a float.",
)


def at(n: int, c: int, k: int) -> dict[str, object]:
    """Inputs in their usual order."""
    return {"n": n, "c": c, "k": k}


CASES = (
    Case(
        name="one right of four, two drawn",
        inputs=at(4, 1, 2),
        right=0.5,
        why="3 of the 6 pairs have no right answer",
        traps={"1 - (1 - c/n)^k draws with replacement, and is biased": 0.4375},
    ),
    Case(name="pass@1 is the accuracy", inputs=at(8, 3, 1), right=0.375),
    Case(
        name="two right of five, three drawn",
        inputs=at(5, 2, 3),
        right=0.9,
        why="1 of 10 triples",
        traps={"1 - (1 - c/n)^k draws with replacement, and is biased": 0.784},
    ),
    Case(name="none right", inputs=at(10, 0, 5), right=0.0),
    Case(name="all right", inputs=at(10, 10, 1), right=1.0),
    Case(name="more drawn than there are wrong ones", inputs=at(10, 7, 4), right=1.0, why="only 3 are wrong"),
    Case(name="all drawn", inputs=at(6, 1, 6), right=1.0),
    Case(
        name="ten thousand answers",
        inputs=at(10_000, 1, 5_000),
        right=0.5,
        why="the single right one is among the half that is drawn; the binomials are far beyond any float",
    ),
    Case(name="more drawn than there are", inputs=at(4, 1, 5), right=Raises("ValueError")),
    Case(name="more right than there are", inputs=at(4, 5, 1), right=Raises("ValueError")),
    Case(name="none drawn", inputs=at(4, 1, 0), right=Raises("ValueError")),
)
