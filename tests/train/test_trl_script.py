"""A training script written for TRL runs with the import changed, and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

import upweight.trl
from upweight.objective.errors import UsageError
from upweight.trl import GRPOConfig, GRPOTrainer

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "from-trl.md"


def script() -> str:
    """The script of docs/from-trl.md, as the diff leaves it."""
    (diff,) = re.findall(r"```diff\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    return "".join(line[1:] + "\n" for line in diff.splitlines() if not line.startswith("-"))


def test_the_diff_changes_the_import_alone() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    changed = [line for line in diff.splitlines() if line.startswith(("-", "+"))]
    assert changed == [
        "-from trl import GRPOConfig, GRPOTrainer",
        "+from upweight.trl import GRPOConfig, GRPOTrainer",
    ]


def test_the_script_of_the_document_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both reward functions are called, and the sum of the two rises."""
    monkeypatch.chdir(tmp_path)
    text = script().replace("max_steps=60", "max_steps=3")
    assert text.count("max_steps=3,") == 1
    # The data set of the script comes from an extra; a list of rows has the same contents.
    text, found = re.subn(
        r"^from datasets import Dataset$", "class Dataset: from_list = list", text, flags=re.MULTILINE
    )
    assert found == 1
    space: dict[str, Any] = {}
    exec(compile(text, "script.py", "exec"), space)
    out = capsys.readouterr().out
    assert "reward=unique_letters+first_letter" in out
    assert "8 prompts x 8 answers = 64 answers and 1 updates a step" in out
    assert "step 3/3" in out
    assert (tmp_path / "grpo-letters" / "model.safetensors").exists()


ROWS = [{"prompt": "a"}, {"prompt": "b"}]


def zero(completions: list[str], **_: Any) -> list[float]:
    return [0.0 for _ in completions]


def test_epochs_are_counted_over_the_data_that_is_handed_in(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = GRPOTrainer("tiny", zero, GRPOConfig(num_train_epochs=5), ROWS)
    assert (trainer.args.max_steps, trainer.args.prompts_per_step, trainer.args.model) == (10, 1, "tiny")
    assert "num_train_epochs" not in capsys.readouterr().out


def test_without_a_configuration_trls_defaults_hold() -> None:
    args = GRPOTrainer("tiny", zero, train_dataset=ROWS).args
    assert (args.learning_rate, args.seed, args.max_new_tokens) == (1e-6, 42, 512)


def half(completions: list[str], **_: Any) -> list[float]:
    return [0.5 for _ in completions]


def test_weights_in_the_configuration_weigh_the_reward_functions(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = GRPOTrainer("tiny", [zero, half], GRPOConfig(reward_weights=[1.0, 0.2]), ROWS)
    assert trainer.args.reward == "zero+0.2*half"
    assert "reward_weights" not in capsys.readouterr().out
    with pytest.raises(
        UsageError, match=r"one for each of the 2 reward functions \(zero, half\). Got \(1.0,\) instead"
    ):
        GRPOTrainer("tiny", [zero, half], GRPOConfig(reward_weights=[1.0]), ROWS)


def test_a_wrong_setting_is_refused_where_it_is_made() -> None:
    with pytest.raises(UsageError, match="Did you mean 'num_generations'"):
        GRPOConfig(num_generation=4)


def test_an_argument_that_nothing_stands_for_is_refused_and_none_is_not() -> None:
    GRPOTrainer("tiny", zero, train_dataset=ROWS, callbacks=None)
    with pytest.raises(UsageError, match="GRPOTrainer's 'peft_config' has nothing here to stand for it"):
        GRPOTrainer("tiny", zero, train_dataset=ROWS, peft_config=object())


def test_train_takes_trls_argument_for_going_on(tmp_path: Path) -> None:
    """True: the newest checkpoint of output_dir, or a fresh start; a folder is that one. The model alone is copied."""
    config = {"per_device_train_batch_size": 8, "max_completion_length": 2, "learning_rate": 1e-3}
    run = tmp_path / "run"
    for steps, resume in ((1, True), (2, True), (3, str(run / "checkpoint-2"))):
        trainer = GRPOTrainer("tiny", zero, GRPOConfig(str(run), max_steps=steps, **config), ROWS)
        trainer.train(resume_from_checkpoint=resume)
        assert len((run / "metrics.jsonl").read_text().splitlines()) == steps
    trainer.save_model(str(tmp_path / "copy"))
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
    assert names.isdisjoint({"manifest.json", "training.json", "run.json", "optimizer.safetensors"})


def test_there_is_nothing_to_save_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="before train"):
        GRPOTrainer("tiny", zero, train_dataset=ROWS).save_model(str(tmp_path))


def test_the_module_offers_the_two_names_that_scripts_import() -> None:
    assert {"GRPOConfig", "GRPOTrainer"} <= set(vars(upweight.trl))
