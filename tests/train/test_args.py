"""The configuration from Python: flat names, a preset, and what a run wrote down."""

import json
from pathlib import Path

import pytest

from upweight import TrainArgs, Trainer
from upweight.objective.errors import UsageError
from upweight.objective.presets import PRESETS, preset
from upweight.tasks.registry import make_task
from upweight.train.resolve import resolve_args
from upweight.train.saving.begun import flat_config


@pytest.mark.parametrize("name", PRESETS)
def test_the_objective_is_the_row_of_the_preset(name: str) -> None:
    assert TrainArgs(preset=name).objective == preset(name) == TrainArgs.from_flags(preset=name).objective


def test_a_flag_overrides_its_preset_and_leaves_the_rest() -> None:
    objective = TrainArgs.from_flags(preset="dapo", clip_high=0.3, max_new_tokens=40).objective
    assert (objective.clip_high, objective.kl_coef, objective.overlong_buffer) == (0.3, 0.0, 8)


def test_an_unknown_flag_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'clip_hihg' is not a flag.*Did you mean 'clip_high'"):
        TrainArgs.from_flags(clip_hihg=0.3)


def test_what_a_run_wrote_down_gives_the_same_run(tmp_path: Path) -> None:
    """config.json is flat, and a --config file like any other."""
    from upweight.cli.train import read

    args = resolve_args(TrainArgs.from_flags(preset="gspo", seed=3), make_task("arithmetic", chat=False), "cpu")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(flat_config(args)))
    assert TrainArgs.from_flags(**json.loads(file.read_text())) == args
    assert read(["--config", str(file)])[0].args == args


@pytest.mark.parametrize(("parameters", "rate"), [(None, 5e-4), (1_000_000, 5e-4), (135_000_000, 1e-5)])
def test_the_learning_rate_follows_the_size_of_the_model(parameters: int | None, rate: float) -> None:
    """A checkpoint of tiny goes on at tiny's rate, whatever its name."""
    args = TrainArgs(model="tiny" if parameters is None else "runs/x/checkpoint-9")
    assert resolve_args(args, make_task("arithmetic", chat=False), "cpu", parameters).learning_rate == rate


def test_by_default_the_rate_rises_over_a_tenth_of_the_steps_and_then_falls_linearly() -> None:
    args = resolve_args(TrainArgs(max_steps=50), make_task("arithmetic", chat=False), "cpu")
    assert (args.lr_warmup_steps, args.lr_schedule, args.weight_decay) == (5, "linear", 0.0)


def test_chats_for_a_model_without_a_template_are_refused_before_it_is_made(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"}) + "\n")
    with pytest.raises(UsageError, match="no chat template"):
        Trainer(args=TrainArgs(data=str(file))).check()


def test_things_in_the_wrong_place_are_named() -> None:
    with pytest.raises(UsageError, match=r"'args' parameter of Trainer must be a TrainArgs"):
        Trainer("tiny", None, [{"prompt": "x"}])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'train_dataset' parameter.*data="):
        Trainer(train_dataset="train.jsonl")
