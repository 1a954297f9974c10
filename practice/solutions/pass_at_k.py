"""A solution of pass_at_k."""

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """One minus the share of draws without a right answer, in whole numbers until the end."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    draws = math.comb(n, k)
    return (draws - math.comb(n - c, k)) / draws
