"""Dual clip: a floor under bad tokens that became much likelier.

For A < 0 the clipped surrogate has no bound: a bad token whose ratio is 50 pulls with fifty times its advantage, and
one such token can wreck a step. Dual clip puts a floor under it, for A < 0 only:

    f = max(min(rho * A, clip(rho, 1 - clip, 1 + clip) * A), ceiling * A)

Source: arXiv 1912.09729.

Shape: numbers in, the pair (f, df / dlogprob) out; d rho / d logprob is rho.

Edges:
- On the floor the gradient is 0, as on the flat sides of the clip.
- A > 0 knows no floor.
- ValueError where ceiling is not above 1: it would cut inside the clip.
"""


def dual_clip(ratio: float, advantage: float, clip: float, ceiling: float) -> tuple[float, float]:
    """Objective of one token, and its derivative by the token's log-probability.

    >>> dual_clip(1.0, advantage=-2.0, clip=0.2, ceiling=3.0)
    (-2.0, -2.0)
    """
    raise NotImplementedError("dual_clip is yours to write")
