"""A solution of weight_table."""


def weight_table(advantages: list[float], lengths: list[int], mode: str, budget: int | None = None) -> list[float]:
    """A_i over the mode's denominator."""
    answers = sum(length > 0 for length in lengths)
    if mode == "token-mean":
        denominators = [sum(lengths)] * len(lengths)
    elif mode == "seq-mean-token-mean":
        denominators = [answers * length for length in lengths]
    elif mode == "seq-mean-token-sum-norm" and budget is not None:
        denominators = [answers * budget] * len(lengths)
    else:
        raise ValueError(f"unknown mode, or one that needs a budget: {mode}")
    rows = zip(advantages, lengths, denominators, strict=True)
    return [advantage / denominator if length else 0.0 for advantage, length, denominator in rows]
