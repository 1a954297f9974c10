"""What `upweight plan` estimates beside what a run takes: memory of real steps, each case in a process of its own.

Measured is the peak of resident memory (VmHWM) less what the process held once everything was imported; the estimate
is taken less the same. Every answer uses its budget, and every group carries a signal. The last columns are the share
of the matrix peak that passes and sampling reached, on however many threads.

    python bench/plan.py
    python bench/plan.py --only small --threads 2
    python bench/plan.py --quick
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

HEAD = ("model", "case", "passes", "measured MB", "estimate MB", "ratio", "step s", "passes reach", "sampling reaches")


def setup_of(model: str, case: Mapping[str, Any]) -> Setup:
    """The setup of a case: on the CPU, without a reference unless it says so."""
    return Setup(**{"shape": MODELS[model], "device": "cpu", "has_reference": False, **case})


def measured(model: str, setup: Setup, *, steps: int, threads: int) -> dict[str, Any]:
    """Take real steps in a fresh process."""
    told = {"model": model, "steps": steps, "threads": threads, **dataclasses.asdict(setup)}
    line = [sys.executable, __file__, "--worker", json.dumps(told)]
    done = subprocess.run(
        line,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=3600,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def policy_of(model: str, shape: Shape, dtype: str) -> Any:
    """The real model, or one of random weights, in which nothing ends an answer but its budget."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from upweight.policy.load import load_policy
    from upweight.policy.policy import Policy
    from upweight.policy.tiny import byte_tokenizer

    if model == "smollm2-135m":
        policy = load_policy(model, dtype=dtype, device="cpu")
    else:
        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_heads,
            head_dim=shape.head_size,
            tie_word_embeddings=shape.tied,
            bos_token_id=None,
            eos_token_id=257,
            pad_token_id=256,
        )
        torch.manual_seed(0)
        weights = LlamaForCausalLM(config).to(getattr(torch, dtype))
        policy = Policy(model=weights, tokenizer=byte_tokenizer(), name=model)
    policy.end_ids = frozenset()
    return policy


def work(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of a process of its own: steps, and what they took."""
    import torch

    torch.set_num_threads(told["threads"])
    step = stepper(told)
    machine.give_back_free_memory()
    base = machine.own_bytes("VmRSS")
    take = step()
    taken = [take(number + 1) for number in range(told["steps"])]
    peak = machine.own_bytes("VmHWM")
    if base is None or peak is None:
        raise SystemExit("This system does not say how much memory a process takes.")
    return {
        "base": base,
        "peak": peak,
        "seconds": statistics.median(whole for whole, _ in taken[1:] or taken),
        "sample_seconds": statistics.median(sampling for _, sampling in taken[1:] or taken),
    }


def stepper(told: Mapping[str, Any]) -> Callable[[], Callable[[int], tuple[float, float]]]:
    """Import everything; the rest, which takes the memory that counts, is made when asked for."""
    from upweight.policy.variants import layers_recomputed
    from upweight.rewards.runner import make_runner
    from upweight.rollout.completion import Sampling
    from upweight.rollout.engine import LocalEngine
    from upweight.tasks.prompt import Draw, Prompt
    from upweight.train.args import TrainArgs
    from upweight.train.optimizer import MasterAdamW
    from upweight.train.source import SamplingSource
    from upweight.train.step import Learner, training_step

    class Stream:
        """Row after row."""

        taken = 0

        def take(self, n: int) -> list[Draw]:
            first, self.taken = self.taken, self.taken + n
            return [Draw(prompt=Prompt(row=row, text=str(row)), number=row) for row in range(first, self.taken)]

        def state_dict(self) -> dict[str, int]:
            return {"taken": self.taken}

        def load_state_dict(self, state: Mapping[str, int]) -> None:
            self.taken = state["taken"]

    def by_place(completions: Sequence[str], **_: object) -> list[float]:
        return [float(place % 2) for place in range(len(completions))]

    shape = Shape(**told["shape"])

    def encode(prompt: Prompt) -> list[int]:
        return [(prompt.row * 7919 + place * 31) % shape.vocabulary for place in range(told["prompt_tokens"])]

    def make() -> Callable[[int], tuple[float, float]]:
        policy = policy_of(told["model"], shape, told["dtype"])
        if told["checkpointing"]:
            layers_recomputed(policy.model)
        args = TrainArgs.from_flags(
            kl_coef=0.04 if told["has_reference"] else 0.0,
            prompts_per_step=told["prompts"],
            max_steps=told["steps"],
            learning_rate=1e-6,
            lr_warmup_steps=0,
            **{name: told[name] for name in ("group_size", "micro_batch_tokens", "dtype")},
            max_new_tokens=told["new_tokens"],
        )
        learner = Learner(
            policy=policy,
            reference=policy.frozen_copy() if told["has_reference"] else None,
            optimizer=MasterAdamW(policy.model.parameters(), weight_decay=0.0),
            source=SamplingSource(
                stream=Stream(),
                engine=LocalEngine(policy),
                encode=encode,
                decode=lambda ids: "",
                runner=make_runner(by_place),
                sampling=Sampling(max_new_tokens=told["new_tokens"]),
                group_size=told["group_size"],
                context_length=policy.context_length,
            ),
            args=args,
        )

        def take(number: int) -> tuple[float, float]:
            started = time.perf_counter()
            report, _ = training_step(learner, number)
            return time.perf_counter() - started, report.sample_seconds

        return take

    return make


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
        found = measured(model, setup, steps=options.steps, threads=options.threads)
        if setup.dtype not in options.peaks:
            options.peaks[setup.dtype] = machine.matrix_peak(setup.dtype, (512,) if options.quick else (1024, 2048))
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
            "seconds": found["seconds"],
            "passes_reach": (flops.training + flops.scoring) / in_passes / options.peaks[setup.dtype],
            "sampling_reaches": flops.sampling / found["sample_seconds"] / options.peaks[setup.dtype],
        }


def cells(record: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    return [
        *(str(record[name]) for name in ("model", "case", "passes")),
        *(f"{record[name] / MB:,.0f}" for name in ("measured", "estimate")),
        f"{record['estimate'] / record['measured']:.2f}",
        f"{record['seconds']:.1f}",
        *(f"{record[name]:.0%}" for name in ("passes_reach", "sampling_reaches")),
    ]


def main() -> None:
    """Measure, and print a table or JSON."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", choices=tuple(MODELS), help="one model")
    made.add_argument("--steps", type=int, default=2, help="of a case; the first is not timed")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--json", action="store_true", help="print one object instead of a table")
    made.add_argument("--quick", action="store_true", help="the first case alone: to see that it runs")
    made.add_argument("--worker", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.worker is not None:
        print(json.dumps(work(json.loads(options.worker))))
        return
    import torch

    torch.set_num_threads(options.threads)
    options.peaks = {}
    found = []
    for record in records(options):
        found.append(record)
        print(f"{record['model']}: {record['case']}", file=sys.stderr, flush=True)
    about = f"{machine.cpu_name()}, threads: {options.threads}"
    if options.json:
        print(json.dumps({"cpu": about, "matrix_peak": options.peaks, "steps": options.steps, "cases": found}))
        return
    peaks = ", ".join(f"{value / 1e12:.2f} TFLOP/s in {dtype}" for dtype, value in options.peaks.items())
    print(f"{about}, matrix peak {peaks}; imports take {found[0]['base'] / MB:,.0f} MB.\n")
    print(table(HEAD, [cells(record) for record in found]))


if __name__ == "__main__":
    main()
