"""A solution of overlong_penalty."""


def overlong_penalty(length: int, max_length: int, buffer: int) -> float:
    """Share of the buffer that is used, as a negative number."""
    if not 0 <= buffer <= max_length:
        raise ValueError(f"buffer must be between 0 and {max_length}, got {buffer}")
    excess = length - (max_length - buffer)
    if excess <= 0:
        return 0.0
    return -1.0 if excess >= buffer else -excess / buffer
