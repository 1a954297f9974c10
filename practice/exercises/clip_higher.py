"""Clip-Higher: how far one update can move a probability.

The clip keeps the ratio new / old of a token within [1 - clip, 1 + clip_high]; past the bound nothing pulls any more.
A bound on the ratio is a bound on the relative change: a rare token gains almost nothing in absolute terms, a likely
one is not limited at all. So entropy falls. DAPO widens the upper bound alone, from 0.2 to 0.28.

Source: DAPO, arXiv 2503.14476, section 3.1.

Shape: one old probability in, the pair (lowest, highest) new probability out.

Edges:
- clip_high=None means the same as clip. 0.0 is a bound like any other.
- A probability stays within [0, 1].
"""


def clip_higher(probability: float, clip: float, clip_high: float | None = None) -> tuple[float, float]:
    """Lowest and highest probability that the clip lets one update reach.

    >>> clip_higher(0.5, clip=0.5)
    (0.25, 0.75)
    """
    raise NotImplementedError("clip_higher is yours to write")
