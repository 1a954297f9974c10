"""CISPO: clip the weight, keep the gradient.

PPO's clip throws away the gradient of a token that has left the range; such tokens are often the turning points of a
chain of thought. CISPO clips the importance weight instead, and lets no gradient through it:

    loss = -sg(clip(rho, 1 - clip, 1 + clip_high)) * A * log pi,      rho = exp(logprob - old_logprob)

sg is the stop-gradient: what is inside is a number. Both bounds are distances from 1. Give the loss and, by hand, its
derivative by logprob.

Source: MiniMax-M1, arXiv 2506.13585, equations 4 and 5.

Shape: numbers in, the pair (loss, dloss / dlogprob) out.

Edges:
- Nothing overflows: the log-ratio is clamped to [-20, 20] before exp.
- The weight is clipped whatever the sign of A.
"""


def cispo(logprob: float, old_logprob: float, advantage: float, clip: float, clip_high: float) -> tuple[float, float]:
    """Loss of one token, and its derivative by the token's log-probability.

    >>> cispo(-0.5, -0.5, advantage=1.0, clip=1.0, clip_high=4.0)
    (0.5, -1.0)
    """
    raise NotImplementedError("cispo is yours to write")
