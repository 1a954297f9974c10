"""Guards and dynamic sampling with real processes: one verdict, one decision, nobody waits."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.train.rank_jobs import REPOSITORY, done, environment, torchrun


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks made of every fault."""
    folder = tmp_path_factory.mktemp("faults")
    done("faults", 2, folder)
    return [json.loads((folder / f"faults-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["two", "full"])
@pytest.mark.parametrize("where", ["loss", "gradient", "weight", "forward"])
def test_what_is_not_finite_on_one_rank_moves_no_weight_on_any(said: list[Any], where: str, way: str) -> None:
    """Trial 22, on all ranks together, whole models and parts; every rank tells the same of it."""
    first, second = (told[f"{where}-{way}"] for told in said)
    assert first == second
    assert first["counts"] == [0, 1, 1, 0]
    assert first["untouched"]
    assert first["causes"] == (["the gradient is"] if where == "gradient" else ["the loss is"])
    assert first["module"] == ("model.layers.1.mlp.up_proj" if where in ("weight", "forward") else None)
    assert (first["parameters"] > 0) is (where != "loss")  # a constant was added to it, which has no gradient


@pytest.mark.slow
@pytest.mark.parametrize(("when_starved", "steps"), [("stop", 1), ("skip", 2), ("train", 2)])
def test_ranks_that_are_starved_come_to_one_decision(tmp_path: Path, when_starved: str, steps: int) -> None:
    """An untrained model is always wrong: every step is starved, no rank waits for another, and the run ends well."""
    folder = tmp_path / "run"
    flags = ["--preset", "dapo", "--max_steps", "2", "--prompts_per_step", "3", "--group_size", "2", "--sft_steps", "0"]
    more = ["--when_starved", when_starved, "--resample_budget", "2", "--output_dir", str(folder), "--device", "cpu"]
    process = subprocess.run(
        torchrun(["-m", "upweight", "train", *flags, *more, "--task", "arithmetic:digits=3"]),
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert process.returncode == 0, process.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["rounds"], row["sampled_groups"]) for row in rows] == [
        (step, 2, 6) for step in range(1, steps + 1)
    ]
    assert {row["updates"] for row in rows} == {0}
    assert process.stdout.count("budget of 2 rounds of sampling") == 1
    assert (folder / f"checkpoint-{steps}" / "model.safetensors").exists()
    rewards = json.loads((folder / "rewards.json").read_text())
    assert [entry["answers"] for entry in rewards.values()] == [6 * 2 * steps]
