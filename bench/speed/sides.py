"""What a measurement starts with: the model's folder, the machine's peak, the command line that all share."""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speed import machine
from speed.measure import table
from speed.worker import Worker
from speed.workload import Model

QUICK = {"steps": 2, "warmup": 1, "prompts": 2, "answers": 4, "new_tokens": 8, "model": "tiny"}
"""What --quick takes in place of the defaults: to see that a script runs. Its numbers say nothing."""

PEAK_SIZES = [1024, 2048, 4096]


def parser(text: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The flags that every script has.

    Args:
        text: the script's docstring.
        defaults: of `steps` and `warmup` where they are others.
    """
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="smollm2-135m", help="as upweight train takes it")
    made.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16"), help="bfloat16 too where AMX is there")
    made.add_argument("--steps", type=int, default=10, help="turns that count")
    made.add_argument("--warmup", type=int, default=2, help="turns before them, at least 1")
    made.add_argument("--threads", type=int, default=len(machine.usable_cores()), help="of every side")
    made.add_argument("--json", action="store_true", help="print one object instead of tables")
    made.add_argument("--quick", action="store_true", help="tiny, two turns: to see that it runs")
    made.set_defaults(**defaults)
    return made


def parsed(made: argparse.ArgumentParser, line: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked, with --quick worked in and `dtype` a list."""
    options = made.parse_args(line)
    if options.quick:
        for name, value in QUICK.items():
            if hasattr(options, name):
                setattr(options, name, value)
    if options.steps < 1 or options.warmup < 1 or options.threads < 1:
        made.error("--steps, --warmup and --threads take at least 1")
    if options.dtype is None:
        options.dtype = ["float32", "bfloat16"] if machine.has_amx() and not options.quick else ["float32"]
    return options


@dataclass(kw_only=True)
class Stage:
    """What a run of a script has in common."""

    options: argparse.Namespace
    """Of the command line."""

    folder: str
    """Where every side loads the model from."""

    model: Model
    """Its weights, counted."""

    preparer: Worker
    """The process that wrote the folder: it encodes, and measures the peak."""

    peaks: dict[str, float] = field(default_factory=dict)
    """dtype -> the machine's matrix peak, FLOP/s."""

    load: float | None = None
    """Processes that wanted to run in the minute before."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts."""
        ids: list[list[int]] = self.preparer.ask({"texts": list(texts)}).said["ids"]
        return ids

    def measure_peak(self) -> None:
        """Measure the matrix peak of each dtype, again; the best one counts."""
        for dtype in self.options.dtype:
            sizes = [256] if self.options.quick else PEAK_SIZES
            flops = self.preparer.ask({"dtype": dtype, "sizes": sizes}).said["flops"]
            self.peaks[dtype] = max(flops, self.peaks.get(dtype, 0.0))

    def ours(self, role: str, dtype: str, **setup: Any) -> Worker:
        """Our side."""
        return self.side("side_ours.py", role=role, dtype=dtype, **setup)

    def side(self, script: str, *, python: Path | None = None, **setup: Any) -> Worker:
        """A side in this environment, or a peer in its own."""
        given = {"folder": self.folder, "threads": self.options.threads, **setup}
        return Worker(python or sys.executable, script, given, threads=self.options.threads, own=python is None)

    def share(self, flops: float, seconds: float, dtype: str) -> float:
        """Of the matrix peak, in [0, 1]."""
        return flops / seconds / self.peaks[dtype]

    def say(self, text: str) -> None:
        """Progress, and what is left out, beside the numbers."""
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def stage(options: argparse.Namespace) -> Iterator[Stage]:
    """The folder and the peak, measured before the turns; measure it again behind them."""
    load = machine.load()
    with tempfile.TemporaryDirectory(prefix="upweight-bench-") as folder:
        setup = {"role": "prepare", "model": options.model, "folder": folder}
        with Worker(sys.executable, "side_ours.py", setup, threads=options.threads, own=True) as preparer:
            made = Stage(options=options, folder=folder, model=Model(**preparer.ready), preparer=preparer, load=load)
            made.measure_peak()
            yield made


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One table, and the numbers behind it."""

    title: str
    """What was measured, in a line."""

    head: Sequence[str]
    """Of the columns."""

    rows: Sequence[Sequence[object]]
    """Cells."""

    records: Sequence[object]
    """For JSON."""


def show(made: Stage, tables: Sequence[Shown]) -> None:
    """Print what a script measured: the machine and the tables, or one JSON object of both."""
    options = made.options
    cpu = machine.cpu_name()
    if options.json:
        about = {"cpu": cpu, "matrix_peak": made.peaks, "load_before": made.load}
        about |= {name: getattr(options, name) for name in ("threads", "model", "steps", "warmup")}
        print(json.dumps(about | {"tables": {shown.title: shown.records for shown in tables}}))
        return
    peaks = ", ".join(f"{value / 1e12:.2f} TFLOP/s in {dtype}" for dtype, value in made.peaks.items())
    print(f"\n{cpu}, threads: {options.threads}, matrix peak {peaks}. {options.model}, ", end="")
    print(f"{options.steps} turns after {options.warmup} of warm-up; median [smallest, largest].")
    if made.load is not None and made.load > 0.5:
        print(f"**Other work was running: load {made.load:.1f} in the minute before.**")
    for shown in tables:
        print(f"\n{shown.title}\n\n{table(shown.head, shown.rows)}", flush=True)
