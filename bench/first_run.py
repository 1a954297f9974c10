"""The first run, `upweight train` with its defaults, at this commit and at another: seconds and held-out accuracy.

Both sides run seed by seed in turn, each with an empty cache, so the supervised warm-up counts; seconds are those of
the whole command. The other commit is checked out beside and runs in this script's environment.

    python bench/first_run.py
    python bench/first_run.py --against HEAD~1 --seeds 0 --flags --max_steps 5
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from speed.machine import cpu_name, load
from speed.measure import Spread, ratio, table

REPOSITORY = Path(__file__).resolve().parent.parent
AGAINST = "80b8965"
"""The commit before prompts were shared."""

HEAD = ("seed", "side", "seconds", "accuracy before", "accuracy after")


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """A commit's files in a folder of their own, for as long as it lasts."""
    git = ("git", "-C", str(REPOSITORY), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def one_run(source: Path, seed: int, flags: list[str]) -> dict[str, Any]:
    """Train once; how long it took, and the first and last evaluation."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        line = [sys.executable, "-m", "upweight.cli.main", "train", "--seed", str(seed), "--output_dir", str(run)]
        environment = {**os.environ, "PYTHONPATH": str(source / "src"), "UPWEIGHT_CACHE": str(Path(scratch) / "cache")}
        started = time.perf_counter()
        done = subprocess.run([*line, *flags], cwd=source, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        if done.returncode != 0:
            raise SystemExit(f"the run of {source.name} with seed {seed} failed:\n{done.stderr[-2000:]}")
        looks = [json.loads(row) for row in (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()]
    return {"seed": seed, "seconds": seconds, "before": looks[0]["accuracy"], "after": looks[-1]["accuracy"]}


def options_of() -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--against", default=AGAINST, help="the other commit")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--json", action="store_true", help="print one object instead of a table")
    made.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of upweight train, for both; given last")
    options = made.parse_args()
    look = ["git", "-C", str(REPOSITORY), "rev-parse", "--quiet", "--verify", f"{options.against}^{{commit}}"]
    if subprocess.run(look, capture_output=True, check=False).returncode != 0:
        made.error(f"--against {options.against} is no commit here: fetch the history, or name one that git log shows")
    return options


def main() -> None:
    """Every run, then the table."""
    options = options_of()
    before = load()
    runs: dict[str, list[dict[str, Any]]] = {"here": [], options.against: []}
    with tempfile.TemporaryDirectory() as scratch, checked_out(options.against, Path(scratch) / "other") as other:
        for seed in options.seeds:
            for side, source in (("here", REPOSITORY), (options.against, other)):
                runs[side].append(one_run(source, seed, options.flags))
                print(f"{side}: {json.dumps(runs[side][-1])}", file=sys.stderr)
    here, there = ([run["seconds"] for run in found] for found in runs.values())
    times = ratio(there, here)
    if options.json:
        print(json.dumps({"machine": cpu_name(), "load": before, "runs": runs, "times": times.record()}))
        return
    rows = [
        [run["seed"], side, f"{run['seconds']:.0f}", f"{run['before']:.3f}", f"{run['after']:.3f}"]
        for pair in zip(*([(side, run) for run in found] for side, found in runs.items()), strict=True)
        for side, run in pair
    ]
    rows += [
        ["all", side, *(Spread.of([run[key] for run in found]).text(3) for key in ("seconds", "before", "after"))]
        for side, found in runs.items()
    ]
    print(table(HEAD, rows))
    print(f"\n{options.against} takes {times.text()} times as long. {cpu_name()}; load before the start: {before}")


if __name__ == "__main__":
    main()
