"""The clipped surrogate, and where its gradient stops.

With rho = exp(log_ratio), PPO maximises for each token

    f = min(rho * A, clip(rho, 1 - clip, 1 + clip_high) * A)

The min makes it one-sided. A good token stops being pulled once it is likely enough, a bad one once it is rare enough;
a token that went the wrong way keeps its whole gradient. Give the value and, by hand, its derivative by the token's
log-probability.

Source: arXiv 1707.06347, equation 7; separate bounds: DAPO, arXiv 2503.14476, equation 10.

Shape: numbers in, the pair (f, df / dlogprob) out.

Edges:
- The log-ratio is clamped to [-20, 20] before exp. Beyond it the value stands still, so the derivative is 0.
- A = 0 gives (0, 0).
"""


def clip_surrogate(log_ratio: float, advantage: float, clip: float, clip_high: float) -> tuple[float, float]:
    """Objective of one token, and its derivative by the token's log-probability.

    >>> clip_surrogate(0.0, advantage=2.0, clip=0.2, clip_high=0.28)
    (2.0, 2.0)
    """
    raise NotImplementedError("clip_surrogate is yours to write")
