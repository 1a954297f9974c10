"""Token weights: how the loss is averaged, fixed before any forward pass."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from upweight.objective.errors import bad_parameter
from upweight.objective.segments import segment_index, segment_sum

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean")


def flat_token_weights(
    seq_id: Int[Tensor, " N"],
    mode: str = "token-mean",
    *,
    max_length: int | None = None,
    group_id: Int[Tensor, " N"] | None = None,
    keep: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    """Weight w_t of each token, over everything that feeds ONE optimiser step.

    With L_i tokens in answer i, B answers and g(i) the group of i:

    - `token-mean` (DAPO's token-level loss, arXiv 2503.14476, equation 12, over the batch): 1 / sum_j L_j
    - `seq-mean-token-mean` (GRPO, arXiv 2402.03300, equation 3): 1 / (B L_i)
    - `seq-mean-token-sum-norm` (Dr. GRPO, arXiv 2503.20783, section 3.2): 1 / (B max_length)
    - `group-mean-token-mean` (DAPO's equation 8 as written, an expectation over prompts):
      1 / (groups * sum_{j in g(i)} L_j)

    Every count is of counted tokens, and of answers and groups that have at least one. So the sum of w_t loss_t
    over micro-batches and ranks is the loss, however the batch is cut.

    Args:
        seq_id: [N] answer of each token; any integers.
        mode: one of the four above.
        max_length: the generation budget in tokens; only `seq-mean-token-sum-norm` reads it, and needs it.
        group_id: [N] group of each token; only `group-mean-token-mean` reads it, and needs it.
        keep: [N] tokens that count; the others get weight 0 and leave every denominator. All where None.

    Returns:
        [N] float64 weights; empty for no tokens.

    Raises:
        UsageError: an unknown mode, or one that lacks what it needs.

    Example:
        >>> flat_token_weights(torch.tensor([0, 1, 1, 1]), "seq-mean-token-mean").tolist()
        [0.5, 0.16666666666666666, 0.16666666666666666, 0.16666666666666666]
    """
    if mode not in MODES:
        raise bad_parameter("mode", "token_weights", f"one of {', '.join(MODES)}", mode)
    counted = torch.ones(seq_id.shape, dtype=torch.float64, device=seq_id.device) if keep is None else keep.double()
    if mode == "token-mean":
        return counted / counted.sum().clamp(min=1)
    if mode == "group-mean-token-mean":
        if group_id is None:
            raise bad_parameter("group_ids", "token_weights", "given for mode 'group-mean-token-mean'", None)
        return _segment_mean_weights(counted, group_id)
    if mode == "seq-mean-token-mean":
        return _segment_mean_weights(counted, seq_id)
    if not isinstance(max_length, int) or max_length < 1:
        way_out = "It is the generation budget in tokens, never the padded width."
        raise bad_parameter(
            "max_length", "token_weights", f"a whole number of at least 1 for mode '{mode}'", max_length, way_out
        )
    index, count = segment_index(seq_id)
    answers = (segment_sum(counted, index, count) > 0).sum().clamp(min=1)
    return counted / (answers * max_length)


def _segment_mean_weights(counted: Tensor, ids: Tensor) -> Tensor:
    """Mean over the tokens of a segment, then over the segments that have any."""
    index, count = segment_index(ids)
    sizes = segment_sum(counted, index, count)
    return counted / (sizes.clamp(min=1)[index] * (sizes > 0).sum().clamp(min=1))
