"""The sequence ratio: a geometric mean without overflow.

The reward belongs to the whole answer, so GSPO uses one ratio per answer. The product of the token ratios spans dozens
of orders of magnitude in a long answer; normalised by the length it stays near 1:

    s = (pi(o) / pi_old(o))^(1 / L) = exp(1/L * sum_t (logprob_t - old_logprob_t))

Source: GSPO, arXiv 2507.18071, equation 7.

Shape: three lists of the same length in, one number out. L counts the tokens with mask 1.

Edges:
- Tokens with mask 0 may hold NaN or inf and change nothing.
- The mean log-ratio, not each token's, is clamped to [-20, 20] before exp.
- No token counts: 1.0.
- Neither 2,000 tokens of ratio 1.5 nor 500 tokens of probability e^-9 may overflow or underflow.
"""


def sequence_ratio(logprobs: list[float], old_logprobs: list[float], mask: list[int]) -> float:
    """Length-normalised importance ratio of one answer.

    >>> sequence_ratio([-1.0, -2.0], [-1.0, -2.0], [1, 1])
    1.0
    """
    raise NotImplementedError("sequence_ratio is yours to write")
