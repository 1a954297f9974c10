"""The shapes of models, by name, folder and size."""

import json
from pathlib import Path
from typing import Any

import pytest

from upweight.objective.errors import UsageError
from upweight.policy.decoder import FAMILIES
from upweight.policy.known import CONTEXTS
from upweight.report.shapes import COMPACT, SHAPES, find_shape


def test_tiny_is_counted_by_hand() -> None:
    """Four projections of 128 x 128, three of 128 x 352, two norms; five layers, a last norm, 258 words."""
    layer = 4 * 128 * 128 + 3 * 128 * 352 + 2 * 128
    assert SHAPES["tiny"].layer == layer == 200_960
    assert SHAPES["tiny"].parameters == 5 * layer + 128 + 258 * 128 == 1_037_952


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
    ],
)
def test_known_shapes_have_exactly_the_parameters_of_the_published_weights(name: str, parameters: int) -> None:
    assert SHAPES[name].parameters == parameters


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
        ("tiny", "tiny"),
    ],
)
def test_a_name_of_the_hub_is_known_without_its_owner_and_its_ending(name: str, known: str) -> None:
    assert find_shape(name) == (SHAPES[known], f"the published shape of {known}")


QWEN = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 100,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}


def test_a_folder_says_its_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    shape, _ = find_shape(str(tmp_path))
    # Queries and the way out 64 x 128, keys and values 64 x 64, the norms of heads of 32, and those of the layer.
    layer = 2 * 64 * 128 + 2 * 64 * 64 + 3 * 64 * 96 + 2 * 32 + 2 * 64
    assert shape.parameters == 2 * layer + 64 + 100 * 64
    assert shape.context == 4096


@pytest.mark.slow
def test_a_folder_of_ours_has_as_many_parameters_as_its_model(tmp_path: Path) -> None:
    from upweight.policy.load import load_policy

    policy = load_policy("tiny")
    policy.save(tmp_path)
    assert find_shape(str(tmp_path))[0] == SHAPES["tiny"]
    assert SHAPES["tiny"].parameters == sum(p.numel() for p in policy.model.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("7b", 7e9), ("1.5B", 1.5e9), ("135m", 135e6), ("400b", 400e9)])
def test_a_size_keeps_its_number_and_says_that_the_shape_is_assumed(name: str, parameters: float) -> None:
    shape, says = find_shape(name)
    assert shape.parameters == parameters
    assert says.startswith("assumed: ")


def test_a_size_between_known_ones_has_a_shape_of_about_that_size() -> None:
    """Stretched by the cube root, the shape alone has about the parameters that were asked for."""
    import dataclasses

    for name in ("30m", "200b"):
        shape, _ = find_shape(name)
        counted = dataclasses.replace(shape, stated=None).parameters
        assert 0.5 < counted / shape.parameters < 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen2.5-8b", "Did you mean 'qwen2.5-7b'?"),
        ("gpt", "such as 7b"),
        ("7t", "such as 7b"),
        ("9999b", "outside what can be assumed"),
        ("0.1m", "outside what can be assumed"),
    ],
)
def test_an_unknown_model_is_refused_with_a_way_out(name: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_shape(name)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no config.json"),
        ("{", "not the configuration of a decoder"),
        ("\x00", "not the configuration of a decoder"),
        ("[]", "it is JSON, but no object"),
        ("null", "it is JSON, but no object"),
        ("[" * 100_000, "nested too deeply"),
        (f'{{"hidden_size": 1{"0" * 5000}}}', "not the configuration of a decoder"),
        ('{"hidden_size": 8}', "num_attention_heads"),
    ],
    ids=lambda text: None if text is None else text[:20],
)
def test_a_folder_without_a_decoders_configuration_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        find_shape(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_configuration_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory\. .* --model 7b"):
        find_shape(str(tmp_path))


SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize(
    "text", ["-64", "0", "2.7", "true", '"64"', "[]", "1e300", "1e400", "Infinity", "NaN", "10" * 60]
)
def test_a_size_that_no_model_has_is_refused_by_key_and_value(tmp_path: Path, key: str, text: str) -> None:
    written = json.dumps({**QWEN, key: "here"}).replace('"here"', text)
    (tmp_path / "config.json").write_text(written)
    value = repr(json.loads(text))[:60]
    with pytest.raises(
        UsageError, match=f"'{key}' parameter of .*config.json must be a whole number, at least 1"
    ) as refused:
        find_shape(str(tmp_path))
    assert f"Got {value}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_key_value_heads": 100}, "'num_key_value_heads' .* a divisor of num_attention_heads, 4. Got 100"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' .* a divisor of num_attention_heads, 4. Got 3"),
        (
            {"num_attention_heads": 7, "head_dim": None, "num_key_value_heads": 7},
            "'num_attention_heads' .* of hidden_size, 64",
        ),
        (
            {"num_attention_heads": 128, "head_dim": None, "num_key_value_heads": 1},
            "'num_attention_heads' .* hidden_size, 64",
        ),
        ({"hidden_size": None}, "'hidden_size' .* Got None"),
        ({"tie_word_embeddings": "no"}, "'tie_word_embeddings' .* true or false. Got 'no'"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, **change}))
    with pytest.raises(UsageError, match=words):
        find_shape(str(tmp_path))


def test_what_a_configuration_leaves_to_the_family_may_be_null(tmp_path: Path) -> None:
    """Keys and values for each head, heads that share the features, a context that is not known."""
    left = ("num_key_value_heads", "head_dim", "tie_word_embeddings", "max_position_embeddings")
    for config in ({**QWEN, **dict.fromkeys(left)}, {key: QWEN[key] for key in QWEN if key not in left}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        shape, _ = find_shape(str(tmp_path))
        assert (shape.key_heads, shape.head_size, shape.tied, shape.context) == (4, 16, False, None)


def test_only_contexts_that_are_sure_are_known() -> None:
    """A base model and its instruct version may differ, and a size says nothing."""
    assert {name: shape.context for name, shape in SHAPES.items() if shape.context} == CONTEXTS
    assert find_shape("135m")[0].context is None


@pytest.mark.parametrize("name", ["", f"{'9' * 400}b"])
def test_a_name_of_nothing_and_a_number_without_end_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_shape(name)
    assert len(str(refused.value)) < 250


def test_the_families_of_the_compact_decoder_are_its_own() -> None:
    assert COMPACT == FAMILIES
