"""Two processes against one: seconds and memory of a GRPO step, and how far the gradients are apart.

One process has all threads, two have half of them each, so both sides have the same cores. `none` is data parallel,
`full` is FSDP2: each process holds a part of weights, gradients and moments, and a whole copy that samples.

    python bench/ranks.py
    python bench/ranks.py --dtype bfloat16 --kl 0.04
    python bench/ranks.py --quick
"""

import argparse
import concurrent.futures
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from speed.measure import Spread, megabytes, ratio, table
from speed.sides import Shown, Stage, parsed, parser, show, stage
from speed.worker import SideFailed, Turn, Worker, in_turn, seconds

SIDES = {"one process": (1, "none"), "two, none": (2, "none"), "two, full": (2, "full")}
"""Name -> processes and --shard."""

HEAD = (
    "dtype",
    "side",
    "seconds a step",
    "time, times one process's",
    "of it sampling",
    "peak MB of a process",
    "gradient, relative difference",
)


class Side:
    """Processes that take their steps together."""

    def __init__(self, made: Stage, world: int, shard: str, dtype: str, setup: Mapping[str, Any]) -> None:
        """Start them; they meet before they are ready."""
        threads = max(1, made.options.threads // world)
        port = free_port()
        self.pool = concurrent.futures.ThreadPoolExecutor(world)
        given = {"role": "step", "folder": made.folder, "threads": threads, "dtype": dtype, "shard": shard, **setup}

        def start(rank: int) -> Worker:
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
            meeting |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if sys.platform == "linux":  # by the name of the machine, gloo may find no interface at all
                meeting["GLOO_SOCKET_IFNAME"] = "lo"
            return Worker(sys.executable, "side_ours.py", given | {"variables": meeting}, threads=threads, own=True)

        self.workers = list(self.pool.map(start, range(world)))

    def ask(self, number: int) -> Turn:
        """A step of all; over when the last is done."""
        started = time.perf_counter()
        turns = list(self.pool.map(lambda worker: worker.ask({"step": number}), self.workers))
        said = turns[0].said | {"tokens": sum(turn.said["tokens"] for turn in turns)}
        return Turn(seconds=time.perf_counter() - started, said=said)

    def save(self, folder: Path) -> list[str]:
        """Write the gradient of the last step; the files that hold its parts."""
        files = [str(folder / f"{rank}.safetensors") for rank in range(len(self.workers))]
        folder.mkdir()
        list(self.pool.map(lambda pair: pair[0].ask({"save": pair[1]}), zip(self.workers, files, strict=True)))
        return files

    def close(self) -> None:
        """End them, all at once: they leave together."""
        list(self.pool.map(Worker.close, self.workers))
        self.pool.shutdown()


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def options_of() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--prompts", type=int, default=8, help="of a step")
    made.add_argument("--answers", type=int, default=8, help="to a prompt, an even number")
    made.add_argument("--new_tokens", type=int, default=64, help="of every answer")
    made.add_argument("--kl", type=float, default=0.0, help="coefficient of the KL")
    made.add_argument("--micro_batch_tokens", type=int, default=4096, help="of a pass")
    return parsed(made)


@contextlib.contextmanager
def started(made: Stage, dtype: str) -> Iterator[dict[str, Side]]:
    """Every side, loaded and waiting."""
    options = made.options
    names = ("prompts", "answers", "new_tokens", "micro_batch_tokens", "kl")
    setup = {name: getattr(options, name) for name in names}
    setup |= {"steps": options.steps + options.warmup, "informative": "all", "lr": 1e-6}
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, (world, shard) in SIDES.items():
            sides[name] = Side(made, world, shard, dtype, setup)
            stack.callback(sides[name].close)
        yield sides


def one_dtype(made: Stage, dtype: str) -> list[dict[str, Any]]:
    """Every side in turn; a record for each. The gradients are those of the first step, at equal weights."""
    options = made.options
    difference: dict[str, float] = {}
    with started(made, dtype) as sides, tempfile.TemporaryDirectory(prefix="upweight-bench-") as folder:
        first = {name: side.ask(0) for name, side in sides.items()}
        files = {name: side.save(Path(folder) / str(place)) for place, (name, side) in enumerate(sides.items())}
        [one] = files["one process"]
        asked = sides["one process"].workers[0]
        for name, (_, shard) in SIDES.items():
            parts = files[name] if shard == "full" else files[name][:1]
            difference[name] = asked.ask({"compare": one, "parts": parts}).said["difference"]
        turns, _ = in_turn(
            {name: (lambda number, side=side: side.ask(number + 1)) for name, side in sides.items()},
            steps=options.steps,
            warmup=options.warmup - 1,
        )
        peaks = {name: [worker.peak() for worker in side.workers] for name, side in sides.items()}
    check_equal({name: [first[name], *turns[name]] for name in sides}, options)
    return [
        {
            "dtype": dtype,
            "side": name,
            "seconds": Spread.of(seconds(turns[name])).record(),
            "ratio": ratio(seconds(turns[name]), seconds(turns["one process"])).record(),
            "sample_seconds": Spread.of([turn.said["sample_seconds"] for turn in turns[name]]).record(),
            "peak_bytes": None if None in peaks[name] else max(peak for peak in peaks[name] if peak is not None),
            "gradient_difference": difference[name],
        }
        for name in sides
    ]


def check_equal(turns: Mapping[str, list[Turn]], options: argparse.Namespace) -> None:
    """Refuse to compare unequal work.

    Raises:
        SideFailed: a side sampled another number of tokens in some step.
    """
    tokens = options.prompts * options.answers * options.new_tokens
    for name, side in turns.items():
        for turn in side:
            if turn.said["tokens"] != tokens:
                raise SideFailed(f"{name} sampled {turn.said['tokens']} tokens in a step instead of {tokens}")


def cells(record: dict[str, Any]) -> list[str]:
    """A row of the table."""
    return [
        record["dtype"],
        record["side"],
        Spread(**record["seconds"]).text(),
        Spread(**record["ratio"]).text(),
        Spread(**record["sample_seconds"]).text(),
        megabytes(record["peak_bytes"]),
        f"{record['gradient_difference']:.1e}",
    ]


def main() -> None:
    """Every dtype, then the table."""
    options = options_of()
    with stage(options) as made:
        records: list[dict[str, Any]] = []
        for dtype in options.dtype:
            records += one_dtype(made, dtype)
            made.say(table(HEAD, [cells(record) for record in records]))
        made.measure_peak()
        shape = f"{options.prompts} prompts x {options.answers} answers of {options.new_tokens} tokens"
        rows = [cells(record) for record in records]
        show(made, [Shown(title=f"A GRPO step of two processes: {shape}", head=HEAD, rows=rows, records=records)])


if __name__ == "__main__":
    main()
