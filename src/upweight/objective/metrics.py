"""Metrics as (sum, count) pairs that add up over micro-batches and ranks."""

import math
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

Sums = Mapping[str, tuple[float, float]]
"""Metric name -> (sum, count). Two of them add up; the metric is sum / count, once, at the end."""


def add_sums(left: Sums, right: Sums) -> dict[str, tuple[float, float]]:
    """Add two sets of (sum, count) pairs, name by name.

    Example:
        >>> add_sums({"kl": (1.0, 4.0)}, {"kl": (2.0, 2.0), "ratio_mean": (3.0, 3.0)})
        {'kl': (3.0, 6.0), 'ratio_mean': (3.0, 3.0)}
    """
    total = dict(left)
    for name, (value, count) in right.items():
        have = total.get(name, (0.0, 0.0))
        total[name] = (have[0] + value, have[1] + count)
    return total


def metric_means(sums: Sums) -> dict[str, float]:
    """Sum / count of each metric; 0 where nothing was counted.

    The pair `importance`, `importance_sq` becomes `ess`, the effective sample size as a share: (mean u)^2 / mean u^2
    of the importance weights u = c rho (Kish 1965), 1 where all are equal and 1/N where one token has it all.
    """
    means = {name: value / count if count else 0.0 for name, (value, count) in sums.items()}
    if "importance_sq" in means:
        mean, mean_sq = means.pop("importance"), means.pop("importance_sq")
        means["ess"] = mean * mean / mean_sq if mean_sq else 0.0
    return means


def quantile(values: Float[Tensor, " N"], q: float) -> float:
    """The value that a share q of the values does not exceed; 0 for none. q = 1 is the maximum.

    By sorting, without interpolation: torch.quantile refuses more than 2^24 elements.

    Example:
        >>> import torch
        >>> quantile(torch.arange(1.0, 101.0), 0.99)
        99.0
    """
    if not values.numel():
        return 0.0
    return float(values.sort().values[max(0, math.ceil(q * values.numel()) - 1)])
