"""A mask selects: NaN times 0 is NaN, in the gradient too.

Padded slots hold whatever was there: zeros, -inf, NaN. The policy loss of the tokens that count,

    loss = -sum_t m_t exp(logprob_t - old_logprob_t) A_t / sum_t m_t

must not depend on them: neither its value nor its gradient. Multiplying by the mask does not do that. Replacing the
result under the mask does not either: the backward pass still goes through what was replaced.

This exercise needs PyTorch.

Shape: logprobs (with requires_grad), old_logprobs, advantages: [N] float tensors; mask: [N] of 0 and 1, whole numbers.
The result is a scalar tensor that backward can be called on.

Edges: no token counts: loss 0 and gradient 0, not NaN, and backward still works.
"""

from torch import Tensor


def masked_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean of -rho * A over the tokens that count.

    >>> from torch import tensor
    >>> masked_loss(tensor([-1.0, 0.0]), tensor([-1.0, 0.0]), tensor([2.0, 5.0]), tensor([1, 0])).item()
    -2.0
    """
    raise NotImplementedError("masked_loss is yours to write")
