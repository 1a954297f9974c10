"""Train the tiny model with every preset on the same budget, several seeds each, and print the table.

Each run is `upweight train --preset NAME --seed S` for the same number of steps, with several updates per batch so
that the ratios matter. The runs of one seed start from the same warmed-up model and see the same problems.

    python bench/presets.py                       # the table of docs/experiments.md
    python bench/presets.py --steps 20 --seeds 0  # a quick look
"""

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path

from upweight import TrainArgs, Trainer

PRESETS = ("grpo", "grpo-paper", "dr-grpo", "dapo", "gspo", "cispo")

LEARNING_RATE = 3e-4
"""Below tiny's default: there are several updates a step."""

LAST = 10
"""The tail of a run that its reward, entropy and clipped share are averaged over, in steps."""


def one_run(preset: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Train once; what the table needs of it. Seconds are those of the steps: only the first run makes the warm-up."""
    args = TrainArgs(
        preset=preset,
        seed=seed,
        max_steps=options.steps,
        minibatches=options.minibatches,
        learning_rate=LEARNING_RATE,
        output_dir=str(folder / f"{preset}-{seed}"),
    )
    result = Trainer(args=args).train()
    if result.before is None or result.after is None:
        raise SystemExit("the task holds nothing out, so there is nothing to compare")
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "before": result.before.value,
        "after": result.after.value,
        **{name: mean_of_tail(rows, name) for name in ("reward", "entropy", "clipfrac")},
        "tokens": float(sum(row["tokens"] for row in rows)),
        "seconds": sum(row["seconds"] for row in rows),
    }


def mean_of_tail(rows: list[dict[str, float | None]], name: str) -> float:
    """Mean over the last steps that have the number: one that trained on nothing has none."""
    values = [value for row in rows[-LAST:] if (value := row[name]) is not None]
    return statistics.mean(values) if values else math.nan


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation over the seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.3f} +- {deviation:.3f}"


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    """Markdown, a row a preset."""
    head = ("preset", "before", "after", "after, each seed", "reward, last 10", "entropy", "clipfrac", "tokens", "s")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for preset, results in runs.items():
        columns = {key: [result[key] for result in results] for key in results[0]}
        cells = (
            f"`{preset}`",
            spread(columns["before"]),
            spread(columns["after"]),
            ", ".join(f"{value:.3f}" for value in columns["after"]),
            spread(columns["reward"]),
            spread(columns["entropy"]),
            spread(columns["clipfrac"]),
            f"{statistics.mean(columns['tokens']):,.0f}",
            f"{statistics.mean(columns['seconds']):.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything, print the table and, with --json, the numbers behind it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps of each run")
    parser.add_argument("--minibatches", type=int, default=4, help="updates per batch")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=PRESETS)
    parser.add_argument("--json", type=Path, help="write every run's numbers here")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {preset: [] for preset in options.presets}
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            for preset in options.presets:
                runs[preset].append(one_run(preset, seed, options, Path(folder)))
    if options.json is not None:
        options.json.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    print(table(runs))


if __name__ == "__main__":
    main()
