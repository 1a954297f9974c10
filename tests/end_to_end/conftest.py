"""`upweight train` as a user calls it: on the tiny model, two steps, into a folder of its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from upweight.cli.main import main

# One digit and ten steps of warm-up: a third of the answers are right, so that nearly every group has something to
# teach, and a step trains also where no KL does.
SHORT = [
    *("--model tiny --max_steps 2 --prompts_per_step 8 --device cpu".split()),  # noqa: SIM905
    *("--task", "arithmetic:digits=1", "--sft_steps", "10"),
]


@dataclass(frozen=True)
class Outcome:
    """How a call ended."""

    code: int
    out: str
    err: str
    run: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl."""
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        config: dict[str, Any] = json.loads((self.run / "config.json").read_text(encoding="utf-8"))
        return config


@pytest.fixture
def train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Calls `upweight train`; later flags win over the short ones."""

    def call(*flags: str, short: bool = True, run: Path | None = None, output_dir: bool = True) -> Outcome:
        folder = tmp_path / "run" if run is None else run
        where = ["--output_dir", str(folder)] if output_dir else []
        code = main(["train", *(SHORT if short else []), *where, *flags])
        captured = capsys.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err, run=folder)

    return call
