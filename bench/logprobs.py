"""Log-probabilities, shared prompts and training passes: equal to the plain ones, and at what cost in time and memory.

Three tables. `head`: log-probabilities and entropies of N tokens with their gradient, from hidden states and from
logits, against plain log_softmax. `shared`: a prompt of 1,024 tokens with 8 answers of 32, encoded once against once
an answer. `pass`: forward and backward over 64 answers of 64 tokens, and transformers' beside it.

    python bench/logprobs.py
    python bench/logprobs.py --only head --vocabulary 151936 --tokens 4096
    python bench/logprobs.py --quick
"""

import argparse
import contextlib
import itertools
import random
import sys
from pathlib import Path
from typing import Any

from speed.measure import Spread, megabytes, ratio
from speed.sides import Shown, Stage, parsed, parser, show, stage
from speed.worker import Worker, in_turn, seconds
from speed.workload import cut, forward_flops, random_ids

WIDTHS = {49152: 576, 151936: 896}
"""Vocabulary -> hidden size: SmolLM2-135M's and Qwen2.5-0.5B's."""

PLAIN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Where memory is measured, glibc returns what is freed at once: the peak is then that of what is alive."""

PARTS = ("head", "shared", "pass")
WAYS = {
    "shared": "upweight, prompts shared",
    "different": "upweight, prompts that differ",
    "alone": "upweight, each answer alone",
    "transformers": "transformers",
}
"""Of a training pass; the first is what the others are held against."""

HEAD = (
    "dtype",
    "from",
    "vocabulary",
    "tokens",
    "ours, s",
    "plain, s",
    "ours takes",
    "log-prob apart",
    "entropy apart",
    "gradient apart",
    "of its largest",
    "extra MB ours",
    "extra MB plain",
)
PASS_HEAD = (
    "dtype",
    "pass",
    "seconds",
    "times ours",
    "tokens fed",
    "of the matrix peak",
    "peak MB",
    "gradient apart from each answer alone",
)


def options_of() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    made.add_argument("--vocabulary", nargs="+", type=int, default=sorted(WIDTHS))
    made.add_argument("--tokens", nargs="+", type=int, default=[512, 1024, 2048, 4096])
    made.add_argument("--micro_batch_tokens", type=int, default=2048, help="of a pass, for every side")
    made.add_argument("--ways", nargs="+", choices=list(WAYS)[1:], default=list(WAYS)[1:], help="beside the shared one")
    options = parsed(made)
    if options.quick:
        options.vocabulary, options.tokens = [300], [16]
    return options


def head_case(made: Stage, dtype: str, of: str, vocabulary: int, tokens: int) -> dict[str, Any]:
    """Time in turn in one process, memory in one of its own for each way."""
    options = made.options
    shape = {"dtype": dtype, "of": of, "vocabulary": vocabulary, "tokens": tokens}
    setup = shape | {"width": WIDTHS.get(vocabulary, 64)}
    with made.side("side_head.py", **setup) as worker:
        asks = {way: (lambda _, way=way: worker.ask({"do": way})) for way in ("ours", "plain")}
        turns, _ = in_turn(asks, steps=options.steps, warmup=options.warmup)
        apart = worker.ask({"do": "differences"}).said
    extra = {}
    for way in asks:
        with made.side("side_head.py", variables=PLAIN_MEMORY, **setup) as worker:
            extra[way] = worker.ask({"do": "extra", "way": way}).said["bytes"]
    return shape | {
        "ours": Spread.of(seconds(turns["ours"])).record(),
        "plain": Spread.of(seconds(turns["plain"])).record(),
        "ratio": ratio(seconds(turns["ours"]), seconds(turns["plain"])).record(),
        "apart": apart,
        "extra_bytes": extra,
    }


def head_cells(record: dict[str, Any]) -> list[str]:
    """A row of the first table."""
    apart, extra = record["apart"], record["extra_bytes"]
    return [
        record["dtype"],
        record["of"],
        f"{record['vocabulary']:,}",
        f"{record['tokens']:,}",
        Spread(**record["ours"]).text(3),
        Spread(**record["plain"]).text(3),
        Spread(**record["ratio"]).text() + " of plain",
        *(f"{apart[name]:.1e}" for name in ("logprob", "entropy", "gradient")),
        f"{apart['gradient'] / apart['largest_gradient']:.1e}",
        megabytes(extra["ours"]),
        megabytes(extra["plain"]),
    ]


def shape_of(part: str, quick: bool, vocabulary: int) -> dict[str, Any]:
    """Prompts, answers and coefficients of a pass: one prompt of 1,024 tokens, or eight of 64."""
    groups, long, each, new = (1, 1024, 8, 32) if part == "shared" else (8, 64, 8, 64)
    if quick:
        groups, long, each, new = min(groups, 2), long // 16, 2, 8
    noise = random.Random(1)
    return {
        "prompts": [random_ids(long, vocabulary, seed=group) for group in range(groups) for _ in range(each)],
        "completions": [random_ids(new, vocabulary, seed=1000 + row) for row in range(groups * each)],
        "coefficients": [noise.gauss(0.0, 1.0 / (groups * each * new)) for _ in range(groups * each * new)],
    }


def pass_case(made: Stage, part: str, dtype: str) -> list[dict[str, Any]]:
    """Ours with the prompt shared, ours without, transformers: in turn, each in a process of its own."""
    options = made.options
    shape = shape_of(part, options.quick, made.model.vocabulary)
    prompts, answers = shape["prompts"], shape["completions"]
    scored, once = sum(map(len, answers)), len({tuple(prompt) for prompt in prompts})
    each, rest, most = len(prompts) // once, len(answers[0]) - 1, options.micro_batch_tokens
    groups = cut(once, len(prompts[0]) + each * rest, most)
    cuts = {
        "shared": [(first * each, last * each) for first, last in groups],
        "different": cut(len(prompts), len(prompts[0]) + rest, most),
        "alone": cut(len(prompts), 1, 1),
    }
    setup = shape | {"vocabulary": made.model.vocabulary, "cuts": cuts}
    all_prompts, fed_answers = sum(map(len, prompts)), scored - len(answers)
    workers: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:
        for way in [way for way in WAYS if way == "shared" or way in options.ways]:
            side = made.ours("passes", dtype, **setup)
            if way == "transformers":
                theirs = {**shape, "dtype": dtype, "cuts": cuts["different"]}
                side = made.side("side_transformers.py", python=Path(sys.executable), role="passes", **theirs)
            workers[way] = stack.enter_context(side)
        asks = {way: (lambda _, way=way: workers[way].ask({"do": way})) for way in workers}
        turns, _ = in_turn(asks, steps=options.steps, warmup=options.warmup)
        peaks = {way: worker.peak() for way, worker in workers.items()}
        apart = workers["shared"].ask({"do": "difference"}).said
    records = []
    for way, side in turns.items():
        fed = fed_answers + (len(prompts[0]) * once if way == "shared" else all_prompts)
        flops = 3.0 * forward_flops(made.model, fed=fed, scored=scored)
        records.append(
            {
                "part": part,
                "dtype": dtype,
                "pass": " ".join([WAYS[way], workers[way].ready.get("version", "")]).strip(),
                "seconds": Spread.of(seconds(side)).record(),
                "ratio": ratio(seconds(side), seconds(turns["shared"])).record(),
                "fed": fed,
                "matrix_share": made.share(flops, Spread.of(seconds(side)).median, dtype),
                "peak_bytes": peaks[way],
                "apart": apart if way == "shared" else None,
            }
        )
    return records


def pass_cells(record: dict[str, Any]) -> list[str]:
    """A row of the other tables."""
    apart = record["apart"]
    return [
        record["dtype"],
        record["pass"],
        Spread(**record["seconds"]).text(3),
        Spread(**record["ratio"]).text(),
        f"{record['fed']:,}",
        f"{record['matrix_share']:.0%}",
        megabytes(record["peak_bytes"]),
        f"{apart['difference']:.1e} (largest entry {apart['largest']:.1e})" if apart else "",
    ]


def head_table(made: Stage) -> Shown:
    """The first one."""
    options = made.options
    records = []
    for case in itertools.product(options.dtype, ("hidden", "logits"), options.vocabulary, options.tokens):
        records.append(head_case(made, *case))
        made.say(" | ".join(head_cells(records[-1])))
    title = "Log-probabilities and entropies with their gradient"
    return Shown(title=title, head=HEAD, rows=[head_cells(record) for record in records], records=records)


def pass_table(made: Stage, part: str) -> Shown:
    """One of the others."""
    records = [record for dtype in made.options.dtype for record in pass_case(made, part, dtype)]
    shape = shape_of(part, made.options.quick, made.model.vocabulary)
    answers, tokens = len(shape["completions"]), len(shape["completions"][0])
    title = f"Training pass: {answers} answers of {tokens} tokens to prompts of {len(shape['prompts'][0])}"
    return Shown(title=title, head=PASS_HEAD, rows=[pass_cells(record) for record in records], records=records)


def main() -> None:
    """Every part that is asked for, a table each."""
    options = options_of()
    with stage(options) as made:
        tables = [head_table(made)] if "head" in options.only else []
        tables += [pass_table(made, part) for part in ("shared", "pass") if part in options.only]
        show(made, tables)


if __name__ == "__main__":
    main()
