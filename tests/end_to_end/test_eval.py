"""`upweight eval` on a run of the tiny model, before and after training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upweight.cli.main import main

STEPS = ("--prompts_per_step", "16", "--learning_rate", "5e-4", "--kl_coef", "0", "--max_steps", "40")
NO_STEP = ("--prompts_per_step", "16", "--learning_rate", "1e-12", "--max_steps", "1")

Evaluate = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Calls `upweight eval`: what it prints, and the same as JSON."""

    def call(*flags: str) -> tuple[str, dict[str, Any]]:
        assert main(["eval", "--device", "cpu", *flags]) == 0
        shown = capsys.readouterr().out
        assert main(["eval", "--device", "cpu", *flags, "--json"]) == 0
        return shown, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.slow
def test_a_trained_model_is_told_apart_from_the_one_it_started_from(
    train: Callable[..., Any], evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On all sums of two digits, most of which were trained on: some 0.14 and 0.36 of the sampled answers are right."""
    before, after = train(*NO_STEP, run=tmp_path / "before"), train(*STEPS, run=tmp_path / "after")
    assert (before.code, after.code) == (0, 0)
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(10) for b in range(10)]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [str(after.run / "checkpoint-40"), str(before.run / "checkpoint-1")]
    flags = ["--data", str(data), "--max_new_tokens", "6", "--samples", "4", "--seeds", "2"]
    shown, found = evaluate("--model", models[0], "--against", models[1], *flags)
    with capsys.disabled():
        print(f"\n{shown}")
    for side, name in zip(("model", "against"), models, strict=True):
        assert f"{name}: sums, 100 prompts, at most 6 tokens an answer" in shown
        greedy = found[side]["greedy"]
        assert f"greedy accuracy {greedy['accuracy']:.3f} [{greedy['low']:.3f}, {greedy['high']:.3f}]" in shown
        one, four = found[side]["pass_at_k"]
        assert (one["k"], four["k"]) == (1, 4)
        assert one["low"] < one["value"] < one["high"] <= four["high"]
        assert one["value"] < four["value"]
    sampled = next(row for row in found["comparison"] if row["measure"] == "pass@1")
    assert sampled["told_apart"]
    assert sampled["low"] > 0
    assert f"{models[0]} is better than {models[1]} on prompts like these." in shown


@pytest.mark.slow
def test_the_held_out_accuracy_of_a_run_is_what_eval_finds_for_its_checkpoint(
    train: Callable[..., Any], evaluate: Evaluate, tmp_path: Path
) -> None:
    task = ("--task", "arithmetic:digits=1,terms=3")
    run = train(*NO_STEP, *task, "--sft_steps", "200", run=tmp_path / "run").run
    _, found = evaluate("--model", str(run / "checkpoint-1"), *task, "--limit", "256")
    own = [json.loads(line) for line in (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()][-1]
    assert own["step"] == 1
    assert 0 < own["accuracy"] < 1
    assert {key: found["model"]["greedy"][key] for key in ("accuracy", "low", "high", "n", "unscored")} == {
        key: own[key] for key in ("accuracy", "low", "high", "n", "unscored")
    }
