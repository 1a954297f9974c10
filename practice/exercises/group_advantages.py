"""Advantages within a group: subtract the mean, divide by the std.

GRPO has no critic. It samples a group of answers to one prompt, scores each, and takes as advantage how much better
an answer did than its group:

    A_i = (R_i - mean(R)) / (std(R) + eps)

Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2. The paper does not say which std; here it divides by n - 1.

Shape: a list of n rewards in, a list of n advantages out, in the same order.

Edges:
- NaN is an answer that could not be scored. It takes no part in the mean and the std, and gets 0.0.
- A group whose scores are all equal, or with fewer than two scores, gets exactly 0.0: also for three times 0.1,
  whose floating-point mean is not 0.1, and also with eps 0.
"""


def group_advantages(rewards: list[float], eps: float = 1e-6) -> list[float]:
    """Advantage of each answer of one group.

    >>> group_advantages([1.0, 0.0, 0.0, 0.0], eps=0.0)
    [1.5, -0.5, -0.5, -0.5]
    """
    raise NotImplementedError("group_advantages is yours to write")
