"""The overlong ramp: where it starts, where it ends.

An answer that is cut off at the limit gets no reward although it may have been on a good way, which is noise. DAPO
warns instead: a penalty that grows over the last `buffer` tokens before the limit.

    0                                            up to length = max_length - buffer
    (max_length - buffer - length) / buffer      up to length = max_length
    -1                                           above

Source: DAPO, arXiv 2503.14476, equation 13.

Shape: whole numbers in, one number in [-1, 0] out, to be added to the reward.

Edges:
- buffer 0 is a step: 0 up to max_length, -1 above.
- ValueError for a buffer below 0 or above max_length.
"""


def overlong_penalty(length: int, max_length: int, buffer: int) -> float:
    """Penalty of an answer of `length` tokens.

    >>> overlong_penalty(90, max_length=100, buffer=20)
    -0.5
    """
    raise NotImplementedError("overlong_penalty is yours to write")
