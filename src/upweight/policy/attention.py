"""Attention in parts that share keys, exactly: the softmax over a union of key sets out of the softmaxes over each.

With o_j, l_j the output and the log-sum-exp of the scores over key set j, the attention over their union is
o = sum_j exp(l_j - l) o_j with l = log sum_j exp(l_j) (Milakov and Gimelshein, arXiv 1805.02867). So the answers of a
group read one copy of their prompt's keys and values.

Shapes: P prompts of at most Lp tokens; A answers of at most Lc tokens, in P blocks of W; H query heads, K key heads, D
head size. Padding is on the right, where a causal mask hides it from every real token.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

_NOTHING = -1e30
"""Log-sum-exp of no key at all, and the score of a key that is not there."""


def merge(out_1: Tensor, lse_1: Tensor, out_2: Tensor, lse_2: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys out of the attentions over each.

    Args:
        out_1, out_2: [..., L, D] outputs.
        lse_1, lse_2: [..., L] float32 log-sum-exps of the scaled scores.

    Returns:
        The output over both sets [..., L, D], in the outputs' dtype, and its log-sum-exp [..., L].
    """
    lse = torch.logaddexp(lse_1, lse_2)
    share = (lse_1 - lse).exp().unsqueeze(-1)
    return torch.lerp(out_2.to(share.dtype), out_1.to(share.dtype), share).to(out_1.dtype), lse


def attend_over(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention of [B, H, L, D] over [B, K, M, D]; the output, and the log-sum-exp of the scores [B, H, L]."""
    repeats = q.shape[1] // k.shape[1]
    out, lse = _flash(q, _heads(k, repeats), _heads(v, repeats), 0.0, causal)
    return out, lse


def attend_shared(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of [A, H, L, D], A = B W, over [B, K, M, D]: W rows read the same keys, all of them.

    Returns:
        The output [A, H, L, D], and the log-sum-exp of the scores [A, H, L].
    """
    out, lse = _flash(_to_prompts(q, *k.shape[:2]), k, v, 0.0, False, attn_mask=mask)
    return _to_answers(out, q.shape), _to_answers(lse, q.shape[:3])


def prompt_mask(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """[P, 1, 1, Lp] 0 on a prompt's tokens and a large negative number on its padding; None where there is none.

    Args:
        lengths: [P] tokens of each prompt, on the CPU.
        width: Lp.
        dtype: of the queries.
    """
    there = torch.arange(width) < lengths[:, None]
    if bool(there.all()):
        return None
    return torch.where(there, 0.0, _NOTHING).to(dtype)[:, None, None, :]


def tree_mask(lengths: Tensor, width: int, longest: int, places: int, dtype: torch.dtype, heads: int) -> Tensor:
    """[P H, L, L] for prompts with their answers in one row of L places: 0 where a key is seen, a large negative else.

    Args:
        lengths: [P] tokens of each prompt, on the CPU.
        width: places of a prompt, the first of its row.
        longest: places of each answer behind it.
        places: L.
        dtype: of the queries.
        heads: H, of the queries; all see alike.
    """
    place = torch.arange(places)
    answer = torch.where(place < width, -1, (place - width) // longest)
    own = (answer[:, None] == answer) & (answer >= 0)
    of_prompt = (place < lengths[:, None])[:, None, :]
    seen = (place[:, None] >= place) & (of_prompt | own)
    return torch.where(seen, 0.0, _NOTHING).to(dtype).repeat_interleave(heads, dim=0)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D) + mask) v of [P, H, L, D] over [P, K, L, D], mask [P H, L, L]; for short rows."""
    repeats, shape = q.shape[1] // k.shape[1], q.shape
    q, k, v = (tensor.flatten(0, 1) for tensor in (q, _heads(k, repeats), _heads(v, repeats)))
    weights = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=shape[-1] ** -0.5).softmax(dim=-1)
    return torch.bmm(weights, v).view(shape)


class TreeAttention(torch.autograd.Function):
    """Causal attention of prompts, and of answers that each continue one of them, without copying a prompt.

    The backward hands each part of an answer's attention the output and log-sum-exp over all of its keys, which makes
    the parts' gradients those of the whole: dS = P (dP - rowsum(dO O)) with P = exp(S - lse).
    """

    @staticmethod
    def forward(
        ctx: Any, q_p: Tensor, k_p: Tensor, v_p: Tensor, q_c: Tensor, k_c: Tensor, v_c: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs of the prompts' and of the answers' tokens.

        Args:
            ctx: of autograd.
            q_p, k_p, v_p: [P, H or K, Lp, D].
            q_c, k_c, v_c: [A, H or K, Lc, D], A = P W; answer a continues prompt a // W.
            mask: from `prompt_mask`.

        Returns:
            [P, H, Lp, D] and [A, H, Lc, D].
        """
        out_p, lse_p = attend_over(q_p, k_p, v_p, causal=True)
        out_c, lse_c = merge(*attend_shared(q_c, k_p, v_p, mask), *attend_over(q_c, k_c, v_c, causal=True))
        ctx.save_for_backward(
            q_p, k_p, v_p, q_c, k_c, v_c, out_p, lse_p, out_c, lse_c, *([] if mask is None else [mask])
        )
        return out_p, out_c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_p: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the six inputs."""
        q_p, k_p, v_p, q_c, k_c, v_c, out_p, lse_p, out_c, lse_c, *rest = ctx.saved_tensors
        mask = rest[0] if rest else None
        prompts, heads = k_p.shape[:2]
        repeats = q_p.shape[1] // heads
        dq_p, dk_p, dv_p = _flash_backward(
            grad_p, q_p, _heads(k_p, repeats), _heads(v_p, repeats), out_p, lse_p, 0.0, True
        )
        dq_1, dk_1, dv_1 = _flash_backward(
            *(_to_prompts(tensor, prompts, heads) for tensor in (grad_c, q_c)),
            k_p,
            v_p,
            _to_prompts(out_c, prompts, heads),
            _to_prompts(lse_c, prompts, heads),
            0.0,
            False,
            attn_mask=mask,
        )
        dq_2, dk_2, dv_2 = _flash_backward(
            grad_c, q_c, _heads(k_c, repeats), _heads(v_c, repeats), out_c, lse_c, 0.0, True
        )
        return (
            dq_p,
            _sum_heads(dk_p, repeats) + dk_1,
            _sum_heads(dv_p, repeats) + dv_1,
            _to_answers(dq_1, q_c.shape) + dq_2,
            _sum_heads(dk_2, repeats),
            _sum_heads(dv_2, repeats),
            None,
        )


def _heads(keys: Tensor, repeats: int) -> Tensor:
    """[.., K, L, D] -> [.., K repeats, L, D]: a key head serves `repeats` query heads."""
    return keys if repeats == 1 else keys.repeat_interleave(repeats, dim=1)


def _sum_heads(grad: Tensor, repeats: int) -> Tensor:
    return grad if repeats == 1 else grad.reshape(grad.shape[0], -1, repeats, *grad.shape[2:]).sum(dim=2)


def _to_prompts(tensor: Tensor, prompts: int, heads: int) -> Tensor:
    """[A, H, L(, D)] -> [P, K, repeats W L(, D)]: all queries that read a prompt's key head, in one row."""
    answers, queries, *rest = tensor.shape
    rows = tensor.reshape(prompts, answers // prompts, heads, queries // heads, *rest)
    return rows.movedim(1, 3).flatten(2, 4).contiguous()


def _to_answers(tensor: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_to_prompts`."""
    prompts, heads = tensor.shape[:2]
    rows = tensor.reshape(prompts, heads, shape[1] // heads, shape[0] // prompts, shape[2], *tensor.shape[3:])
    return rows.movedim(3, 1).flatten(2, 3).flatten(0, 1)
