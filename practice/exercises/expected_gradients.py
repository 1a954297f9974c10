"""Which gradient does a KL loss term have?

A good estimate of a value may have the wrong gradient. Take the smallest policy there is: right with chance
q = sigmoid(theta), wrong with 1 - q, and a reference that is right with chance p. Outcomes are sampled from q, one of
k1, k2, k3 is used as a loss term, and its gradient by theta is taken with the sample held fixed. What is it on average
over the two outcomes?

    k1 = -log r,  k2 = (log r)^2 / 2,  k3 = r - 1 - log r,      log r = log p(x) - log q(x)
    d log q(right) / d theta = 1 - q,   d log q(wrong) / d theta = -q

Beside them give the true gradient, d KL(q || p) / d theta with
KL(q || p) = q log(q / p) + (1 - q) log((1 - q) / (1 - p)).

Shape: q and p, both in (0, 1), in; four numbers (k1's, k2's, k3's, the true one) out.

Edges: with q = p all four are 0.
"""


def expected_gradients(policy: float, reference: float) -> tuple[float, float, float, float]:
    """Expected gradients by theta of k1, k2, k3 as loss terms, and the KL's own.

    >>> expected_gradients(0.5, 0.5) == (0.0, 0.0, 0.0, 0.0)
    True
    """
    raise NotImplementedError("expected_gradients is yours to write")
