"""`upweight plan`: what a run needs, and what to change where it does not fit. Imports no torch."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from upweight.cli.flags import Call, resolve
from upweight.objective.errors import UsageError, bad_parameter
from upweight.report.footprint import GB, Setup
from upweight.report.pace import pace
from upweight.report.plan import Plan, make_plan
from upweight.report.plan_text import as_text
from upweight.report.shapes import find_shape
from upweight.train.args import TrainArgs
from upweight.train.check import LARGEST_COUNT, wrong_values

PROGRAM = "upweight plan"

TINY = (6, 8)
"""Tokens of a prompt and of an answer of `tiny` on its default task."""

OTHERS = (256, 512)
"""Assumed of any other model."""

DESCRIPTION = """Estimate the memory of a run and the time of a step before anything is loaded: what fits, why, and
which flags to change where it does not.

It takes the flags of `upweight train`. --model is an alias, a folder, a known model (Qwen2.5, Qwen3, Llama 3, SmolLM2)
or a number of parameters (7b, 135m), whose shape is then assumed. Memory is in GB of 2^30 bytes, of one process.

examples:
  upweight plan --model Qwen/Qwen2.5-7B --gpus 8 --gpu_memory 80 --dtype bfloat16 --shard full
  upweight plan --model 1.5b --gpu_memory 24 --dtype bfloat16 --preset dr-grpo --max_new_tokens 1024
  upweight plan --model smollm2-135m --gpus 0"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCall(Call):
    """One call of `upweight plan`."""

    gpus: int = 1
    """How many, one process each; 0 = one process on the CPU."""

    gpu_memory: float | None = None
    """Memory of each GPU in GB; with --gpus 0 of the machine, or what its container may use, which is asked for where
    this is not given."""

    shard: Literal["none", "full"] = "none"
    """As upweight train takes it."""

    gradient_checkpointing: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """As upweight train takes it."""

    prompt_tokens: int | None = None
    """Of a prompt; assumed where not given: 256 (tiny: 6)."""

    tflops: float | None = None
    """Peak of a GPU, or of the CPU's cores together, in 10^12 operations a second; assumed where not given."""

    utilisation: float | None = None
    """Share of the peak that training passes reach, in (0, 1]; assumed where not given."""

    sampling_utilisation: float | None = None
    """Share of the peak that sampling reaches, likewise."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print it as JSON, sizes in bytes."""


_RANGES: Mapping[str, tuple[float, float, str]] = {
    "gpus": (0, 1e6, "at least 0 (0 is the CPU) and at most a million"),
    "gpu_memory": (math.ulp(0.0), 1e6, "above 0 and at most a million, in GB"),
    "prompt_tokens": (1, LARGEST_COUNT, "at least 1 and at most 10**12"),
    "tflops": (1e-6, 1e6, "at least 1e-6 and at most a million"),
    "utilisation": (1e-6, 1, "at least 1e-6 and at most 1"),
    "sampling_utilisation": (1e-6, 1, "at least 1e-6 and at most 1"),
}
"""What plan's own numbers may be, wide enough for any machine; what is made of them stays finite."""


def run(argv: Sequence[str]) -> int:
    """Print a plan.

    Args:
        argv: what follows `upweight plan`.

    Returns:
        0, also where it does not fit.

    Raises:
        UsageError: a value of a wrong type or out of its range, flags that contradict each other, a model whose shape
            is not known, or lengths beyond its context.
        SystemExit: 0 after `--help`.
    """
    call, plan = read(argv)
    text = json.dumps(plan.as_json(), indent=2, allow_nan=False) + "\n" if call.json else as_text(plan)
    print(text, end="")
    return 0


def read(argv: Sequence[str]) -> tuple[PlanCall, Plan]:
    """What a command line asks for, and the plan it gets.

    Example:
        >>> plan = read(["--model", "llama-3.1-8b", "--dtype", "bfloat16", "--gpu_memory", "80"])[1]
        >>> plan.fits, plan.setup.shape.parameters
        (False, 8030261248)
    """
    call, _ = resolve(argv, PlanCall, PROGRAM, DESCRIPTION)
    if problems := wrong_values(call.args) or _out_of_range(call) or _contradictions(call):
        raise UsageError("\n".join(problems))
    args = call.args
    on_cpu = call.gpus == 0 or _kind(args.device) == "cpu"
    processes = 1 if on_cpu else call.gpus
    shape, where = find_shape(args.model)
    prompt_tokens, new_tokens, assumed = _lengths(call, shape.context)
    setup = Setup(
        shape=shape,
        device="cpu" if on_cpu else "gpu",
        processes=processes,
        dtype=args.dtype,
        shard=call.shard if processes > 1 else "none",
        checkpointing=call.gradient_checkpointing,
        float32_head=args.fp32_head and args.dtype == "bfloat16",
        has_reference=args.objective.needs_reference,
        prompts=args.prompts_per_step,
        group_size=args.group_size,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        micro_batch_tokens=args.micro_batch_tokens,
        updates=args.minibatches,
    )
    updates = args.minibatches * args.epochs_per_batch
    time = pace(
        setup,
        scored_before=_scored_before(args, updates),
        epochs=args.epochs_per_batch,
        cores=_cores(),
        tflops=call.tflops,
        share_of_passes=call.utilisation,
        share_of_sampling=call.sampling_utilisation,
    )
    memory = _memory(call, on_cpu=on_cpu)
    ignored = ["--shard full changes nothing in one process"] if call.shard != setup.shard else []
    return call, make_plan(args.model, setup, time, memory=memory, says=[where, *assumed, *ignored])


def _out_of_range(call: PlanCall) -> list[str]:
    given = {name: value for name in _RANGES if (value := getattr(call, name)) is not None}
    return [
        str(bad_parameter(f"--{name}", PROGRAM, _RANGES[name][2], value))
        for name, value in given.items()
        if not _RANGES[name][0] <= value <= _RANGES[name][1]
    ]


def _contradictions(call: PlanCall) -> list[str]:
    """What --device and --gpus say against each other: `upweight train` could not be started so."""
    device, gpus = call.args.device, call.gpus
    if _kind(device) == "cpu" and gpus > 1:
        return [
            f"--device {device} trains on no GPU, and --gpus {gpus} plans for {gpus}. Set --gpus 0, or --device auto."
        ]
    if _kind(device) == "cuda" and gpus == 0:
        return [f"--device {device} is a GPU, and --gpus 0 plans for the CPU. Leave --gpus out, or set --device auto."]
    if _kind(device) == "cuda" and device != "cuda" and gpus > 1:
        return [f"--device {device} is one GPU for {gpus} processes: each takes its own with --device cuda."]
    return []


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _lengths(call: PlanCall, context: int | None) -> tuple[int, int, list[str]]:
    """Tokens of a prompt and of an answer, and what of them is assumed: no more than the context has room for.

    Raises:
        UsageError: together they are more than the context.
    """
    usual = TINY if call.args.model == "tiny" else OTHERS
    prompt, new = call.prompt_tokens, call.args.max_new_tokens
    assumed = []
    if prompt is None:
        prompt = usual[0]
        if context is not None:
            beside = context // 3 if new is None or new >= context else context - new
            prompt = max(1, min(prompt, beside))
        assumed.append(f"prompts of {prompt} tokens are assumed (--prompt_tokens)")
    if new is None:
        new = usual[1]
        if context is not None:
            new = max(1, min(new, context - prompt))
        assumed.append(f"answers of {new} tokens are assumed (--max_new_tokens)")
    if context is not None and prompt + new > context:
        raise UsageError(
            f"A prompt has {prompt} tokens; with max_new_tokens={new} that is more than the model's context of "
            f"{context}. Lower --prompt_tokens or --max_new_tokens."
        )
    return prompt, new, assumed


def _scored_before(args: TrainArgs, updates: int) -> bool:
    """Whether a pass is made for the old log-probs before the first update."""
    return args.objective.old_logprobs != "sampler" and (updates > 1 or args.objective.asks_for_old_logprobs)


def _memory(call: PlanCall, *, on_cpu: bool) -> int | None:
    if call.gpu_memory is not None:
        return round(call.gpu_memory * GB)
    if not on_cpu or not hasattr(os, "sysconf"):
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *limits_of_groups(Path("/"))])


def limits_of_groups(root: Path) -> list[int]:
    """Bytes that the control groups of this process allow it: a container, a batch job, a service.

    Args:
        root: of the file system that says so, version 1 or 2; elsewhere than on Linux there are none.
    """
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        mount, name = ("memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        top = root / "sys/fs/cgroup" / mount
        place = top / group.strip("/")
        # Seen from within a container, the group's own folder may be the top one.
        folders = [place, *(folder for folder in place.parents if folder.is_relative_to(top))]
        found += [int(text) for folder in folders if (text := _text(folder / name).strip()).isdigit()]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
