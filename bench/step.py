"""Seconds, memory and tokens/s of a whole GRPO step - sample, score, train - ours and TRL's, in turn in one run.

Both sides start from the same folder, take the same prompts in the same order, the same rewards, learning rate and
number of tokens; see bench/README.md. TRL runs in `.peers/trl`, which `make bench-peers` sets up; without it our side
runs alone.

    python bench/step.py
    python bench/step.py --informative quarter --kl 0 --dtype bfloat16
    python bench/step.py --peer_batch 8 --peer_checkpointing   # TRL's own defaults
    python bench/step.py --quick
"""

import argparse
import contextlib
import itertools
from typing import Any

from speed.environments import advice, python_of
from speed.measure import Spread, megabytes, ratio, table
from speed.sides import Shown, Stage, parsed, parser, show, stage
from speed.worker import SideFailed, Turn, Worker, in_turn, seconds
from speed.workload import ONE_IN, prompt_texts, step_flops

HEAD = (
    "dtype",
    "informative groups",
    "KL",
    "side",
    "seconds a step",
    "time, times ours",
    "tokens/s",
    "of the matrix peak",
    "peak MB",
    "memory, times ours",
    "start-up s",
    "first step s",
)


def options_of() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--prompts", type=int, default=8, help="of a step")
    made.add_argument("--answers", type=int, default=8, help="to a prompt, an even number")
    made.add_argument("--new_tokens", type=int, default=64, help="of every answer")
    made.add_argument("--informative", nargs="+", choices=sorted(ONE_IN), default=["all", "quarter"])
    made.add_argument("--kl", nargs="+", type=float, default=[0.0, 0.04], help="coefficients of the KL")
    made.add_argument("--micro_batch_tokens", type=int, default=4096, help="of a pass of ours")
    made.add_argument("--peer_batch", type=int, help="answers of a pass of TRL's; all of a step where not given")
    made.add_argument("--peer_checkpointing", action="store_true", help="TRL with gradient checkpointing, its default")
    made.add_argument(
        "--peer_weights",
        choices=("float32", "bfloat16"),
        default="bfloat16",
        help="TRL's weights in a bfloat16 run: bfloat16, or float32 under autocast",
    )
    made.add_argument("--alone", action="store_true", help="leave TRL out")
    options = parsed(made)
    if options.answers % 2:
        made.error("--answers takes an even number: every other one is right")
    answers = options.prompts * options.answers
    options.peer_batch = options.peer_batch or answers
    if answers % options.peer_batch or options.peer_batch % options.answers:
        made.error("--peer_batch must divide the answers of a step and hold whole groups")
    return options


def ask(worker: Worker, number: int) -> Turn:
    """A step of one side."""
    return worker.ask({"step": number})


def one_case(made: Stage, dtype: str, informative: str, kl: float) -> list[dict[str, Any]]:
    """Both sides in turn; a record for each."""
    options = made.options
    names = ("prompts", "answers", "new_tokens", "micro_batch_tokens")
    names += ("peer_batch", "peer_checkpointing", "peer_weights")
    setup = {name: getattr(options, name) for name in names}
    setup |= {"steps": options.steps + options.warmup, "informative": informative, "kl": kl, "lr": 1e-6}
    python = None if options.alone else python_of("trl")
    with contextlib.ExitStack() as stack:
        sides = {"upweight": stack.enter_context(made.ours("step", dtype, **setup))}
        if python is not None:
            sides["TRL"] = stack.enter_context(made.side("side_trl.py", python=python, dtype=dtype, **setup))
        turns, first = in_turn(
            {name: (lambda number, worker=worker: ask(worker, number)) for name, worker in sides.items()},
            steps=options.steps,
            warmup=options.warmup,
        )
        peaks = {name: worker.peak() for name, worker in sides.items()}
    groups = len(range(0, options.prompts, ONE_IN[informative]))
    check_equal(turns, options.prompts * options.answers * options.new_tokens, groups / options.prompts)
    texts = prompt_texts(options.prompts * setup["steps"])
    flops = step_flops(
        made.model,
        prompts=options.prompts,
        prompt_tokens=sum(map(len, made.encode(texts))) // setup["steps"],
        answers=options.answers,
        new_tokens=options.new_tokens,
        informative=informative,
        reference=kl > 0,
    )
    case = {"dtype": dtype, "informative": informative, "kl": kl}
    return [
        case
        | {
            "side": " ".join([name, sides[name].ready.get("version", "")]).strip(),
            "seconds": Spread.of(seconds(turns[name])).record(),
            "ratio": ratio(seconds(turns[name]), seconds(turns["upweight"])).record(),
            "tokens_per_second": Spread.of([turn.said["tokens"] / turn.seconds for turn in turns[name]]).record(),
            "matrix_share": made.share(flops, Spread.of(seconds(turns[name])).median, dtype),
            "peak_bytes": peaks[name],
            "memory_ratio": over(peaks[name], peaks["upweight"]),
            "startup_seconds": sides[name].startup,
            "first_seconds": first[name],
        }
        for name in sides
    ]


def over(theirs: int | None, ours: int | None) -> float | None:
    """Their memory over ours, where both are known."""
    return None if theirs is None or ours is None else theirs / ours


def check_equal(turns: dict[str, list[Turn]], tokens: int, informative: float) -> None:
    """Refuse to compare unequal work.

    Args:
        turns: of each side.
        tokens: that every step must have sampled.
        informative: share of the groups that must have carried a signal.

    Raises:
        SideFailed: a step of some side was another.
    """
    for name, side in turns.items():
        for turn in side:
            if turn.said["tokens"] != tokens:
                raise SideFailed(f"{name} sampled {turn.said['tokens']} tokens in a step instead of {tokens}")
            share = turn.said["informative"]
            if abs(share - informative) > 1e-6:
                raise SideFailed(f"{name} had a signal in {share:.0%} of the groups instead of {informative:.0%}")


def cells(record: dict[str, Any]) -> list[str]:
    """A row of the table."""
    memory = record["memory_ratio"]
    return [
        record["dtype"],
        "all" if record["informative"] == "all" else "one in four",
        f"{record['kl']:g}",
        record["side"],
        Spread(**record["seconds"]).text(),
        Spread(**record["ratio"]).text(),
        f"{record['tokens_per_second']['median']:,.0f}",
        f"{record['matrix_share']:.0%}",
        megabytes(record["peak_bytes"]),
        "-" if memory is None else f"{memory:.1f}",
        f"{record['startup_seconds']:.1f}",
        f"{record['first_seconds']:.1f}",
    ]


def main() -> None:
    """Every case, then the table."""
    options = options_of()
    with stage(options) as made:
        if not options.alone and python_of("trl") is None:
            made.say(advice("trl"))
        records: list[dict[str, Any]] = []
        for dtype, informative, kl in itertools.product(options.dtype, options.informative, options.kl):
            case = one_case(made, dtype, informative, kl)
            records += case
            made.say(table(HEAD, [cells(record) for record in case]))
        made.measure_peak()
        shape = f"{options.prompts} prompts x {options.answers} answers of {options.new_tokens} tokens"
        rows = [cells(record) for record in records]
        show(made, [Shown(title=f"A GRPO step: {shape}", head=HEAD, rows=rows, records=records)])


if __name__ == "__main__":
    main()
