"""Every preset and every row of the flag table runs exactly as written."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upweight.objective.presets import PRESETS

Train = Callable[..., Any]

FLAG_TABLE = {
    "GRPO, as this repo always ran it": "--adv_norm std --loss_agg token-mean",
    "GRPO, paper formula": "--loss_agg seq-mean-token-mean",
    "Dr. GRPO": "--adv_norm none --loss_agg seq-mean-token-sum-norm",
    "DAPO": "--clip_high 0.28 --filter_groups true --kl_coef 0",
    "GSPO": "--ratio_level sequence --clip 0.0003 --clip_high 0.0004",
    "Dr. GRPO plus clip-higher": "--adv_norm none --loss_agg seq-mean-token-sum-norm --clip_high 0.28",
}

OTHERS = [
    "--ratio-level sequence --kl-coef 0",
    "--correction tis --correction_level sequence --minibatches 2",
    "--correction mis --masked_tokens valid --epochs_per_batch 2",
    "--kl_place reward --kl_coef 0.1",
    "--kl_grad reverse --kl_estimator k1",
    "--baseline leave-one-out --adv_norm batch --surrogate none",
    "--loss_agg group-mean-token-mean --dual_clip 3",
    "--old_logprobs sampler --truncated mask --overlong_buffer 2",
    "--temperature 0.7 --top_k 20 --top_p 0.9 --minibatches 3 --epochs_per_batch 2",
    "--lr_schedule cosine --weight_decay 0.1 --micro_batch_tokens 64",
    "--task arithmetic:digits=1,operators=+- --eval_every 1 --save_every 1",
    "--dtype bfloat16",
]


def is_sound(outcome: Any, *, trains: bool = True) -> None:
    """It ended well, every number of its two rows is one, and both steps trained on something."""
    assert (outcome.code, outcome.err) == (0, "")
    assert [row["step"] for row in outcome.metrics] == [1, 2]
    for row in outcome.metrics:
        assert [k for k, v in row.items() if v is not None and not math.isfinite(v)] == []
        assert row["loss"] is not None
        assert row["mismatch"] is None or row["mismatch"] < (0.1 if outcome.config["dtype"] == "bfloat16" else 1e-4)
        assert row["updates"] + row["skipped_updates"] >= 1
        if trains:
            assert row["informative"] > 0
            assert row["updates"] >= 1
            assert row["grad_norm"] > 0
    assert (outcome.run / "checkpoint-2" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [*FLAG_TABLE.values(), *OTHERS])
def test_flags_run_as_written(train: Train, flags: str) -> None:
    """The table of what the product was asked to be, and the choices it does not name."""
    outcome = train(*flags.split())
    is_sound(outcome)
    words = flags.split()
    for flag, value in zip(words[::2], words[1::2], strict=True):
        shown = outcome.config[flag.removeprefix("--").replace("-", "_")]
        assert str(shown).lower() == value.lower() or shown == pytest.approx(float(value))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "ppo"])
def test_presets_run(train: Train, name: str) -> None:
    """An algorithm is a row; its fields arrive in config.json."""
    outcome = train("--preset", name)
    is_sound(outcome)
    assert {key: outcome.config[key] for key in PRESETS[name]} == PRESETS[name]
    assert outcome.config["overlong_buffer"] == (outcome.config["max_new_tokens"] // 5 if name == "dapo" else 0)
    assert all((row["kl"] is None) == (outcome.config["kl_coef"] == 0) for row in outcome.metrics)


@pytest.mark.slow
def test_a_jsonl_file_is_trained_on(train: Train, tmp_path: Path) -> None:
    """Rows with a prompt and an answer, held-out rows in a file of their own."""
    data, held_out = tmp_path / "data.jsonl", tmp_path / "held_out.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": n + 1}) + "\n" for n in range(5)))
    held_out.write_text(json.dumps({"prompt": "7+1=", "answer": 8}) + "\n")
    outcome = train(
        *("--data", str(data), "--eval_data", str(held_out)),
        *("--sft_steps", "0", "--max_new_tokens", "6", "--prompts_per_step", "3"),
    )
    is_sound(outcome, trains=False)  # without a warm-up nothing is right
    rollouts = [json.loads(line) for path in outcome.run.glob("rollouts/*") for line in path.read_text().splitlines()]
    assert {row["row"] for row in rollouts} == set(range(5))
    assert "on 1 problems" in outcome.out


@pytest.mark.slow
def test_a_file_of_flags_arrives_in_the_run(train: Train, tmp_path: Path) -> None:
    """B43: what the TOML file says is in config.json and in the loss; the command line wins over it."""
    file = tmp_path / "run.toml"
    file.write_text('preset = "dr-grpo"\nlr_warmup_steps = 0\nclip_high = 0.5\n[objective]\nkl_coef = 0.5\n')
    outcome = train("--config", str(file), "--clip_high", "0.4", "--learning_rate", "0.01", "--lr_schedule", "constant")
    config = outcome.config
    assert (config["loss_agg"], config["kl_coef"], config["clip_high"]) == ("seq-mean-token-sum-norm", 0.5, 0.4)
    assert [row["lr"] for row in outcome.metrics] == [0.01, 0.01]
    assert outcome.metrics[1]["kl"] > 0


@pytest.mark.slow
def test_the_same_call_gives_the_same_run(train: Train, tmp_path: Path) -> None:
    """Every number but the times; a cached warm-up and a fresh one count as the same."""
    timed = ("seconds", "sample_seconds", "tokens_per_second")
    tables = []
    for name, flags in (("a", ()), ("b", ()), ("c", ("--micro_batch_tokens", "100")), ("d", ("--seed", "1"))):
        outcome = train("--minibatches", "2", *flags, run=tmp_path / name)
        tables.append([{k: v for k, v in row.items() if k not in timed} for row in outcome.metrics])
    assert tables[0] == tables[1]
    assert tables[0] != tables[3]
    for row, recut in zip(tables[0], tables[2], strict=True):
        assert recut["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3)
        assert recut["reward"] == row["reward"]
