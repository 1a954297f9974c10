"""Whole runs of the small policy that are killed and go on, and what has to be equal then."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from upweight import TrainArgs, Trainer
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.train.launch import Launch
from upweight.train.run import TrainResult

ROWS = [{"prompt": f"say {n}", "answer": "x"} for n in range(10)]

TIMES = ("seconds", "sample_seconds", "tokens_per_second")


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


def noisy(completions: list[str], **_: Any) -> list[float]:
    """Draws on every global source of noise."""
    return [random.random() + float(np.random.rand()) + float(torch.rand(())) for _ in completions]


def starved(completions: list[str], **_: Any) -> list[float]:
    """A group has spread now and then."""
    return [float(text[:1].islower()) for text in completions]


class Runs:
    """Trains the small policy in folders under one path."""

    def __init__(self, path: Path, policy_of: Callable[..., Policy]) -> None:
        self.path = path
        self.policy_of = policy_of

    def __call__(
        self,
        name: str,
        resume: str | None = None,
        *,
        rows: Any = ROWS,
        reward: Any = letters,
        eval_rows: Any = None,
        override: bool = False,
        policy: Policy | None = None,
        noise: int | None = None,
        **fields: Any,
    ) -> TrainResult:
        """Four steps with a checkpoint after every second one; `resume` is taken below the path."""
        defaults: dict[str, Any] = {
            "output_dir": str(self.path / name),
            "max_steps": 4,
            "save_every": 2,
            "prompts_per_step": 4,
            "group_size": 4,
            "max_new_tokens": 6,
            "learning_rate": 1e-3,
            "lr_warmup_steps": 1,
            "objective": Objective(kl_coef=0.1),
        }
        chosen = self.policy_of() if policy is None else policy
        where = resume if resume in (None, "auto") else str(self.path / resume)
        launch = Launch(resume=where, resume_override=override)
        args = TrainArgs(**{**defaults, **fields})
        # A new process starts at another place than the one that was killed stood at.
        seed = noise or (5 if resume is None else 6)
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        return Trainer(chosen.model, reward, args, rows, eval_rows, chosen.tokenizer, launch=launch).train()

    def killed_after(self, step: int, whole: str, name: str) -> Path:
        """A copy of a whole run as a kill right after the checkpoint of a step, and a step later, would leave it."""
        shutil.copytree(self.path / whole, self.path / name)
        for checkpoint in (self.path / name).glob("checkpoint-*"):
            if int(checkpoint.name.partition("-")[2]) > step:
                shutil.rmtree(checkpoint)
        metrics = self.path / name / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join(lines[: step + 1]) + lines[-1][:20])
        return self.path / name


def rehashed(checkpoint: Path) -> None:
    """Make the manifest vouch for what is there now."""
    entries = json.loads((checkpoint / "manifest.json").read_text())
    for name in entries["files"]:
        data = (checkpoint / name).read_bytes()
        entries["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(entries))


def rewritten(checkpoint: Path, **fields: Any) -> None:
    """Change values of a checkpoint's state, its manifest included."""
    file = checkpoint / "training.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    rehashed(checkpoint)


def left_in(folder: Path) -> dict[str, Any]:
    """Everything below a folder: what a file holds, where a link leads, which folders there are."""
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
    }


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows_of(path)]


def state_of(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / "training.json").read_text())
    state["row"] = {k: v for k, v in state["row"].items() if k not in TIMES}
    return state


def assert_equal_runs(one: Path, other: Path, step: int) -> None:
    """Weights, moments, random states, positions, counters, rows, and what was sampled: bit for bit."""
    a, b = one / f"checkpoint-{step}", other / f"checkpoint-{step}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(a / name), load_file(b / name)
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert state_of(a) == state_of(b)
    assert without_times(one / "metrics.jsonl") == without_times(other / "metrics.jsonl")
    assert (one / "rewards.json").read_bytes() == (other / "rewards.json").read_bytes()
    for path in (one / "rollouts").iterdir():
        assert path.read_bytes() == (other / "rollouts" / path.name).read_bytes()
    assert len(list((one / "rollouts").iterdir())) == len(list((other / "rollouts").iterdir()))
