"""A GRPOConfig of TRL 1.16 as a configuration of ours: every field has a place, and nothing is lost without a word."""

import ast
import dataclasses
import enum
import json
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest

from upweight import TrainArgs
from upweight.objective.dialects import DIALECTS, translate
from upweight.objective.errors import UsageError
from upweight.train.check import check_args
from upweight.train.from_trl import FromTrl, read_trl
from upweight.train.trl_fields import HANDED_ON, MAPPED, NO_MEANING, NOT_MAPPED

HERE = Path(__file__).parent

THEIRS = {
    name: ast.literal_eval(default)
    for name, _, default in (line.partition(" ") for line in (HERE / "grpo_config.txt").read_text().splitlines())
}
"""Fields of TRL 1.16.0's GRPOConfig (over transformers 5.24) and their defaults, written down from the release."""

PEER = HERE.parent.parent / ".peers" / "trl" / "bin" / "python"
"""TRL in an environment of its own, where bench/peers.py has made one."""

OF_THE_OBJECTIVE = {setting.name: setting.default for setting in DIALECTS["trl"].settings}


def places(name: str) -> list[str]:
    """Where a field is dealt with."""
    listed = [word for words in NO_MEANING.values() for word in words.split() if word == name]
    tables = {"objective": OF_THE_OBJECTIVE, "mapped": MAPPED, "handed on": HANDED_ON, "not mapped": NOT_MAPPED}
    return [title for title, table in tables.items() if name in table] + ["no meaning"] * len(listed)


@pytest.mark.parametrize("name", THEIRS)
def test_every_field_of_trl_has_a_place(name: str) -> None:
    # The first two decide the batch and the denominators; vLLM, who samples and the correction for it.
    two = {"gradient_accumulation_steps": "mapped", "steps_per_generation": "mapped", "use_vllm": "not mapped"}
    if name in two:
        assert places(name) == ["objective", two[name]]
    else:
        assert len(places(name)) == 1


def test_no_field_is_dealt_with_that_trl_does_not_have() -> None:
    listed = {word for words in NO_MEANING.values() for word in words.split()}
    assert {*OF_THE_OBJECTIVE, *MAPPED, *HANDED_ON, *NOT_MAPPED, *listed} - set(THEIRS) == {"warmup_ratio"}


@pytest.mark.parametrize("name", MAPPED.keys() - {"warmup_ratio"})
def test_the_default_of_a_mapped_field_is_trls(name: str) -> None:
    assert MAPPED[name].default == THEIRS[name]


@pytest.mark.parametrize("name", NOT_MAPPED)
def test_a_field_that_is_not_mapped_is_reported_where_it_differs_and_only_there(name: str) -> None:
    assert THEIRS[name] in NOT_MAPPED[name].defaults
    for default in NOT_MAPPED[name].defaults:
        assert said(read_trl({name: default}), name) == []
    other = True if name == "use_vllm" else "something else"
    assert said(read_trl({name: other}), name) == [f"{name}={other!r}: {NOT_MAPPED[name].here}."]


def said(found: FromTrl, name: str) -> list[str]:
    return [sentence for sentence in found.unmatched if sentence.startswith(f"{name}=")]


def test_a_field_without_meaning_is_said_to_have_none() -> None:
    found = read_trl({"gradient_checkpointing": False, "run_name": "mine"})
    assert found.says[-1] == "Of no meaning here: gradient_checkpointing, run_name."


def args_of(**config: Any) -> TrainArgs:
    return read_trl(config).args


def test_nothing_given_is_trls_own_defaults() -> None:
    """dapo's average, no KL, 8 answers to one prompt, a rate of 1e-6, bfloat16: not our defaults."""
    args = args_of()
    assert args.objective == translate("trl", {}).objective
    assert (args.prompts_per_step, args.group_size, args.minibatches, args.epochs_per_batch) == (1, 8, 1, 1)
    assert (args.max_new_tokens, args.temperature, args.top_p, args.top_k) == (512, 1.0, 1.0, 0)
    assert (args.learning_rate, args.lr_schedule, args.lr_warmup_steps) == (1e-6, "linear", 0)
    assert (args.weight_decay, args.max_grad_norm, args.seed, args.dtype) == (0.0, 1.0, 42, "bfloat16")
    assert (args.save_every, args.eval_every, args.output_dir) == (500, 0, None)
    check_args(args)


@pytest.mark.parametrize(
    ("theirs", "prompts", "minibatches", "passes"),
    [
        ({"per_device_train_batch_size": 32}, 4, 1, 1),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}, 4, 1, 1),
        ({"per_device_train_batch_size": 16, "steps_per_generation": 4}, 8, 4, 1),
        ({"generation_batch_size": 64}, 8, 8, 1),
        ({"per_device_train_batch_size": 16, "steps_per_generation": 4, "gradient_accumulation_steps": 2}, 8, 2, 1),
        ({"num_iterations": 3}, 1, 1, 3),
        # Two batches are sampled from the same weights before the one update.
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, 4, 1, 1),
        # What a GRPOConfig of four processes holds once it is made.
        ({"generation_batch_size": 64, "steps_per_generation": 2, "gradient_accumulation_steps": 2}, 8, 1, 1),
        ({"num_generations": 4, "per_device_train_batch_size": 4}, 1, 1, 1),
    ],
)
def test_batches_are_counted_in_prompts(theirs: dict[str, int], prompts: int, minibatches: int, passes: int) -> None:
    args = args_of(**theirs)
    assert (args.prompts_per_step, args.minibatches, args.epochs_per_batch) == (prompts, minibatches, passes)


def test_updates_that_cut_groups_apart_are_reported() -> None:
    found = read_trl({"per_device_train_batch_size": 4, "steps_per_generation": 4})
    assert (found.args.prompts_per_step, found.args.minibatches) == (2, 2)
    assert any("cuts groups apart" in sentence for sentence in found.unmatched)


def test_steps_are_counted_in_sampled_batches() -> None:
    """TRL's max_steps, save_steps, eval_steps and warm-up count updates, of which a step has M x K."""
    config = {"per_device_train_batch_size": 8, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 101}
    more = {"save_steps": 9, "eval_strategy": "steps", "warmup_steps": 10}
    args = args_of(**config, **more)
    assert (args.max_steps, args.save_every, args.eval_every, args.lr_warmup_steps) == (26, 3, 3, 3)
    assert args_of(max_steps=10, eval_strategy="steps", eval_steps=4).eval_every == 4


def test_epochs_count_rows_where_they_are_known() -> None:
    found = read_trl({"per_device_train_batch_size": 32}, rows=10)
    assert found.args.max_steps == 9  # 3 epochs of 4 + 4 + 2 rows
    assert not any("num_train_epochs" in sentence for sentence in found.unmatched)
    without = read_trl({"num_train_epochs": 2})
    assert without.args.max_steps == TrainArgs().max_steps
    assert any("num_train_epochs=2 counts rows" in sentence for sentence in without.unmatched)


@pytest.mark.parametrize(
    ("theirs", "schedule", "warm_up"),
    [
        ({"warmup_steps": 5}, "linear", 5),
        ({"warmup_steps": 0.25}, "linear", 10),
        ({"warmup_ratio": 0.1}, "linear", 4),
        ({"lr_scheduler_type": "cosine"}, "cosine", 0),
        ({"lr_scheduler_type": "constant", "warmup_steps": 5}, "constant", 0),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5}, "constant", 5),
    ],
)
def test_the_schedule_keeps_its_shape(theirs: dict[str, Any], schedule: str, warm_up: int) -> None:
    args = args_of(max_steps=40, learning_rate=1e-5, **theirs)
    assert (args.learning_rate, args.lr_schedule, args.lr_warmup_steps) == (1e-5, schedule, warm_up)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("cosine_with_restarts", "cosine"), ("polynomial", "linear"), ("inverse_sqrt", "linear")]
)
def test_a_schedule_that_is_not_built_in_is_reported_with_what_takes_its_place(theirs: str, ours: str) -> None:
    found = read_trl({"lr_scheduler_type": theirs})
    assert f"lr_scheduler_type={theirs}: here it is {ours}." in found.unmatched
    assert found.args.lr_schedule == ours


@pytest.mark.parametrize(
    ("theirs", "dtype", "reported"),
    [
        ({}, "bfloat16", False),
        ({"bf16": True}, "bfloat16", False),
        ({"bf16": False}, "float32", False),
        ({"fp16": True}, "float32", True),
    ],
)
def test_the_dtype_is_what_the_passes_have(theirs: dict[str, bool], dtype: str, reported: bool) -> None:
    found = read_trl(theirs)
    assert found.args.dtype == dtype
    assert any("fp16" in sentence for sentence in found.unmatched) == reported


def test_lengths_sampling_seed_folder_and_device_go_by_other_names() -> None:
    args = args_of(max_completion_length=64, temperature=0.7, top_p=0.9, top_k=20, seed=3, output_dir="x", use_cpu=True)
    assert (args.max_new_tokens, args.temperature, args.top_p, args.top_k) == (64, 0.7, 0.9, 20)
    assert (args.seed, args.output_dir, args.device) == (3, "x", "cpu")


def test_the_objective_is_read_as_like_trl_reads_it() -> None:
    theirs = {"loss_type": "dr_grpo", "epsilon_high": 0.28, "beta": 0.1, "scale_rewards": False}
    assert args_of(**theirs).objective == translate("trl", {**theirs, "scale_rewards": "none"}).objective
    found = read_trl({"loss_type": "bnpo", "gradient_accumulation_steps": 2})
    assert any(sentence.startswith("loss_type=bnpo with gradient_accumulation_steps=2") for sentence in found.unmatched)


@pytest.mark.parametrize(
    ("theirs", "save_every", "reported"),
    [
        ({"save_strategy": "no"}, 0, False),
        ({"save_strategy": "epoch"}, 5, False),
        ({"save_strategy": "best"}, 0, True),
        ({"save_steps": 0.1, "max_steps": 50}, 5, False),
    ],
)
def test_saving(theirs: dict[str, Any], save_every: int, reported: bool) -> None:
    found = read_trl(theirs, rows=5)
    assert found.args.save_every == save_every
    assert any("save_strategy" in sentence for sentence in found.unmatched) == reported


def test_weights_of_reward_functions_are_handed_on_beside_the_configuration() -> None:
    assert read_trl({}).reward_weights is None
    found = read_trl({"reward_weights": [1, 0.5]})
    assert found.reward_weights == (1.0, 0.5)
    assert said(found, "reward_weights") == []


@pytest.mark.parametrize(("weights", "lines"), [([1.0, 1.0], 0), ([1.0, 0.5], 1), (None, 0)])
def test_from_trl_says_where_weights_go_as_a_configuration_has_no_place_for_them(
    weights: list[float] | None, lines: int
) -> None:
    told: list[str] = []
    TrainArgs.from_trl({"reward_weights": weights}, say=told.append)
    assert [line for line in told if "Trainer(reward_weights=[1.0, 0.5])" in line] == [
        "note: reward_weights=[1.0, 0.5] are an argument of Trainer here: Trainer(reward_weights=[1.0, 0.5])."
    ] * lines
    assert sum("reward_weights" in line for line in told) == lines


@pytest.mark.parametrize("weights", [0.5, "1,2", [1.0, "0.5"], [1.0, float("nan")], [True]])
def test_weights_that_are_no_numbers_are_refused(weights: object) -> None:
    with pytest.raises(UsageError, match="The 'reward_weights' parameter of TRL's GRPOConfig must be a list of finite"):
        read_trl({"reward_weights": weights})


def test_weight_decay_and_an_endless_budget_are_reported() -> None:
    found = read_trl({"weight_decay": 0.1, "max_completion_length": None})
    assert found.args.weight_decay == 0.1
    assert found.args.max_new_tokens is None
    assert len([s for s in found.unmatched if "biases and norms" in s or "no limit" in s]) == 2


def test_a_dict_a_namespace_and_a_dataclass_say_the_same() -> None:
    class Kind(enum.Enum):
        COSINE = "cosine"

    @dataclasses.dataclass
    class Config:
        learning_rate: float = 2e-6
        num_generations: int = 4
        lr_scheduler_type: Kind = Kind.COSINE
        a_field_of_another_transformers: int = 3
        _hidden: int = 0

    theirs = {"learning_rate": 2e-6, "num_generations": 4, "lr_scheduler_type": "cosine"}
    expected = read_trl(theirs).args
    assert expected.lr_schedule == "cosine"
    assert read_trl(types.SimpleNamespace(**theirs)).args == expected
    assert read_trl(Config()).args == expected


def test_what_cannot_be_matched_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    args = TrainArgs.from_trl({"max_steps": 2, "min_p": 0.1})
    lines = capsys.readouterr().out.splitlines()
    assert "note: min_p=0.1: answers are sampled without it." in lines
    assert args.max_steps == 2
    kept: list[str] = []
    TrainArgs.from_trl({"max_steps": 2, "min_p": 0.1}, say=kept.append)
    assert kept == lines
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"num_generation": 8}, "'num_generation' is not a field of TRL's GRPOConfig (1.16.0). Did you mean 'num_gen"),
        ({"learning_rate": "fast"}, "'learning_rate' parameter of TRL's GRPOConfig must be a number"),
        ({"num_generations": 0}, "'num_generations' parameter of TRL's GRPOConfig must be at least 1"),
        ({"num_generations": 3}, "a divisor of the sampled batch, which has 8 answers"),
        ({"generation_batch_size": 12}, "a multiple of per_device_train_batch_size, 8"),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "a multiple of gradient_accumulation_steps"),
        ({"loss_type": "sapo"}, "'loss_type' parameter of --like trl must be one of grpo"),
    ],
)
def test_what_trl_would_refuse_or_nothing_stands_for_is_refused_in_a_sentence(
    theirs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_trl(theirs)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("config", [None, "grpo", 3, dict])
def test_what_is_no_configuration_is_refused(config: object) -> None:
    with pytest.raises(UsageError, match="a GRPOConfig, or a dict of its fields"):
        read_trl(config)


REAL = """
import dataclasses, json, sys
from trl import GRPOConfig
def plain(value):
    return value.value if hasattr(value, "value") else value
fields = {f.name: repr(plain(f.default if f.default is not dataclasses.MISSING else f.default_factory()))
          for f in dataclasses.fields(GRPOConfig)}
config = GRPOConfig(output_dir="x", use_cpu=True, num_generations=4, gradient_accumulation_steps=2, max_steps=6)
json.dump([fields, {name: plain(getattr(config, name)) for name in fields}], sys.stdout, default=repr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not PEER.exists(), reason="bench/peers.py makes the environment that TRL is in")
def test_the_list_is_that_of_the_real_one_and_a_real_one_is_read() -> None:
    done = subprocess.run([PEER, "-W", "ignore", "-c", REAL], capture_output=True, text=True, timeout=300, check=True)
    fields, values = json.loads(done.stdout[done.stdout.index("[{") :])
    assert {name: ast.literal_eval(default) for name, default in fields.items()} == THEIRS
    # As the object is, with all that its __post_init__ fills in, but for TRL's own classes.
    kind = dataclasses.make_dataclass("GRPOConfig", [(name, Any, None) for name in values])
    found = read_trl(kind(**values))
    assert (found.args.prompts_per_step, found.args.group_size, found.args.max_steps) == (4, 4, 6)
    assert found.args.device == "cpu"
    assert [sentence.split(" ")[0] for sentence in found.unmatched] == ["An"]


def test_the_limit_of_checkpoints_is_kept_and_none_keeps_all() -> None:
    """save_total_limit; TRL's default is no limit."""
    assert read_trl({"save_total_limit": 2}).args.keep_checkpoints == 2
    assert read_trl({}).args.keep_checkpoints == 0
