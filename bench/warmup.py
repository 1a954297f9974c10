"""How right a fresh tiny model is at each loss of its supervised warm-up: where to hand over to reinforcement learning.

Trains past the default's end and prints, every few steps, the mean loss of the last steps and the greedy accuracy on
held-out two-digit additions.

    python bench/warmup.py
    python bench/warmup.py --seeds 0 1 2 --every 40
"""

import argparse
import dataclasses

from upweight.evaluate.accuracy import greedy_accuracy
from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.policy.warmup import SMOOTHED, TINY_WARM_UP, warm_up
from upweight.rewards.runner import make_runner
from upweight.rollout.engine import LocalEngine
from upweight.tasks.registry import make_task
from upweight.train.run import worked_examples


def one_seed(seed: int, steps: int, every: int) -> list[tuple[int, float, float]]:
    """(step, mean loss of the last steps, greedy accuracy) along one warm-up."""
    task, runner = make_task("arithmetic", chat=False), make_runner("exact")
    policy: Policy = load_policy("tiny", seed=seed)
    engine = LocalEngine(policy)
    losses: list[float] = []
    rows: list[tuple[int, float, float]] = []

    def look(step: int, loss: float) -> None:
        losses.append(loss)
        if step % every == 0:
            accuracy = greedy_accuracy(engine, policy.encode, policy.decode, task.held_out, runner, task.max_new_tokens)
            rows.append((step, sum(losses[-SMOOTHED:]) / len(losses[-SMOOTHED:]), accuracy.value))

    plan = dataclasses.replace(TINY_WARM_UP, steps=steps, seed=seed, stop_below=0.0)
    warm_up(policy, worked_examples(task, policy, seed), plan, progress=look)
    return rows


def main() -> None:
    """Print a table, a row a step, a pair of columns a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--every", type=int, default=20)
    options = parser.parse_args()
    columns = [one_seed(seed, options.steps, options.every) for seed in options.seeds]
    print("| step | " + " | ".join(f"loss, seed {seed} | accuracy" for seed in options.seeds) + " |")
    print("|" + "---|" * (1 + 2 * len(columns)))
    for row in zip(*columns, strict=True):
        print(f"| {row[0][0]} | " + " | ".join(f"{loss:.2f} | {accuracy:.2f}" for _, loss, accuracy in row) + " |")


if __name__ == "__main__":
    main()
