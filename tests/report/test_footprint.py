"""The memory of a process, held against numbers made by hand, what autograd keeps and what the sampler claims."""

import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from upweight.policy import head, pack
from upweight.policy.decoder import Decoder
from upweight.policy.policy import Policy
from upweight.policy.tiny import byte_tokenizer
from upweight.report import footprint as room
from upweight.report.footprint import Footprint, Setup, activations, footprint, layer_bytes
from upweight.report.shapes import SHAPES, Shape
from upweight.rollout.cached import SharedRows
from upweight.rollout.engine import LocalEngine
from upweight.train.passes import cut

SEVEN = Setup(shape=SHAPES["qwen2.5-7b"], dtype="bfloat16")

SMALL = Shape(
    family="llama",
    hidden=48,
    layers=2,
    heads=6,
    key_heads=2,
    head_size=8,
    feed_forward=112,
    vocabulary=258,
    tied=True,
)


def sizes(found: Footprint, phase: str | None = None) -> dict[str, int]:
    """Bytes by name: of what is always there, or of a phase."""
    parts = found.always if phase is None else next(p for p in found.phases if p.name == phase).parts
    return {part.name: part.size for part in parts}


def test_what_a_7b_model_always_holds_in_bfloat16_by_hand() -> None:
    count = 7_615_616_512
    assert sizes(footprint(SEVEN)) == {
        "framework": 1 << 30,
        "weights": 2 * count,
        "float32 masters": 4 * count,
        "moments": 8 * count,
        "reference model": 2 * count,
    }


def test_in_float32_the_weights_are_their_own_masters_and_without_a_kl_there_is_no_reference() -> None:
    count = 7_615_616_512
    found = sizes(footprint(dataclasses.replace(SEVEN, dtype="float32", has_reference=False)))
    assert found == {"framework": 1 << 30, "weights": 4 * count, "moments": 8 * count}


def test_sharding_divides_all_but_the_copy_that_samples() -> None:
    whole = dataclasses.replace(SEVEN, processes=8)
    parts = dataclasses.replace(whole, shard="full")
    before, after = sizes(footprint(whole)), sizes(footprint(parts))
    for name in ("weights", "float32 masters", "moments", "reference model"):
        assert after[name] == before[name] // 8
    assert after["whole copy that samples"] == 2 * 7_615_616_512
    assert sizes(footprint(parts), "the update")["gradients"] == 4 * 7_615_616_512 // 8


def test_at_the_start_of_a_sharded_run_three_whole_models_are_there() -> None:
    """The one that samples, the reference, and the copy of either that is being divided; without a KL there are two."""
    count = 2 * 7_615_616_512
    for setup, copies in ((SEVEN, 3), (dataclasses.replace(SEVEN, has_reference=False), 2)):
        found = footprint(dataclasses.replace(setup, processes=1000, shard="full"))
        held = sum(part.size for part in found.always[1:])
        assert held + found.phases[0].size == copies * count
    assert "the start" not in {phase.name for phase in footprint(SEVEN).phases}


def test_several_processes_without_sharding_add_the_gradients_up_where_they_are() -> None:
    found = sizes(footprint(dataclasses.replace(SEVEN, processes=2)), "the update")
    assert found == {"gradients": 4 * 7_615_616_512}


def test_the_kv_cache_of_a_7b_model_by_hand() -> None:
    """28 layers, keys and values, 4 heads of 128 in bfloat16: 57,344 bytes a token; 5 prompts x 8 answers of 768."""
    assert sizes(footprint(SEVEN), "sampling")["KV cache"] == 2 * 28 * 512 * 2 * 40 * 768


def test_the_logits_of_a_7b_model_by_hand() -> None:
    """Five answers of 768 tokens are in a pass of 4,096; 2,560 of their tokens have logits, three times in bfloat16."""
    assert SEVEN.pass_tokens == (3840, 2560)
    found = sizes(footprint(SEVEN), "a pass at its start")["logits"]
    assert found == 3 * 2 * 2560 * 152_064 + 3 * (16 << 20) + 2 * 152_064 * 3584


def test_sampling_has_the_memory_of_the_gradients() -> None:
    """A step drops them before it samples."""
    assert "gradients" not in sizes(footprint(SEVEN), "sampling")
    assert sizes(footprint(SEVEN), "the update")["gradients"] == 4 * 7_615_616_512


def test_the_peak_is_that_of_the_fullest_phase_with_the_slack_of_the_allocator() -> None:
    found = footprint(SEVEN)
    assert found.peak == max(found.total(phase) for phase in found.phases)
    held = sum(sizes(found).values()) - (1 << 30) + found.fullest.size
    assert found.peak == (1 << 30) + round(1.05 * held)


def test_the_constants_are_those_of_the_code() -> None:
    assert room.BLOCK == 4 * head.ELEMENTS
    assert room.BLOCK_TOKENS == head.TOKENS
    assert pack.TOGETHER == room.TOGETHER
    assert inspect.signature(LocalEngine).parameters["max_batch_tokens"].default == room.MEMORY_TOKENS


def policy_of(shape: Shape, dtype: torch.dtype) -> Policy:
    kind, config = (Qwen3ForCausalLM, Qwen3Config) if shape.family == "qwen3" else (LlamaForCausalLM, LlamaConfig)
    made = config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_size,
        max_position_embeddings=1024,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=257,
        pad_token_id=256,
    )
    return Policy(model=kind(made).to(dtype), tokenizer=byte_tokenizer(), name="small")


def kept_by_autograd(policy: Policy, prompts: list[list[int]], completions: list[list[int]]) -> int:
    """Bytes that a pass keeps for its backward, beside the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = policy.score(prompts, completions)
    assert scores.logprobs.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def unlike(count: int, tokens: int) -> list[list[int]]:
    """Answers, no two of the same four alike: equal ones would be encoded once."""
    return [[1 + place % 4] * tokens for place in range(count)]


def of_a_layer(shape: Shape, dtype: torch.dtype, prompts: list[list[int]], completions: list[list[int]]) -> int:
    """Bytes that one layer adds to what a pass keeps."""
    one, three = (
        kept_by_autograd(policy_of(dataclasses.replace(shape, layers=layers), dtype), prompts, completions)
        for layers in (1, 3)
    )
    return (three - one) // 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_layer_of_the_compact_decoder_keeps_what_autograd_keeps(family: str, dtype: str) -> None:
    shape = dataclasses.replace(SMALL, family=family)
    prompts, completions = [[row] * 24 for row in range(3) for _ in range(4)], unlike(12, 41)
    setup = Setup(shape=shape, device="cpu", dtype=dtype, group_size=4, prompt_tokens=24, new_tokens=41)
    tokens = 3 * 24 + 12 * 40  # the last token of an answer is a label only
    found = of_a_layer(shape, getattr(torch, dtype), prompts, completions)
    assert found == pytest.approx(tokens * layer_bytes(setup), rel=0.01)


def test_over_short_rows_a_layer_keeps_the_softmax_too() -> None:
    prompts, completions = [[row] * 8 for row in range(12) for _ in range(4)], unlike(48, 17)
    setup = Setup(shape=SMALL, device="cpu", group_size=4, prompt_tokens=8, new_tokens=17)
    tokens = 12 * 8 + 48 * 16
    found = of_a_layer(SMALL, torch.float32, prompts, completions)
    assert found == pytest.approx(tokens * layer_bytes(setup), rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_layer_of_transformers_own_forward_keeps_what_autograd_keeps(
    family: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU every model goes through it. Prompts of unlike lengths, so that there is a mask."""
    monkeypatch.setattr(Decoder, "fits", staticmethod(lambda model: False))
    shape = dataclasses.replace(SMALL, family=family)
    prompts, completions = [[1] * (40 - row % 2) for row in range(8)], [[1] * 41] * 8
    setup = Setup(shape=shape, dtype=dtype, group_size=4, prompt_tokens=40, new_tokens=41)
    found = of_a_layer(shape, getattr(torch, dtype), prompts, completions)
    assert found == pytest.approx(8 * 80 * layer_bytes(setup), rel=0.001)


def test_the_kv_cache_is_what_the_sampler_claims() -> None:
    policy = policy_of(SMALL, torch.float32)
    setup = Setup(shape=SMALL, device="cpu", prompts=9, group_size=4, prompt_tokens=30, new_tokens=50)
    rows, _ = LocalEngine(policy)._plan([30] * 9, 4, 50)
    assert isinstance(rows, SharedRows)
    memories = (rows.prompt_keys, rows.prompt_values, rows.keys, rows.values)
    claimed = sum(tensor.nbytes for memory in memories for tensor in memory)
    assert sizes(footprint(setup), "sampling")["KV cache"] == claimed


def batch(prompts: int, group: int, before: int, after: int) -> Any:
    """What `cut` reads of a batch of equal prompts and answers."""
    answers = prompts * group
    return SimpleNamespace(
        prompts=[range(before)] * answers,
        completions=[SimpleNamespace(token_ids=range(after))] * answers,
        group_of=[b // group for b in range(answers)],
        seq_id=torch.arange(answers),
    )


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.integers(1, 6),
    group=st.integers(1, 6),
    before=st.integers(1, 40),
    after=st.integers(1, 40),
    micro=st.integers(1, 2000),
    updates=st.integers(1, 7),
    shared=st.booleans(),
)
def test_the_largest_pass_is_that_of_the_cut(
    prompts: int, group: int, before: int, after: int, micro: int, updates: int, shared: bool
) -> None:
    """Exactly, where prompts are shared and answers are alike; else to within two answers with their prompts."""
    parts = np.array_split(np.arange(prompts), min(updates, prompts))
    whole = batch(prompts, group, before, after)
    made = [
        cut(whole, [b for b in range(prompts * group) if b // group in part], micro, shared=shared) for part in parts
    ]
    every = [one for passes in made for one in passes]
    groups = [{b // group for b in one.answers} for one in every]
    scored = max(after * len(one.answers) for one in every)
    tokens = max(
        after * len(one.answers) + before * (len(of) if shared else len(one.answers))
        for one, of in zip(every, groups, strict=True)
    )
    setup = Setup(
        shape=SMALL,
        device="cpu" if shared else "gpu",
        prompts=prompts,
        group_size=group,
        prompt_tokens=before,
        new_tokens=after,
        micro_batch_tokens=micro,
        updates=updates,
    )
    if shared:
        assert setup.pass_tokens == (tokens, scored)
        assert setup.passes == max(map(len, made))
    elif updates == 1:
        assert abs(setup.pass_tokens[0] - tokens) <= 2 * (before + after)
        assert abs(setup.pass_tokens[1] - scored) <= 2 * after


shapes = st.sampled_from(sorted(SHAPES))


@settings(deadline=None, max_examples=80)
@given(
    name=shapes,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    recompute=st.booleans(),
    tokens=st.integers(1, 20_000),
    more=st.integers(0, 20_000),
)
def test_more_tokens_never_need_less(name: str, dtype: str, recompute: bool, tokens: int, more: int) -> None:
    """Of those that a pass keeps; a single pass of an update needs less beside them, as no gradients are there yet."""
    setup = Setup(shape=SHAPES[name], dtype=dtype, checkpointing=recompute, micro_batch_tokens=tokens)
    larger = dataclasses.replace(setup, micro_batch_tokens=tokens + more)
    assert activations(setup).size <= activations(larger).size
    if setup.passes > 1 and larger.passes > 1:
        assert footprint(setup).peak <= footprint(larger).peak


@given(name=shapes, dtype=st.sampled_from(["float32", "bfloat16"]), device=st.sampled_from(["cpu", "gpu"]))
def test_what_saves_memory_saves_memory(name: str, dtype: str, device: Any) -> None:
    setup = Setup(shape=SHAPES[name], dtype=dtype, device=device)
    peak = footprint(setup).peak
    assert footprint(dataclasses.replace(setup, has_reference=False)).peak < peak
    assert footprint(dataclasses.replace(setup, checkpointing=True)).peak <= peak
    if device == "gpu":
        several = dataclasses.replace(setup, processes=8)
        assert footprint(dataclasses.replace(several, shard="full")).peak < footprint(several).peak


def test_fewer_layers_less_memory_and_a_larger_vocabulary_more() -> None:
    setup = Setup(shape=SMALL, device="cpu")
    deeper = dataclasses.replace(setup, shape=dataclasses.replace(SMALL, layers=3))
    wider = dataclasses.replace(setup, shape=dataclasses.replace(SMALL, vocabulary=100_000))
    assert footprint(setup).peak < footprint(deeper).peak
    assert footprint(setup).peak < footprint(wider).peak


def test_a_head_in_float32_makes_logits_twice_as_large_as_bfloat16() -> None:
    wide = dataclasses.replace(SEVEN, float32_head=True)
    logits = (sizes(footprint(setup), "a pass at its start")["logits"] for setup in (SEVEN, wide))
    narrow, widened = logits
    assert widened - narrow == 3 * 2 * 2560 * 152_064 + 4 * 152_064 * 3584
