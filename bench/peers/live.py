"""Environments for the other trainers, their drivers, and the comparison with ours."""

import functools
import json
import os
import subprocess
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

from peers.cases import batches, requests
from peers.ours import Outcome, ours
from upweight.objective.dialects import Translation

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / ".peers"
"""Where the environments live; git ignores it."""
RECORDED = HERE.parent.parent / "tests" / "spec" / "peers"
"""What the trainers answered, for tests that have no such environment."""

TORCH = "torch==2.13.*"
REQUIREMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "trl": ((TORCH, "trl==1.16.0"), ""),
    "verl": (
        (
            TORCH,
            "tensordict==0.10.*",
            "ray",
            "omegaconf",
            "hydra-core",
            "codetiming",
            "transformers",
            "datasets",
            "pillow",
        ),
        "verl==0.9.1",
    ),
    "openrlhf": ((TORCH, "deepspeed==0.19.6"), "openrlhf==0.11.2"),
}
"""Trainer -> packages with their dependencies, and one without: its own pull in what only a GPU or a cluster needs."""
TRAINERS = tuple(REQUIREMENTS)


class NoEnvironment(RuntimeError):
    """A trainer's environment could not be made: no package index can be reached, or it lacks a package."""


def environment(trainer: str, folder: Path = FOLDER) -> Path:
    """The python of a trainer's environment under `folder`, made where it is not there yet.

    Raises:
        NoEnvironment: an installation failed; the message ends with what pip said last.
    """
    home = folder / trainer
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages, bare = REQUIREMENTS[trainer]
    wanted = "\n".join((*packages, bare))
    stamp = home / "installed.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    venv.create(home, with_pip=True, clear=True)
    for names in (packages, ("--no-deps", bare)):
        if names[-1]:
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *names]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoEnvironment(f"{trainer}: {done.stderr.strip().splitlines()[-1]}")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def ask(trainer: str, folder: Path = FOLDER) -> dict:
    """Their version, and their loss, gradient and advantages for each request, computed by their own code."""
    python = environment(trainer, folder)
    with tempfile.TemporaryDirectory() as scratch:
        request, answer = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        request.write_text(json.dumps({"batches": batches(), "cases": requests(trainer)}), encoding="utf-8")
        # Not ours: a PYTHONPATH would put this checkout's packages before theirs.
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        command = [python, HERE / f"drive_{trainer}.py", request, answer]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=scratch)
        if done.returncode:
            raise RuntimeError(f"{trainer}'s driver failed:\n{done.stderr[-2000:]}")
        return json.loads(answer.read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One request, answered by both."""

    request: dict
    theirs: Outcome
    ours: Outcome
    translation: Translation

    @property
    def in_loss(self) -> float:
        """Difference of the losses."""
        return abs(self.theirs.loss - self.ours.loss)

    @property
    def in_gradient(self) -> float:
        """Largest difference of the gradient of one token's log-probability."""
        rows = zip(self.theirs.gradient, self.ours.gradient, strict=True)
        return max(abs(x - y) for theirs, ours in rows for x, y in zip(theirs, ours, strict=True))

    @property
    def in_advantages(self) -> float:
        """Largest difference of an answer's advantage."""
        return max(abs(x - y) for x, y in zip(self.theirs.advantages, self.ours.advantages, strict=True))

    @property
    def difference(self) -> float:
        """What has to be small: of the gradient, and of the loss unless theirs reports another estimator's value."""
        return max(self.in_gradient, self.in_loss if self.request["same_value"] else 0.0)


@functools.cache
def compare(trainer: str, folder: Path = FOLDER) -> tuple[str, list[Comparison]]:
    """Their version, and every request answered by both, theirs live."""
    answer = ask(trainer, folder)
    return answer["version"], compared(trainer, batches(), requests(trainer), answer["results"])


def compared(trainer: str, on: list[dict], asked: list[dict], results: dict) -> list[Comparison]:
    """Our number beside each of theirs."""
    made = []
    for request in asked:
        keywords = {key: request[key] for key in ("settings", "group_size", "micro_batches", "minibatches")}
        mine, translation = ours(trainer, batch=on[request["batch"]], **keywords)
        theirs = Outcome(**results[request["id"]])
        made.append(Comparison(request=request, theirs=theirs, ours=mine, translation=translation))
    return made


def record(trainer: str) -> Path:
    """Ask a trainer anew and write down what it answered, rounded to ten digits."""
    answer = ask(trainer)
    results = {
        name: {
            "loss": _short(result["loss"]),
            "gradient": [[_short(value) for value in row] for row in result["gradient"]],
            "advantages": [_short(value) for value in result["advantages"]],
        }
        for name, result in answer["results"].items()
    }
    RECORDED.mkdir(parents=True, exist_ok=True)
    path = RECORDED / f"{trainer}.json"
    lines = [f"  {json.dumps(name)}: {json.dumps(result, separators=(',', ':'))}" for name, result in results.items()]
    head = {"trainer": trainer, "version": answer["version"]}
    parts = {"batches": batches(), "requests": requests(trainer)}
    body = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in (head | parts).items()
    )
    path.write_text("{\n" + body + ',\n"results": {\n' + ",\n".join(lines) + "\n}\n}\n", encoding="utf-8")
    return path


@functools.cache
def recorded(trainer: str) -> tuple[str, list[Comparison]]:
    """As `compare`, with what was written down."""
    stored = json.loads((RECORDED / f"{trainer}.json").read_text(encoding="utf-8"))
    return stored["version"], compared(trainer, stored["batches"], stored["requests"], stored["results"])


def _short(value: float) -> float:
    return float(f"{value:.10g}")
