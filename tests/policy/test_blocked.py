"""The decoder for small passes: the same hidden states and logits as the plain one, at the weights it was made with."""

from collections.abc import Iterator

import pytest
import torch
from tests.policy.test_decoder import ANSWERS, FAMILIES, PROMPTS, model_of
from torch import Tensor, nn
from torch.testing import assert_close

from upweight.policy.blocked import BlockedDecoder, _sum, decoder_for_steps
from upweight.policy.decoder import Decoder
from upweight.policy.pack import TreeAttend, pack
from upweight.policy.variants import head_in_float32

CUT = sorted(set(FAMILIES) - {"llama-biases"})


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def logits_of(decoder: Decoder, dtype: torch.dtype = torch.float32) -> Tensor:
    layout = pack(PROMPTS, ANSWERS)
    with torch.no_grad():
        return decoder.logits(decoder.hidden(layout.ids, layout.positions, TreeAttend(layout, dtype)))


@pytest.mark.parametrize("family", CUT)
def test_the_logits_are_the_plain_decoders(family: str, threads: int) -> None:
    model = model_of(family)
    decoder = decoder_for_steps(model)
    assert isinstance(decoder, BlockedDecoder)
    assert_close(logits_of(decoder), logits_of(Decoder(model)), atol=1e-4, rtol=1e-5)


def test_the_weights_are_those_of_the_moment_it_was_made() -> None:
    """A sampler takes a new one at every call: an update must not be half in it."""
    model = model_of("llama")
    decoder = decoder_for_steps(model)
    before = logits_of(decoder)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight += 1.0
        model.lm_head.weight += 1.0
    assert torch.equal(logits_of(decoder), before)
    assert_close(logits_of(decoder_for_steps(model)), logits_of(Decoder(model)), atol=1e-3, rtol=1e-4)


class Doubled(nn.Linear):
    """What an adapter looks like: a linear map of another class."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("part", ["mlp.down_proj", "self_attn.q_proj"])
def test_an_adapted_layer_is_left_to_its_own_forward(part: str) -> None:
    """B96: an adapter changes what is sampled as it changes what is trained."""
    model = model_of("llama")
    model.model.layers[1].get_submodule(part).__class__ = Doubled
    assert type(decoder_for_steps(model)) is Decoder


def test_an_adapted_head_is_left_to_its_own_forward() -> None:
    model = model_of("llama")
    model.lm_head.__class__ = Doubled
    assert_close(logits_of(decoder_for_steps(model)), logits_of(Decoder(model)), atol=1e-4, rtol=1e-5)


def test_biases_where_the_families_have_none_are_not_cut() -> None:
    assert type(decoder_for_steps(model_of("llama-biases"))) is Decoder


def test_a_head_in_float32_gives_float32_logits_in_bfloat16() -> None:
    model = model_of("llama").to(torch.bfloat16)
    rounded = logits_of(decoder_for_steps(model), torch.bfloat16)
    head_in_float32(model)
    whole = logits_of(decoder_for_steps(model), torch.bfloat16)
    assert (rounded.dtype, whole.dtype) == (torch.bfloat16, torch.float32)
    assert not torch.equal(whole, whole.bfloat16().float())
    assert_close(rounded.float(), whole, atol=0.1, rtol=0.02)


def test_parts_of_half_precision_are_added_in_float32() -> None:
    """At 1.0 bfloat16's spacing is 2^-7: four parts of 2^-9 are one of it, and added one by one they are nothing."""
    parts = torch.tensor([1.0, *[2**-9] * 4], dtype=torch.bfloat16)[:, None, None]
    total = _sum(parts.clone())
    assert total.dtype == torch.bfloat16
    assert total.item() == 1 + 2**-7
    assert _sum(parts.double()).dtype == torch.float64
