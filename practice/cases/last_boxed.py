"""Cases of last_boxed."""

from judging.case import Case

TITLE = "The last boxed answer, braces and all"
HINTS = (
    r"Look for the last \boxed{ in the text (str.rfind), and do not go back to an earlier one.",
    "From there count the braces: +1 at {, -1 at }, and stop at 0.",
    r"A brace after a backslash is text, and does not count; so step over any \ and the character after it.",
    "Strip the blanks; nothing left, or no closing brace: None.",
)


def at(text: str) -> dict[str, object]:
    """Input."""
    return {"text": text}


CASES = (
    Case(name="one box", inputs=at(r"So it is \boxed{42}."), right="42"),
    Case(name="the last one decides", inputs=at(r"First \boxed{3}. No, it is \boxed{4}."), right="4"),
    Case(name="the same twice", inputs=at(r"\boxed{615} and again \boxed{615}"), right="615"),
    Case(
        name="braces inside",
        inputs=at(r"\boxed{\frac{3}{4}}"),
        right=r"\frac{3}{4}",
        traps={"the first closing brace is not the box's": r"\frac{3"},
    ),
    Case(name="braces three deep", inputs=at(r"\boxed{\sqrt{\frac{5}{6}}} done}"), right=r"\sqrt{\frac{5}{6}}"),
    Case(name="escaped braces", inputs=at(r"The set is \boxed{\{2, 5\}}"), right=r"\{2, 5\}"),
    Case(name="one escaped brace", inputs=at(r"\boxed{x \} y}"), right=r"x \} y", why="it closes nothing"),
    Case(name="a box in a box", inputs=at(r"\boxed{\boxed{9}}"), right="9"),
    Case(name="blanks", inputs=at("\\boxed{ 18\n}"), right="18"),
    Case(
        name="a broken last box",
        inputs=at(r"\boxed{7} or rather \boxed{8"),
        right=None,
        why="the model took its first answer back",
        traps={"an earlier box is no rescue": "7", "the box was never closed": "8"},
    ),
    Case(
        name="an empty last box",
        inputs=at(r"\boxed{7}, that is \boxed{}"),
        right=None,
        traps={"an earlier box is no rescue": "7"},
    ),
    Case(name="no box", inputs=at("the answer is 7"), right=None, why="prose that holds the answer is not an answer"),
    Case(name="nothing", inputs=at(""), right=None),
)
