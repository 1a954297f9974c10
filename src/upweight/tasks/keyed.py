"""Counter-based randomness: a number is a function of its key, never of what was drawn before it.

A stream keyed this way has nothing to save but its counter, gives the same numbers on every platform and Python
version, and cannot be disturbed by other users of a global generator.
"""

import hashlib
import random


def keyed_integer(*key: int | str) -> int:
    """A uniform integer in [0, 2**512) that depends on nothing but the key.

    Args:
        *key: what the number belongs to: a purpose ("draw"), a seed, a counter.

    Example:
        >>> keyed_integer("draw", 1) == keyed_integer("draw", 1)
        True
        >>> keyed_integer("draw", 1) == keyed_integer("draw", 2)
        False
    """
    # repr keeps 1 and "1" apart, and no two keys share a spelling.
    return int.from_bytes(hashlib.blake2b(repr(key).encode()).digest(), "big")


def keyed_below(bound: int, *key: int | str) -> int:
    """A uniform integer in [0, bound). The bias of the remainder is at most bound / 2**512.

    Example:
        >>> 0 <= keyed_below(10, "draw", 1) < 10
        True
    """
    return keyed_integer(*key) % bound


def keyed_permutation(size: int, *key: int | str) -> list[int]:
    """The numbers 0 to size - 1 in a uniformly random order that depends on nothing but the key.

    Fisher-Yates over `Random.random`, the one method whose sequence Python promises to keep between versions
    (`Random.shuffle` carries no such promise).

    Example:
        >>> sorted(keyed_permutation(4, "epoch", 0))
        [0, 1, 2, 3]
    """
    generator = random.Random(keyed_integer(*key))
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order
