"""Leave-one-out: the others are the baseline.

An answer's own reward in its own baseline shrinks its advantage. RLOO compares with the others alone:

    A_i = R_i - mean(R_j, j != i)

With `scale`, it is divided by the std of the others (over their number minus 1; no eps).

Source: arXiv 2402.14740.

Shape: a list of n rewards in, a list of n advantages out.

Edges:
- Where the others have no spread (all equal, or fewer than two of them), the advantage stays as it is, unscaled. A
  std that comes out as 1e-17 instead of 0 would turn -0.7 into a number of sixteen digits.
- All rewards equal, or a group of one: exactly 0.0.
"""


def leave_one_out(rewards: list[float], scale: bool) -> list[float]:
    """Advantage of each answer against the rest of its group.

    >>> leave_one_out([1.0, 0.0, 0.0], scale=False)
    [1.0, -0.5, -0.5]
    """
    raise NotImplementedError("leave_one_out is yours to write")
