"""Attention in parts that share keys is the attention over all of them, value and gradient."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from upweight.policy.attention import TreeAttention, attend_over, attend_shared, merge, prompt_mask

HEADS, KEY_HEADS, SIZE = 6, 2, 16


def noise(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.requires_grad_()


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


@pytest.mark.parametrize("lengths", [(7, 7, 7), (7, 1, 4)])
@pytest.mark.parametrize(("width", "new"), [(4, 5), (1, 1)])
def test_answers_attend_to_their_prompt_and_to_themselves_as_if_it_were_copied(
    lengths: tuple[int, ...], width: int, new: int
) -> None:
    prompts, longest = len(lengths), 7
    inputs = [noise(prompts, h, longest, SIZE, seed=s) for s, h in enumerate((HEADS, KEY_HEADS, KEY_HEADS))]
    inputs += [noise(prompts * width, h, new, SIZE, seed=s) for s, h in enumerate((HEADS, KEY_HEADS, KEY_HEADS), 3)]
    q_p, k_p, v_p, q_c, k_c, v_c = inputs
    there = torch.arange(longest) < torch.tensor(lengths)[:, None]
    out_p, out_c = TreeAttention.apply(*inputs, prompt_mask(torch.tensor(lengths), longest, torch.float64))
    weight_p = noise(*out_p.shape, seed=8).detach() * there[:, None, :, None]
    weight_c = noise(*out_c.shape, seed=9).detach()
    ours = torch.autograd.grad((out_p * weight_p).sum() + (out_c * weight_c).sum(), inputs)

    keys, values = (
        torch.cat([shared.repeat_interleave(width, 0), own], dim=2) for shared, own in ((k_p, k_c), (v_p, v_c))
    )
    seen = there.repeat_interleave(width, 0)[:, None, None].expand(-1, 1, new, -1)
    own = torch.ones(new, new).tril().bool().expand(prompts * width, 1, new, new)
    copied = plain(q_c, keys, values, torch.cat([seen, own], dim=3))
    alone = plain(q_p, k_p, v_p, causal=True)
    theirs = torch.autograd.grad((alone * weight_p).sum() + (copied * weight_c).sum(), inputs)

    assert_close(out_c, copied)
    assert_close(out_p * there[:, None, :, None], alone * there[:, None, :, None])
    for gradient, expected in zip(ours, theirs, strict=True):
        assert float(expected.norm()) > 0.1
        assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_merging_two_sets_of_keys_is_attending_to_their_union() -> None:
    q, k, v = (noise(2, h, 5, SIZE, seed=s).detach() for s, h in enumerate((HEADS, KEY_HEADS, KEY_HEADS)))
    parts = [attend_over(q, k[:, :, cut], v[:, :, cut], causal=False) for cut in (slice(0, 2), slice(2, 5))]
    out, lse = merge(*parts[0], *parts[1])
    whole, whole_lse = attend_over(q, k, v, causal=False)
    assert_close(out, whole)
    assert_close(lse, whole_lse)


def test_a_set_without_any_key_adds_nothing() -> None:
    """Rows that a mask hides wholly have the log-sum-exp of nothing."""
    q, k, v = (noise(2, h, 3, SIZE, seed=s).detach() for s, h in enumerate((HEADS, KEY_HEADS, KEY_HEADS)))
    mask = prompt_mask(torch.tensor([0, 3]), 3, torch.float64)
    hidden = attend_shared(q, k, v, mask)
    seen = attend_over(q, k, v, causal=True)
    out, _ = merge(*seen, *hidden)
    assert_close(out[0], seen[0][0])
    assert not torch.allclose(out[1], seen[0][1])
