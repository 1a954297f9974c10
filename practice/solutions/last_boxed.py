"""A solution of last_boxed."""

OPENING = r"\boxed{"


def last_boxed(text: str) -> str | None:
    """Counts braces from the last opening, stepping over escaped characters."""
    start = text.rfind(OPENING)
    if start < 0:
        return None
    position = start = start + len(OPENING)
    depth = 1
    while position < len(text):
        character = text[position]
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[start:position].strip() or None
        position += 2 if character == "\\" else 1
    return None
