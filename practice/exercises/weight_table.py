"""The weight table: what one token of each answer gets.

Every objective here is a weighted sum over tokens. How the loss is averaged decides how much one token of answer i,
with advantage A_i and length L_i, weighs among B answers:

    token-mean                A_i / sum_j L_j       (DAPO, arXiv 2503.14476, equation 12)
    seq-mean-token-mean       A_i / (B L_i)         (GRPO, arXiv 2402.03300, equation 3)
    seq-mean-token-sum-norm   A_i / (B budget)      (Dr. GRPO, arXiv 2503.20783, section 3.2)

Under the second, a token of a long wrong answer is hardly punished: that is why answers grow.

Shape: n advantages and n lengths in, n weights out.

Edges:
- An answer of length 0 gets 0.0, and B does not count it. No token at all: all 0.0.
- ValueError for an unknown mode, and for seq-mean-token-sum-norm without a budget: the longest answer of the batch
  is no stand-in, because it changes from batch to batch.
"""


def weight_table(advantages: list[float], lengths: list[int], mode: str, budget: int | None = None) -> list[float]:
    """Weight of one token of each answer.

    >>> weight_table([1.0, -1.0], [1, 3], "token-mean")
    [0.25, -0.25]
    """
    raise NotImplementedError("weight_table is yours to write")
