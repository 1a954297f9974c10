r"""The last boxed answer, braces and all.

A maths answer is what stands in the last \boxed{...} of the text. Finding it decides the reward, and three shortcuts
are wrong: the first closing brace (it cuts \frac{3}{4} to \frac{3, the same as for \frac{3}{5}), the first box (models
correct themselves), and an earlier box where the last one is broken (the answer was taken back).

Shape: text in; what stands in the last box out, without blanks around it; None where there is none.

Edges:
- The last box is the one that is opened last, also inside another one.
- \{ and \} are text, and neither open nor close anything; a backslash always belongs to the character after it.
- A last box that is empty or never closed: None. No box: None.
"""


def last_boxed(text: str) -> str | None:
    r"""What stands in the last box of a text.

    >>> last_boxed(r"Not \boxed{3}, but \boxed{4}.")
    '4'
    """
    raise NotImplementedError("last_boxed is yours to write")
