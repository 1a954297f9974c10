"""A head in float32 and layers that recompute, in place: what changes, and what must not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.policy.test_decoder import ANSWERS, PROMPTS, gradient_of, model_of, policy_of
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from upweight.objective.errors import UsageError
from upweight.policy.load import load_policy
from upweight.policy.variants import Float32Linear, Recomputed, head_in_float32, layers_recomputed


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=258, n_positions=128, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.5)
    return GPT2LMHeadModel(config).eval()


MODELS: dict[str, Callable[[], Any]] = {"compact decoder": lambda: model_of("llama"), "own forward": gpt2}


def scored(model: Any) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and the gradient of their mean."""
    logprobs = policy_of(model).score(PROMPTS, ANSWERS).logprobs
    logprobs.mean().backward()
    return logprobs.detach(), gradient_of(model)


@pytest.mark.parametrize("kind", MODELS)
def test_recomputing_changes_no_number(kind: str) -> None:
    """Not one bit: the second forward is the first. GPT-2 has dropout here, which stays off."""
    plain, model = MODELS[kind](), MODELS[kind]()
    layers_recomputed(model)
    for ours, theirs in zip(scored(model), scored(plain), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", MODELS)
def test_recomputing_keeps_less(kind: str) -> None:
    """Bytes that autograd keeps between the passes."""

    def kept(model: Any) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logprobs = policy_of(model).score([[1] * 40], [[2] * 40]).logprobs
        assert logprobs.requires_grad
        return sum(sizes.values())

    plain, model = MODELS[kind](), MODELS[kind]()
    layers_recomputed(model)
    weights = sum(p.nbytes for p in model.parameters())
    assert kept(model) - weights < 0.6 * (kept(plain) - weights)


def test_recomputed_layers_recompute_once_each_in_the_backward() -> None:
    model = model_of("llama")
    layers_recomputed(model)
    layers_recomputed(model)
    calls: list[int] = []
    model.model.layers[1].self_attn.q_proj.register_forward_hook(lambda *_: calls.append(1))
    logprobs = policy_of(model).score(PROMPTS, ANSWERS).logprobs
    assert len(calls) == 1
    logprobs.sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        policy_of(model).score(PROMPTS, ANSWERS)
    assert len(calls) == 3


@pytest.mark.parametrize("kind", MODELS)
def test_a_head_in_float32_is_float32s_product_in_bfloat16(kind: str) -> None:
    model = MODELS[kind]().to(torch.bfloat16)
    rounded = policy_of(model).score(PROMPTS, ANSWERS).logprobs
    head_in_float32(model)
    whole = policy_of(model).score(PROMPTS, ANSWERS).logprobs
    assert not torch.equal(rounded, whole)
    assert_close(rounded, whole, atol=0.1, rtol=0.02)
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.dtype is torch.float32
    hidden = model(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states[-1]
    assert_close(logits, hidden.float() @ model.lm_head.weight.float().t())


def test_a_head_in_float32_changes_nothing_in_float32() -> None:
    plain, model = model_of("qwen3"), model_of("qwen3")
    head_in_float32(model)
    for ours, theirs in zip(scored(model), scored(plain), strict=True):
        assert torch.equal(ours, theirs)


def test_a_copy_runs_on_its_own_weights() -> None:
    """The reference is a copy: its head must not read the policy's weights."""
    model = model_of("llama")
    head_in_float32(model)
    layers_recomputed(model)
    twin = copy.deepcopy(model)
    before = policy_of(twin).score(PROMPTS, ANSWERS).logprobs
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert torch.equal(policy_of(twin).score(PROMPTS, ANSWERS).logprobs, before)
    assert isinstance(twin.lm_head, Float32Linear)
    assert isinstance(twin.model.layers[0], Recomputed)


def test_what_is_saved_is_the_plain_model(tmp_path: Any) -> None:
    policy = load_policy("tiny")
    head_in_float32(policy.model)
    layers_recomputed(policy.model)
    policy.save(tmp_path)
    loaded = load_policy(str(tmp_path))
    assert type(loaded.model.lm_head) is nn.Linear
    assert loaded.model.state_dict().keys() == policy.model.state_dict().keys()


def test_a_head_that_is_no_linear_map_is_refused() -> None:
    model = model_of("llama")
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(UsageError, match=r"--fp32_head needs .* plain linear map; here it is a Sequential"):
        head_in_float32(model)


def test_a_model_without_known_layers_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--gradient_checkpointing needs .* Lower --micro_batch_tokens"):
        layers_recomputed(nn.Linear(2, 2))
