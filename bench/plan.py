"""What `upweight plan` estimates beside what a run takes: memory of real steps, each case in a process of its own.

Measured is the peak of resident memory (VmHWM) less what the process held once everything was imported; the estimate
is taken less the same. Every answer uses its budget, and every group carries a signal. The last columns are the share
of the matrix peak that passes and sampling reached, on one thread, by the processor's time: other work on the machine
does not count.

    python bench/plan.py
    python bench/plan.py --only small
    python bench/plan.py --quick
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed import machine
from speed.measure import table

from upweight.report.footprint import MB, Setup, footprint
from upweight.report.pace import pace
from upweight.report.shapes import SHAPES, Shape

MODELS: Mapping[str, Shape] = {
    "small": dataclasses.replace(
        SHAPES["tiny"], hidden=256, feed_forward=704, head_size=64, vocabulary=2048, tied=False
    ),
    "middle": dataclasses.replace(
        SHAPES["tiny"], hidden=512, layers=8, heads=8, key_heads=4, head_size=64, feed_forward=1408, vocabulary=8192
    ),
    "smollm2-135m": SHAPES["smollm2-135m"],
}
"""5 and 28 million random weights, and a real model."""

WORKER = Path(__file__).resolve().with_name("plan_worker.py")

GROUP = {"prompts": 8, "group_size": 8, "prompt_tokens": 64, "new_tokens": 64}

CASES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("small", GROUP),
    ("small", {**GROUP, "micro_batch_tokens": 1024, "has_reference": True}),
    ("middle", GROUP),
    ("middle", {**GROUP, "prompts": 4}),
    ("middle", {**GROUP, "prompts": 12, "micro_batch_tokens": 8192}),
    ("middle", {**GROUP, "micro_batch_tokens": 1024, "has_reference": True}),
    ("middle", {**GROUP, "checkpointing": True}),
    ("middle", {**GROUP, "dtype": "bfloat16"}),
    ("smollm2-135m", {"prompts": 4, "group_size": 4, "prompt_tokens": 32, "new_tokens": 32, "micro_batch_tokens": 512}),
    ("smollm2-135m", {"prompts": 4, "group_size": 8, "prompt_tokens": 64, "new_tokens": 64}),
)
"""A model, and what its setup has that is not the default."""

HEAD = ("model", "case", "passes", "measured MB", "estimate MB", "ratio", "passes reach", "sampling reaches")


def setup_of(model: str, case: Mapping[str, Any]) -> Setup:
    """The setup of a case: on the CPU, without a reference unless it says so."""
    return Setup(**{"shape": MODELS[model], "device": "cpu", "has_reference": False, **case})


def measured(model: str, setup: Setup, *, steps: int) -> dict[str, Any]:
    """Take real steps in a fresh process."""
    told = {"model": model, "steps": steps, **dataclasses.asdict(setup)}
    line = [sys.executable, str(WORKER), json.dumps(told)]
    done = subprocess.run(
        line,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=3600,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def peak_of(dtype: str, size: int, repeats: int = 5) -> float:
    """FLOP/s of the best of a few products of square matrices on one thread, by the processor's time."""
    import torch

    torch.set_num_threads(1)
    a, b = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
    best = 0.0
    for _ in range(repeats):
        started = time.process_time()
        torch.mm(a, b)
        best = max(best, 2.0 * size**3 / (time.process_time() - started))
    return best


def name_of(case: Mapping[str, Any]) -> str:
    """In words."""
    words = [f"{case['prompts']} x {case['group_size']} answers"]
    words += [f"{case['prompt_tokens']} + {case['new_tokens']} tokens"]
    words += [case["dtype"]] if "dtype" in case else []
    words += [f"passes of {case['micro_batch_tokens']:,}"] if "micro_batch_tokens" in case else []
    words += ["KL"] if case.get("has_reference") else []
    words += ["gradient checkpointing"] if case.get("checkpointing") else []
    return ", ".join(words)


def records(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One of each case, as it is measured."""
    cases = [(model, case) for model, case in CASES if options.only in (None, model)]
    for model, case in cases[: 1 if options.quick else None]:
        setup = setup_of(model, case)
        found = measured(model, setup, steps=options.steps)
        if setup.dtype not in options.peaks:
            options.peaks[setup.dtype] = peak_of(setup.dtype, 512 if options.quick else 2048)
        # At a peak of 1 and shares of 1, seconds are operations.
        flops = pace(setup, tflops=1e-12, share_of_passes=1.0, share_of_sampling=1.0)
        in_passes = found["seconds"] - found["sample_seconds"]
        yield {
            "model": model,
            "case": name_of(case),
            "passes": setup.passes,
            "measured": found["peak"] - found["base"],
            "estimate": footprint(setup).peak - found["base"],
            "base": found["base"],
            "passes_reach": (flops.training + flops.scoring) / in_passes / options.peaks[setup.dtype],
            "sampling_reaches": flops.sampling / found["sample_seconds"] / options.peaks[setup.dtype],
        }


def cells(record: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    return [
        *(str(record[name]) for name in ("model", "case", "passes")),
        *(f"{record[name] / MB:,.0f}" for name in ("measured", "estimate")),
        f"{record['estimate'] / record['measured']:.2f}",
        *(f"{record[name]:.0%}" for name in ("passes_reach", "sampling_reaches")),
    ]


def main() -> None:
    """Measure, and print a table or JSON."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", choices=tuple(MODELS), help="one model")
    made.add_argument("--steps", type=int, default=2, help="of a case; the first is not timed")
    made.add_argument("--json", action="store_true", help="print one object instead of a table")
    made.add_argument("--quick", action="store_true", help="the first case alone: to see that it runs")
    options = made.parse_args()
    options.peaks = {}
    found = []
    for record in records(options):
        found.append(record)
        print(" | ".join(cells(record)), file=sys.stderr, flush=True)  # a later case may be killed for its memory
    about = f"{machine.cpu_name()}, one thread"
    if options.json:
        print(json.dumps({"cpu": about, "matrix_peak": options.peaks, "steps": options.steps, "cases": found}))
        return
    peaks = ", ".join(f"{value / 1e12:.2f} TFLOP/s in {dtype}" for dtype, value in options.peaks.items())
    print(f"{about}, matrix peak {peaks}; imports take {found[0]['base'] / MB:,.0f} MB.\n")
    print(table(HEAD, [cells(record) for record in found]))


if __name__ == "__main__":
    main()
