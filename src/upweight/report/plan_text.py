"""A plan as text for a terminal. Imports no torch."""

import textwrap
from collections.abc import Iterator, Sequence

from upweight.report.footprint import Part, Phase
from upweight.report.plan import Choice, Plan, shown

WIDTH = 100

NAME = 25
"""Columns of a part's name."""


def as_text(plan: Plan) -> str:
    """For a terminal of 100 columns."""
    return "\n".join(_text(plan)) + "\n"


def _text(plan: Plan) -> Iterator[str]:
    s, found = plan.setup, plan.footprint
    yield f"{plan.name}: {s.shape.parameters / 1e6:,.1f} million parameters"
    for sentence in plan.says:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield from textwrap.wrap(_run(plan), WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield from textwrap.wrap(_verdict(plan), WIDTH)
    yield ""
    yield "always"
    for part in found.always:
        yield from _part(part)
    if found.slack:
        yield f"  and {found.slack:.0%} of all but the framework, between the allocator's blocks: assumed"
    for phase in found.phases:
        yield f"{phase.name}: {shown(found.total(phase))}{_most(phase, found.fullest)}"
        for part in phase.parts:
            yield from _part(part)
    yield ""
    yield from _choices(plan.choices, plan.memory)
    if plan.fits is False:
        yield ""
        yield from _remedies(plan)
    yield ""
    yield from _pace(plan)


def _run(plan: Plan) -> str:
    s = plan.setup
    where = "one process on the CPU" if s.device == "cpu" else f"{s.processes} GPU{'s' if s.processes > 1 else ''}"
    shard = f", shard {s.shard}" if s.processes > 1 else ""
    recompute = ", gradient checkpointing" if s.checkpointing else ""
    return (
        f"{where}, {s.dtype}{shard}{recompute}; {s.prompts} prompts of {s.prompt_tokens:,} tokens x {s.group_size} "
        f"answers of {s.new_tokens:,}, passes of {s.micro_batch_tokens:,} tokens"
    )


def _verdict(plan: Plan) -> str:
    fullest = plan.footprint.fullest.name
    each = "the process" if plan.setup.device == "cpu" else "each GPU"
    needed = f"{each} needs {shown(plan.footprint.peak)} at its fullest ({fullest})"
    if plan.memory is None:
        return f"{needed}; --gpu_memory says what there is"
    if plan.fits:
        return f"fits: {needed}, of {shown(plan.memory)}"
    return f"does not fit: {needed}, and has {shown(plan.memory)}"


def _most(phase: Phase, fullest: Phase) -> str:
    return ", the most" if phase is fullest else ""


def _part(part: Part) -> Iterator[str]:
    head = f"  {part.name:<{NAME}} {shown(part.size):>10}  "
    yield from textwrap.wrap(part.why, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _choices(choices: Sequence[Choice], memory: int | None) -> Iterator[str]:
    flags = list(choices[0].changes)
    head = [*flags, "peak"] + ([] if memory is None else ["fits", "largest micro_batch_tokens"])
    rows = [head]
    for choice in choices:
        row = [*choice.changes.values(), shown(choice.peak)]
        if memory is not None:
            largest = "-" if choice.largest_pass is None else f"{choice.largest_pass:,}"
            row += ["yes" if choice.fits else "no", largest]
        rows.append(row)
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _remedies(plan: Plan) -> Iterator[str]:
    if plan.remedies:
        yield "to make it fit, one of"
        for choice in plan.remedies:
            flags = " ".join(_flag(name, value) for name, value in choice.changes.items())
            yield f"  {flags}  ({shown(choice.peak)})"
        return
    saving = "with passes of one answer, recomputed activations, bfloat16 and no KL"
    if plan.setup.device == "cpu":
        yield from textwrap.wrap(f"nothing makes it fit, not even {saving}: take a smaller model", WIDTH)
    elif plan.processes is None:
        yield from textwrap.wrap(
            f"no number of GPUs of this size makes it fit, not even --shard full {saving}: every GPU holds a whole "
            "copy that samples, and two at the start; take a smaller model, or larger GPUs",
            WIDTH,
        )
    else:
        yield from textwrap.wrap(
            f"it takes {plan.processes} GPUs, --shard full, {saving}",
            WIDTH,
        )


def _flag(name: str, value: str) -> str:
    """As it is typed; the switches of a start take no value."""
    return f"--{name}" if name == "gradient_checkpointing" else f"--{name} {value}"


def _pace(plan: Plan) -> Iterator[str]:
    time = plan.pace
    yield (
        f"a step takes about {_seconds(time.seconds)}: sampling {_seconds(time.sampling)}, "
        + (f"scoring {_seconds(time.scoring)}, " if time.scoring else "")
        + f"training {_seconds(time.training)}"
    )
    yield from textwrap.wrap(
        f"at {time.says}; every group informative, every answer of full length; without rewards, the update and what "
        "processes tell each other",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
    )


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value:.2f} s"
    return f"{value:,.1f} s" if value < 100 else f"{value / 60:,.0f} min"
