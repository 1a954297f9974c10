"""One denominator for the whole step: micro-batches and ranks.

The loss of an optimiser step is the sum of the token losses that count over the number of tokens that count, on all
ranks and in all micro-batches. Each micro-batch calls backward on its own; gradients add up within a rank, and the
ranks' gradients are averaged (as data-parallel training does). What must each micro-batch hand to backward?

    ranks * (sum of its own token losses that count) / (tokens that count, everywhere)

A mean of means gives short micro-batches too much weight, and the result depends on how the batch was cut.

Shape: ranks[r][m] is a pair (token losses, mask of 0 and 1); the result has one number per micro-batch, nested alike.

Edges:
- Tokens with mask 0 leave sum and denominator, and may hold NaN or inf.
- No token anywhere: all 0.0. A rank without tokens still takes part, with 0.0.
"""


def scaled_losses(ranks: list[list[tuple[list[float], list[int]]]]) -> list[list[float]]:
    """What each micro-batch of each rank hands to backward.

    >>> scaled_losses([[([3.0, 1.0], [1, 1]), ([0.0, 0.0], [1, 1])]])
    [[1.0, 0.0]]
    """
    raise NotImplementedError("scaled_losses is yours to write")
