"""The compact decoder is transformers' own forward: logits of each family, scores and gradients of packed answers."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from upweight.policy.decoder import Decoder
from upweight.policy.load import load_policy
from upweight.policy.pack import RowAttend, TreeAttend, attend_for, pack
from upweight.policy.policy import Policy

SMALL: dict[str, Any] = {
    "vocab_size": 258, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 257, "pad_token_id": 256,
    "bos_token_id": None, "initializer_range": 0.2,
}  # fmt: skip
SCALED_ROPE = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "llama-scaled-rope": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=SCALED_ROPE)),
    "llama-biases": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
    "qwen3-tied": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True)),
}

PROMPTS = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4], [7, 8, 9, 10, 11, 12], [1, 2, 3, 4]]
ANSWERS = [[3, 4, 5], [9], [8, 8, 8, 8, 1], [4, 4], []]


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1, where a mistake would not show
        torch.nn.init.normal_(parameter, std=0.2, mean=float(parameter.ndim == 1))
    return model


def policy_of(model: Any) -> Policy:
    return Policy(model=model, tokenizer=load_policy("tiny").tokenizer, name="test")


def gradient_of(model: Any) -> Tensor:
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return found


def one_by_one(model: Any) -> Tensor:
    scores = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        if answer:
            logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
            scores.append(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).squeeze(1))
    return torch.cat(scores)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_transformers_own(family: str) -> None:
    model = model_of(family)
    assert Decoder.fits(model)
    layout = pack(PROMPTS, ANSWERS)
    with torch.no_grad():
        hidden = Decoder(model).hidden(layout.ids, layout.positions, TreeAttend(layout, torch.float32))
        ours = model.lm_head(hidden[layout.predicts])
        theirs = torch.cat(
            [
                model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
                for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
                if answer
            ]
        )
    assert float(theirs.std()) > 0.5
    assert float((ours - theirs).abs().max()) < 1e-4


@pytest.mark.parametrize("together", [0, 96], ids=["in-parts", "in-one-softmax"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_of_answers_that_share_a_prompt_are_those_of_each_alone(
    family: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upweight.policy.pack.TOGETHER", together)
    model = model_of(family)
    policy = policy_of(model)
    assert policy.shares_prompts
    up = torch.linspace(-1, 1, sum(map(len, ANSWERS)))
    scores = policy.score(PROMPTS, ANSWERS).logprobs
    (scores * up).sum().backward()
    ours = gradient_of(model)
    expected = one_by_one(model)
    (expected * up).sum().backward()
    theirs = gradient_of(model)
    assert float((scores - expected).detach().abs().max()) < 1e-5
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


@pytest.mark.parametrize("together", [0, 96], ids=["in-parts", "in-one-softmax"])
def test_equal_answers_are_encoded_once_and_each_has_its_scores_and_its_gradient(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upweight.policy.pack.TOGETHER", together)
    prompts = [[1, 2, 3], [1, 2, 3], [4, 5], [1, 2, 3], [4, 5]]
    answers = [[7, 8, 9], [7, 8], [7, 8, 9], [7, 8, 9], [7, 8, 9]]
    layout = pack(prompts, answers)
    assert len(layout.ids) == 3 + 2 + (2 + 1) + 2
    assert layout.answers == (4, 2)
    policy = policy_of(model_of("llama"))
    up = torch.linspace(-1, 1, sum(map(len, answers)))
    scores = policy.score(prompts, answers).logprobs
    (scores * up).sum().backward()
    ours = gradient_of(policy.model)
    alone = torch.cat([policy.score([p], [a]).logprobs for p, a in zip(prompts, answers, strict=True)])
    (alone * up).sum().backward()
    theirs = gradient_of(policy.model)
    assert_close(scores, alone, atol=1e-5, rtol=1e-5)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_short_rows_take_one_softmax_long_ones_and_half_precision_are_attended_to_in_parts() -> None:
    short, long = pack(PROMPTS, ANSWERS), pack([[1] * 20], [[2] * 80])
    assert isinstance(attend_for(short, torch.float32, 6), RowAttend)
    assert isinstance(attend_for(short, torch.bfloat16, 6), TreeAttend)
    assert isinstance(attend_for(long, torch.float32, 6), TreeAttend)


def test_a_prompt_is_in_the_pack_once_and_nothing_is_padded() -> None:
    layout = pack(PROMPTS, ANSWERS)
    assert layout.prompt_tokens == 4 + 2 + 6
    assert len(layout.ids) == 12 + 2 + 0 + 4 + 1
    assert layout.targets.tolist() == [3, 4, 5, 9, 8, 8, 8, 8, 1, 4, 4]
    assert layout.predicts.tolist()[:3] == [3, 12, 13]
    assert layout.positions.tolist()[12:14] == [4, 5]


def test_other_families_windows_and_dropout_go_through_their_own_forward() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=258, n_embd=16, n_layer=1, n_head=2, n_positions=64))
    window = Qwen2ForCausalLM(Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=0))
    dropout = LlamaForCausalLM(LlamaConfig(**SMALL, attention_dropout=0.1))
    dynamic = LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))  # fmt: skip  # noqa: E501
    for model in (gpt2, window, dropout, dynamic):
        assert not Decoder.fits(model)
        policy = policy_of(model.eval())
        scores = policy.score(PROMPTS, ANSWERS).logprobs
        assert float((scores - one_by_one(model)).detach().abs().max()) < 1e-5


def test_a_model_that_something_is_wrapped_around_goes_through_its_own_forward() -> None:
    class Wrapped(torch.nn.Module):
        """As an adapter library does it: the model sits one level deeper, its attributes shine through."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.model, self.config, self.lm_head = inner, inner.config, inner.lm_head

    assert not Decoder.fits(Wrapped(model_of("llama")))


def test_a_head_with_a_bias_is_not_forgotten() -> None:
    model = model_of("llama")
    model.lm_head = torch.nn.Linear(48, 258)
    with torch.no_grad():
        assert_close(policy_of(model).score(PROMPTS, ANSWERS).logprobs, one_by_one(model), rtol=0, atol=1e-5)


def test_a_perturbed_weight_changes_both_what_is_sampled_from_and_what_is_trained_on() -> None:
    """B96: nothing of the weights is kept from one pass to the next."""
    from upweight.rollout.completion import Sampling
    from upweight.rollout.engine import LocalEngine

    model = model_of("llama")
    policy, sampling = policy_of(model), Sampling(max_new_tokens=4)
    engine = LocalEngine(policy)
    before = engine.generate(PROMPTS[:2], 2, sampling)
    scores = policy.score(PROMPTS, ANSWERS).logprobs.detach()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.add_(1.0)
    after = engine.generate(PROMPTS[:2], 2, sampling)
    assert before[0][0].logprobs[0] != after[0][0].logprobs[0]
    assert not torch.allclose(policy.score(PROMPTS, ANSWERS).logprobs, scores)
    for prompt, group in zip(PROMPTS[:2], after, strict=True):
        for answer in group:
            trained = policy.score([prompt], [answer.token_ids]).logprobs.tolist()
            assert trained == pytest.approx(answer.logprobs, abs=1e-4)
