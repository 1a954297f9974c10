"""A solution of scaled_losses."""


def scaled_losses(ranks: list[list[tuple[list[float], list[int]]]]) -> list[list[float]]:
    """Number of ranks times the micro-batch's sum, over the tokens of the whole step."""
    tokens = sum(sum(mask) for rank in ranks for _, mask in rank)
    factor = len(ranks) / max(1, tokens)
    return [[factor * _selected_sum(losses, mask) for losses, mask in rank] for rank in ranks]


def _selected_sum(losses: list[float], mask: list[int]) -> float:
    return sum((loss for loss, counts in zip(losses, mask, strict=True) if counts), 0.0)
