"""Advantages: how much better an answer did than what was expected of it."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Num, Shaped
from torch import Tensor

from upweight.objective.errors import bad_parameter
from upweight.objective.masks import as_mask
from upweight.objective.segments import GroupIds, as_group_ids, segment_index


def group_advantages(
    rewards: Num[Tensor, " B"] | Sequence[float],
    group_ids: GroupIds = None,
    *,
    group_size: int | None = None,
    scale: str = "std",
    baseline: str = "mean",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """Advantage of each answer within its group.

    With `baseline="mean"`: A_i = (R_i - mean(R)) / (std(R) + eps), GRPO (DeepSeekMath, arXiv 2402.03300, section
    4.1.2); `scale="none"` leaves the division out, Dr. GRPO (arXiv 2503.20783, section 3.2). With
    `baseline="leave-one-out"`: A_i = R_i - mean(R_j, j != i), RLOO (arXiv 2402.14740);
    `scale="std"` then divides by the std of the others (+ eps), and leaves the advantage unscaled where that is 0.
    `scale="batch"` divides by the std of all scored rewards of the call.

    Args:
        rewards: [B] rewards, a tensor or a sequence of numbers; NaN = the answer could not be scored. It takes no
            part in its group's statistics and gets advantage 0. Infinite rewards are refused.
        group_ids: [B] integers; answers with the same id form a group, in any order. Groups may be uneven.
        group_size: instead of ids: consecutive blocks of this many answers. With neither, all are one group.
        scale: "std", "none" or "batch".
        baseline: "mean" or "leave-one-out".
        ddof: delta degrees of freedom of every std, >= 0. A std of no more values than that is taken as 0, and
            nothing is divided by it.
        eps: added to every std, >= 0.

    Returns:
        [B] advantages in the rewards' floating dtype (the default dtype for integers). A group with identical
        rewards, or with fewer than two scored answers, gets exactly 0.

    Raises:
        UsageError: unknown scale or baseline, ddof or eps below 0, ids and size both given, a size that does not
            divide B, rewards that are not [B] or hold an infinity.

    Example:
        >>> group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), eps=0.0)
        tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """
    _check_choices(scale, baseline)
    _check_std(ddof, eps)
    rewards = torch.as_tensor(rewards)
    _check_rewards(rewards, "group_advantages")
    dtype = rewards.dtype if rewards.is_floating_point() else torch.get_default_dtype()
    index, count = segment_index(_as_ids(rewards, group_ids, group_size, "group_advantages"))
    values = rewards.double()
    scored = ~values.isnan()
    advantages = torch.zeros_like(values)
    for group in range(count):
        members = (index == group) & scored
        advantages[members] = _one_group(values[members], scale, baseline, ddof, eps)
    if scale == "batch":
        advantages = _divide(advantages, _std(values[scored], ddof), eps)
    return advantages.to(dtype)


def _one_group(rewards: Tensor, scale: str, baseline: str, ddof: int, eps: float) -> Tensor:
    """Advantages of one group whose answers all have a score, in float64."""
    n = rewards.numel()
    # Decided by comparison: the mean of equal decimals may differ from them in the last bit, and the std would
    # then blow that bit up.
    if n < 2 or rewards.min() == rewards.max():
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if baseline == "mean":
        return _divide(centred, _std(rewards, ddof), eps) if scale == "std" else centred
    left_out = centred * (n / (n - 1))
    if scale != "std":
        return left_out
    others = rewards.repeat(n, 1)[~torch.eye(n, dtype=torch.bool, device=rewards.device)].view(n, n - 1)
    return _divide(left_out, torch.stack([_std(row, ddof) for row in others]), eps)


def _std(values: Tensor, ddof: int) -> Tensor:
    """Two-pass standard deviation; exactly 0 for equal values and where too few are left."""
    if values.numel() <= ddof or values.numel() < 2 or values.min() == values.max():
        return values.new_zeros(())
    deviations = values - values.mean()
    largest = deviations.abs().max()
    # In units of the power of two next to the largest, squares neither overflow nor vanish, and no digit changes.
    unit = largest / (2 * torch.frexp(largest).mantissa)
    return ((deviations / unit).square().sum() / (values.numel() - ddof)).sqrt() * unit


def _divide(centred: Tensor, std: Tensor, eps: float) -> Tensor:
    """Centred / (std + eps); unscaled where std is 0."""
    return torch.where(std > 0, centred / torch.where(std > 0, std + eps, 1.0), centred)


def informative_groups(rewards: Num[Tensor, " B"], group_ids: GroupIds = None) -> Bool[Tensor, " B"]:
    """Whether an answer's group has any spread among its scored rewards: the groups dynamic sampling keeps.

    DAPO (arXiv 2503.14476, section 3.2) keeps groups that are neither all right nor all wrong; spread is the same
    thing for 0/1 rewards and stays right for graded ones: (0.5, 0.5) carries no signal whatever its mean.

    Args:
        rewards: [B] task rewards, before any shaping; NaN = not scored.
        group_ids: [B] integers; one group where None.

    Returns:
        [B] bool, the same for all answers of a group. Rewards are compared exactly: 0.1 + 0.2 and 0.3 differ.

    Raises:
        UsageError: an infinite reward, or another number of ids than rewards.

    Example:
        >>> informative_groups(torch.tensor([0.5, 0.5, 1.0, 0.0]), [7, 7, 9, 9])
        tensor([False, False,  True,  True])
    """
    _check_rewards(rewards, "informative_groups")
    index, count = segment_index(_as_ids(rewards, group_ids, None, "informative_groups"))
    values = rewards.double()
    low = values.new_full((count,), torch.inf).scatter_reduce(0, index, values.nan_to_num(nan=torch.inf), "amin")
    high = values.new_full((count,), -torch.inf).scatter_reduce(0, index, values.nan_to_num(nan=-torch.inf), "amax")
    return (high > low)[index]


def uninformative_share(accuracy: float, group_size: int) -> float:
    """Expected share of groups that carry no signal: p^G + (1 - p)^G for independent right-or-wrong answers.

    Args:
        accuracy: p, chance that one answer is right, in [0, 1].
        group_size: G, answers per prompt.

    Example:
        >>> round(uninformative_share(0.2, 8), 5)
        0.16777
    """
    return float(accuracy**group_size + (1 - accuracy) ** group_size)


def terminal_rewards(scores: Float[Tensor, " B"], mask: Shaped[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Per-token rewards with an answer's score on its last masked-in token and 0 elsewhere.

    The last masked-in token is the end token where there is one, never the padding after it. An empty row gets no
    reward anywhere.

    Example:
        >>> terminal_rewards(torch.tensor([1.0]), torch.tensor([[1, 1, 1, 0, 0]]))
        tensor([[0., 0., 1., 0., 0.]])
    """
    kept = as_mask(mask, "terminal_rewards")
    is_last = kept & (kept.flip(1).cumsum(1).flip(1) == 1)
    return torch.where(is_last, scores[:, None], 0.0)


def gae(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Generalised advantage estimation (arXiv 1506.02438, equations 11 and 16), backwards over the masked-in tokens.

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, where t+1 is the next masked-in
    token of the row and V is 0 after the last one.

    Args:
        rewards: [B, T] reward per token.
        values: [B, T] critic's value at each token. Masked slots may hold anything, NaN included.
        mask: [B, T] bool or 0/1; tokens outside it are stepped over.
        gamma: discount per token, in [0, 1].
        lam: lambda, in [0, 1].

    Returns:
        Advantages and returns (advantage + value), both [B, T], 0 at masked slots; neither hands the critic a gradient.

    Raises:
        UsageError: gamma or lam outside [0, 1], or shapes that differ.

    Example:
        >>> nan = float("nan")
        >>> gae(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.2, 0.4, nan]]), torch.tensor([[1, 1, 0]]), lam=0.9)[0]
        tensor([[0.7400, 0.6000, 0.0000]])
    """
    for name, number in (("gamma", gamma), ("lam", lam)):
        if not 0.0 <= number <= 1.0:
            raise bad_parameter(name, "gae", "in [0, 1]", number)
    kept = as_mask(mask, "gae")
    for what, tensor in (("rewards", rewards), ("values", values)):
        if tensor.shape != kept.shape:
            raise bad_parameter(what, "gae", f"of the mask's shape {tuple(kept.shape)}", tuple(tensor.shape))
    rewards = torch.where(kept, rewards, 0.0)
    values = torch.where(kept, values.detach(), 0.0)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0]) if values.shape[1] else values.new_zeros(0)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(kept[:, t], advantage, 0.0)
        next_advantage = torch.where(kept[:, t], advantage, next_advantage)
        next_value = torch.where(kept[:, t], values[:, t], next_value)
    return advantages, advantages + values


def _as_ids(rewards: Tensor, group_ids: GroupIds, group_size: int | None, owner: str) -> Tensor:
    count = rewards.numel()
    if group_size is not None:
        if group_ids is not None:
            raise bad_parameter("group_size", owner, "left out where group_ids is given", group_size)
        if group_size < 1 or count % group_size:
            raise bad_parameter("group_size", owner, f"a divisor of the {count} rewards", group_size)
        return torch.arange(count, device=rewards.device) // group_size
    if group_ids is None:
        return torch.zeros(count, dtype=torch.long, device=rewards.device)
    return as_group_ids(group_ids, count, rewards.device, owner)


def _check_choices(scale: str, baseline: str) -> None:
    if scale not in ("std", "none", "batch"):
        raise bad_parameter("scale", "group_advantages", "'std', 'none' or 'batch'", scale)
    if baseline not in ("mean", "leave-one-out"):
        raise bad_parameter("baseline", "group_advantages", "'mean' or 'leave-one-out'", baseline)


def _check_std(ddof: int, eps: float) -> None:
    if not ddof >= 0:
        raise bad_parameter("ddof", "group_advantages", "at least 0", ddof, "1 divides by n - 1, 0 by n.")
    if not eps >= 0:
        raise bad_parameter("eps", "group_advantages", "at least 0", eps, "It is added to the std.")


def _check_rewards(rewards: Tensor, owner: str) -> None:
    if rewards.ndim != 1:
        way_out = "Lay the groups one after the other, and say which is which by group_ids or group_size."
        raise bad_parameter("rewards", owner, "of shape [B]", tuple(rewards.shape), way_out)
    infinite = rewards.isinf().nonzero().flatten().tolist()
    if infinite:
        way_out = "An answer without a score is NaN."
        must = f"finite or NaN at index {infinite[0]}"
        raise bad_parameter("rewards", owner, must, rewards[infinite[0]].item(), way_out)
