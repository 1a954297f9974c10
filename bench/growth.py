"""How a step's time and memory grow with its tokens, at a fixed budget of a pass; ours alone.

A point is a number of prompts with eight answers of 64 tokens each, in a process of its own, so that its peak memory
is its own. The slope is that of log time over log tokens: 1 is in proportion.

    python bench/growth.py
    python bench/growth.py --tokens 1024 4096 16384 --dtype bfloat16
    python bench/growth.py --quick
"""

import argparse
from typing import Any

from speed.measure import Spread, growth, megabytes
from speed.sides import Shown, Stage, parsed, parser, show, stage
from speed.worker import in_turn, seconds

HEAD = (
    "dtype",
    "tokens a step",
    "seconds a step",
    "of them sampling",
    "tokens/s",
    "slope from the row above",
    "peak MB",
)


def options_of() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--tokens", nargs="+", type=int, default=[1024, 2048, 4096, 8192, 16384, 32768])
    made.add_argument("--answers", type=int, default=8, help="to a prompt")
    made.add_argument("--new_tokens", type=int, default=64, help="of every answer")
    made.add_argument("--micro_batch_tokens", type=int, default=4096, help="of a pass, fixed")
    made.add_argument("--kl", type=float, default=0.0, help="coefficient of the KL")
    options = parsed(made)
    group = options.answers * options.new_tokens
    if options.quick:
        options.tokens, options.micro_batch_tokens = [2 * group, 4 * group], 4 * group
    if any(tokens < group or tokens % group for tokens in options.tokens) or len(set(options.tokens)) < 2:
        made.error(f"--tokens takes at least two different multiples of {group}, the tokens of a group")
    return options


def one_point(made: Stage, dtype: str, tokens: int) -> dict[str, Any]:
    """Steps of one size."""
    options = made.options
    setup = {
        "prompts": tokens // (options.answers * options.new_tokens),
        "steps": options.steps + options.warmup,
        "informative": "all",
        "lr": 1e-6,
        **{name: getattr(options, name) for name in ("answers", "new_tokens", "micro_batch_tokens", "kl")},
    }
    with made.ours("step", dtype, **setup) as worker:
        ask = {"upweight": lambda number: worker.ask({"step": number})}
        turns = in_turn(ask, steps=options.steps, warmup=options.warmup)[0]["upweight"]
        peak = worker.peak()
    return {
        "dtype": dtype,
        "tokens": tokens,
        "seconds": Spread.of(seconds(turns)).record(),
        "sample_seconds": Spread.of([turn.said["sample_seconds"] for turn in turns]).record(),
        "tokens_per_second": Spread.of([tokens / turn.seconds for turn in turns]).record(),
        "peak_bytes": peak,
    }


def slope(points: list[dict[str, Any]]) -> float:
    """Of log median time over log tokens."""
    return growth([point["tokens"] for point in points], [point["seconds"]["median"] for point in points])


def cells(points: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of the table, a dtype's points one after the other, its slope over all of them behind."""
    made = [
        [
            point["dtype"],
            f"{point['tokens']:,}",
            Spread(**point["seconds"]).text(),
            f"{point['sample_seconds']['median']:.2f}",
            f"{point['tokens_per_second']['median']:,.0f}",
            f"{slope(points[place - 1 : place + 1]):.2f}" if place else "-",
            megabytes(point["peak_bytes"]),
        ]
        for place, point in enumerate(points)
    ]
    return [*made, [points[0]["dtype"], "all", "", "", "", f"{slope(points):.2f}", ""]]


def main() -> None:
    """Every point, then the table."""
    options = options_of()
    with stage(options) as made:
        records, rows = [], []
        for dtype in options.dtype:
            points = []
            for tokens in sorted(set(options.tokens)):
                points.append(one_point(made, dtype, tokens))
                made.say(f"{dtype}, {tokens} tokens: {Spread(**points[-1]['seconds']).text()} s")
            rows += cells(points)
            records.append({"dtype": dtype, "slope": slope(points), "points": points})
        title = f"Growth of a step, passes of at most {options.micro_batch_tokens:,} tokens"
        show(made, [Shown(title=title, head=HEAD, rows=rows, records=records)])


if __name__ == "__main__":
    main()
