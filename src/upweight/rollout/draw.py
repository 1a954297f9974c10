"""One sampling step: tokens and their log-probabilities out of logits and uniform noise.

Shapes: A rows that are still alive, V words of the vocabulary.
"""

import torch
from torch import Tensor

from upweight.rollout.completion import Sampling

# Most nuclei are small: look among so many words before sorting the whole vocabulary.
_NUCLEUS_GUESS = 256


def draw_tokens(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample one token a row by inverting the cumulative distribution.

    The distribution is softmax(logits / temperature) in float32, cut to the top k and then to the nucleus of top_p,
    renormalised. The token is the first in id order whose cumulative probability exceeds the noise; a token of
    probability 0 is never chosen.

    Args:
        logits: [A, V].
        uniforms: [A] float64 in [0, 1).
        sampling: temperature (0 = greedy, the first of equal maxima), top_k, top_p.

    Returns:
        tokens [A] int64; logprobs [A] float32 under exactly that distribution (0 when greedy); kept [A, V] bool, the
        words chosen among, None where that is all of them or the choice is greedy.
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(dim=-1)
        return tokens, torch.zeros(tokens.shape, dtype=torch.float32, device=logits.device), None
    z = logits.to(torch.float32)
    if sampling.temperature != 1.0:
        z = z / sampling.temperature
    kept = _kept(z, sampling)
    if kept is not None:
        z = z.masked_fill(~kept, float("-inf"))
    logp = torch.log_softmax(z, dim=-1)
    tokens = _invert(logp.exp(), uniforms)
    return tokens, logp.gather(1, tokens[:, None]).squeeze(1), kept


def _invert(p: Tensor, uniforms: Tensor) -> Tensor:
    """First index, in id order, whose cumulative probability exceeds uniforms times the total; p > 0 there."""
    cumulative = p.cumsum(dim=-1, dtype=torch.float64)
    # A parallel scan may rise by a rounding error where p is 0: such a place must not be a candidate.
    cumulative.masked_fill_(p == 0, 0.0)
    total = cumulative.amax(dim=-1)
    # u < 1, but u * total may round up to total, which nothing exceeds.
    threshold = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative > threshold[:, None]).view(torch.uint8).argmax(dim=-1)


def _kept(z: Tensor, sampling: Sampling) -> Tensor | None:
    vocabulary = z.shape[1]
    top_k = sampling.top_k if 0 < sampling.top_k < vocabulary else vocabulary
    if top_k == vocabulary and sampling.top_p >= 1.0:
        return None
    if sampling.top_p >= 1.0:
        chosen = torch.topk(z, top_k, dim=-1).indices
        return torch.zeros_like(z, dtype=torch.bool).scatter_(1, chosen, True)
    within = z if top_k == vocabulary else torch.topk(z, top_k, dim=-1).values
    total = torch.logsumexp(within, dim=-1, keepdim=True)
    guess = min(top_k, _NUCLEUS_GUESS)
    kept, complete = _nucleus(z, total, guess, sampling.top_p)
    return kept if complete or guess == top_k else _nucleus(z, total, top_k, sampling.top_p)[0]


def _nucleus(z: Tensor, total: Tensor, among: int, top_p: float) -> tuple[Tensor, bool]:
    """Nucleus among the `among` most likely words, [A, V] bool; False where a row may reach beyond them."""
    values, order = torch.topk(z, among, dim=-1)
    p = (values - total).exp().double()
    inside = p.cumsum(dim=-1) - p < top_p
    return torch.zeros_like(z, dtype=torch.bool).scatter_(1, order, inside), not bool(inside[:, -1].any())
