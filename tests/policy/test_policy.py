"""Encoding, scoring, saving."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from upweight.objective.errors import UsageError
from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.tasks.prompt import Prompt


class TemplateTokenizer:
    """Adds <s> = 0 itself; its template writes <s> as well."""

    bos_token_id = 0
    eos_token_id = 1
    pad_token_id = None
    model_max_length = 100
    chat_template: str | None = "template"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [0] * text.count("<s>") + [ord(c) for c in text.replace("<s>", "")]
        return {"input_ids": [0, *ids] if add_special_tokens else ids}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "<s>" + "".join(message["content"] for message in messages) + "A"


@pytest.fixture
def templated(tiny: Policy) -> Policy:
    return Policy(model=tiny.model, tokenizer=TemplateTokenizer(), name="templated")


def test_template_and_tokenizer_write_one_bos_between_them(templated: Policy) -> None:
    prompt = Prompt(row=0, text=[{"role": "user", "content": "q"}])
    assert templated.encode(prompt) == [0, ord("q"), ord("A")]


def test_string_that_starts_with_bos_gets_no_second_one(templated: Policy) -> None:
    assert templated.encode(Prompt(row=0, text="<s>q")) == [0, ord("q")]
    assert templated.encode(Prompt(row=0, text="q")) == [0, ord("q")]


def test_messages_without_a_template_are_refused_with_a_way_out(tiny: Policy) -> None:
    assert not tiny.has_chat_template
    with pytest.raises(UsageError, match=r"row 7 .* no chat template: give the prompt as a string"):
        tiny.encode(Prompt(row=7, text=[{"role": "user", "content": "q"}]))


def test_empty_prompt_is_refused(tiny: Policy) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        tiny.encode(Prompt(row=0, text=""))


def test_end_ids_are_the_eos_of_tokenizer_and_generation_config(tiny: Policy) -> None:
    policy = load_policy("tiny")
    policy.model.generation_config.eos_token_id = [5, 9]
    assert Policy(model=policy.model, tokenizer=policy.tokenizer, name="x").end_ids == {5, 9, 257}
    assert tiny.end_ids == {257}
    assert tiny.pad_id == 256


def test_padding_does_not_change_scores(tiny: Policy) -> None:
    """B46: alone, and in a batch whose other prompts are longer."""
    alone = tiny.score([[97, 98]], [[99, 100, 257]])
    prompts, completions = [[97, 98], list(range(60)), [5]], [[99, 100, 257], [3], list(range(40))]
    batch = tiny.score(prompts, completions)
    assert len(batch.logprobs) == 44
    torch.testing.assert_close(batch.logprobs[:3], alone.logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.entropy[:3], alone.entropy, atol=1e-5, rtol=0)
    batch.logprobs.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in tiny.model.parameters())
    tiny.model.zero_grad()


def test_scores_are_those_of_the_plain_forward_pass(tiny: Policy) -> None:
    """B48: positions 1, 2, 3 predict the three completion tokens; a completion of one token has one score."""
    prompt, completion = [97, 98], [99, 100, 101]
    logits = tiny.model(torch.tensor([[*prompt, *completion]])).logits[0]
    labels = torch.tensor([completion]).T
    expected = torch.log_softmax(logits[1:4] / 0.5, dim=-1).gather(1, labels).squeeze(1)
    got = tiny.score([prompt], [completion], temperature=0.5)
    assert got.logprobs.shape == (3,)
    torch.testing.assert_close(got.logprobs, expected, atol=1e-5, rtol=0)
    assert tiny.score([prompt], [[99]]).logprobs.shape == (1,)


def test_one_row_and_eight_rows_at_a_time_agree(tiny: Policy) -> None:
    """B60: in float32 the batch's shape changes a log-probability by rounding alone."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 256, size=6).tolist() for _ in range(8)]
    completions = [generator.integers(0, 256, size=12).tolist() for _ in range(8)]
    together = tiny.score(prompts, completions).logprobs
    single = torch.cat([tiny.score([p], [c]).logprobs for p, c in zip(prompts, completions, strict=True)])
    assert (together - single).abs().max().item() < 1e-5


def test_train_and_eval_mode_give_identical_scores(tiny: Policy) -> None:
    in_eval = tiny.score([[1, 2]], [[3, 4]]).logprobs
    tiny.model.train()
    in_train = tiny.score([[1, 2]], [[3, 4]]).logprobs
    tiny.model.eval()
    assert torch.equal(in_eval, in_train)


def test_dropout_is_off_in_a_policy_and_in_its_frozen_copy() -> None:
    """The model comes with dropout and in training mode; every score is that of the whole model."""
    tokenizer = load_policy("tiny").tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        attention_dropout=0.5, bos_token_id=None, eos_token_id=257, pad_token_id=256,
    )  # fmt: skip
    policy = Policy(model=LlamaForCausalLM(config).train(), tokenizer=tokenizer, name="dropout")
    prompt, completion = [[1, 2, 3, 4, 5, 6]], [[7, 8, 9, 10]]
    first = policy.score(prompt, completion).logprobs
    for scorer in (policy, policy.frozen_copy()):
        assert torch.equal(scorer.score(prompt, completion).logprobs, first)
    policy.model.train()
    assert not torch.equal(policy.score(prompt, completion).logprobs, first)


def test_kept_sets_are_replayed_token_by_token(tiny: Policy) -> None:
    sets = (np.array([3, 9], dtype=np.int32), np.array([4], dtype=np.int32))
    got = tiny.score([[1], [1]], [[3, 4], [3, 4]], kept=[sets, None])
    plain = tiny.score([[1]], [[3, 4]])
    torch.testing.assert_close(got.logprobs[2:], plain.logprobs, atol=1e-5, rtol=0)
    assert got.logprobs[0] > plain.logprobs[0]
    assert got.logprobs[1].item() == 0.0
    assert got.entropy[1].item() == 0.0


def test_empty_completions_contribute_no_tokens(tiny: Policy) -> None:
    assert tiny.score([[1], [2]], [[], [3]]).logprobs.shape == (1,)
    assert tiny.score([[1]], [[]]).logprobs.shape == (0,)


def test_wrong_calls_of_score_are_refused(tiny: Policy) -> None:
    with pytest.raises(UsageError, match="temperature"):
        tiny.score([[1]], [[2]], temperature=0.0)
    with pytest.raises(UsageError, match="prompts"):
        tiny.score([[]], [[2]])
    with pytest.raises(UsageError, match="context of 512 tokens"):
        tiny.score([[1] * 500], [[2] * 13])
    with pytest.raises(ValueError, match="one to one"):
        tiny.score([[1], [2]], [[3]])
    with pytest.raises(ValueError, match="1 kept sets"):
        tiny.score([[1]], [[3, 4]], kept=[(np.array([3]),)])


def test_saved_folder_loads_with_the_auto_classes_and_by_name(tiny: Policy, tmp_path: Any) -> None:
    tiny.save(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("12").input_ids == [49, 50]
    again = load_policy(str(tmp_path))
    expected = tiny.score([[1, 2]], [[3, 257]]).logprobs
    torch.testing.assert_close(again.score([[1, 2]], [[3, 257]]).logprobs, expected, atol=0, rtol=0)
    own = dict(tiny.model.state_dict())
    assert all(torch.equal(weight, own[key]) for key, weight in model.state_dict().items())
    assert (again.end_ids, again.pad_id, again.context_length) == (tiny.end_ids, tiny.pad_id, tiny.context_length)
    assert again.encode(Prompt(row=0, text="<eos>")) == tiny.encode(Prompt(row=0, text="<eos>"))


def test_frozen_copy_stays_when_the_policy_moves() -> None:
    policy = load_policy("tiny")
    policy.version = 4
    reference = policy.frozen_copy()
    before = reference.score([[1]], [[2]]).logprobs.clone()
    with torch.no_grad():
        next(iter(policy.model.parameters())).mul_(2.0)
    assert torch.equal(reference.score([[1]], [[2]]).logprobs, before)
    assert not any(p.requires_grad for p in reference.model.parameters())
    assert reference.version == 4
