"""Counter-based sampling noise: a number in [0, 1) that is a function of its coordinates and of nothing else.

A generator with a state gives each answer whatever is next in the queue, so the answer changes with the batch size,
the order of the prompts and the number of ranks. Here the coordinates are hashed, so it does not.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.ArrayLike
"""Anything numpy turns into an integer array."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


def uniforms(
    seed: int, rows: IntArray, draws: IntArray, samples: IntArray, positions: IntArray
) -> npt.NDArray[np.float64]:
    """Uniform noise keyed by (seed, row, draw, sample, position).

    The coordinates are absorbed one after the other by SplitMix64's finaliser,

        h <- mix(h XOR x + golden)        mix: Stafford's variant 13 (Steele, Lea & Flood 2014)

    and the upper 53 bits of the result, divided by 2^53, are the number.

    Args:
        seed: of the run; taken modulo 2^64.
        rows: of the prompts in their data set.
        draws: appearances of the rows in the stream.
        samples: numbers of the answers in their groups.
        positions: of the tokens in their answers, from 0.
            The four broadcast against each other; negative numbers count modulo 2^64.

    Returns:
        float64 in [0, 1), of the broadcast shape.

    Example:
        >>> uniforms(0, 3, 0, [0, 1], 0).tolist() == [float(uniforms(0, 3, 0, s, 0)) for s in (0, 1)]
        True
    """
    state = _mix(np.asarray(seed & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64))
    for coordinate in (rows, draws, samples, positions):
        state = _mix(state ^ np.asarray(coordinate, dtype=np.int64).astype(np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    # Wrapping around is the arithmetic that is meant; numpy warns about it for scalars alone.
    with np.errstate(over="ignore"):
        z = x + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MULTIPLY_1
        z = (z ^ (z >> np.uint64(27))) * _MULTIPLY_2
        return np.asarray(z ^ (z >> np.uint64(31)))
