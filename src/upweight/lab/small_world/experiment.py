"""The small world: five studies of estimators against an enumerated truth, as tables, JSON and figures."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from upweight.lab.small_world import advantages, averaging, divergence, figures, sampler, staleness
from upweight.lab.small_world.parameters import SmallWorldParameters
from upweight.lab.small_world.world import World, expected, make_world
from upweight.lab.style import save
from upweight.lab.table import Report, print_report, say
from upweight.objective.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFacts:
    """What is true of a prompt."""

    reward: float
    """Expected reward: how often it is answered right."""

    length: float
    """Expected length of an answer, tokens."""

    gradient: float
    """Length of the gradient of its expected reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallWorldResult:
    """The world and the five studies."""

    parameters: SmallWorldParameters
    """What was asked for."""

    answers: int
    """Different answers to a prompt."""

    free: int
    """Free logits of the policy."""

    prompts: tuple[PromptFacts, ...]
    """In the order of the difficulties."""

    advantages: advantages.AdvantageResult
    """First study."""

    averaging: averaging.AveragingResult
    """Second study."""

    kl: divergence.KLTruth
    """Third study."""

    staleness: staleness.StaleResult
    """Fourth study."""

    sampler: sampler.SamplerResult
    """Fifth study."""

    files: tuple[str, ...]
    """What was written."""


def run(parameters: SmallWorldParameters) -> SmallWorldResult:
    """Make the world, run the studies, and write tables and figures where a folder is given.

    Args:
        parameters: see `SmallWorldParameters`.

    Raises:
        UsageError: the folder cannot be made or written to.
    """
    folder = _folder(parameters.out)
    generator = torch.Generator().manual_seed(parameters.seed)
    world = make_world(parameters, generator)
    ref, mu = (
        world.logits + std * torch.randn(world.logits.shape, generator=generator, dtype=torch.float64)
        for std in (parameters.ref_noise, parameters.noise)
    )
    result = SmallWorldResult(
        parameters=parameters,
        answers=world.outcomes[1],
        free=world.logits.numel(),
        prompts=_prompts(world),
        advantages=advantages.run(world, parameters.group_sizes, parameters.samples, generator),
        averaging=averaging.run(world, parameters.group_sizes, parameters.samples, generator),
        kl=divergence.run(world, ref),
        staleness=staleness.run(world, parameters.updates, parameters.step),
        sampler=sampler.run(world, mu, parameters.caps, max(parameters.group_sizes)),
        files=(),
    )
    return result if folder is None else dataclasses.replace(result, files=_write(result, folder))


def _prompts(world: World) -> tuple[PromptFacts, ...]:
    table = world.logits.clone().requires_grad_()
    reward = expected(world, world.reward, table)
    (gradient,) = torch.autograd.grad(reward.sum(), table)
    length = expected(world, world.answers.length.double())
    return tuple(
        PromptFacts(reward=r, length=tokens, gradient=size)
        for r, tokens, size in zip(reward.tolist(), length.tolist(), gradient.norm(dim=(1, 2)).tolist(), strict=True)
    )


def as_json(result: SmallWorldResult) -> dict[str, Any]:
    """`{"world", "advantages", "averaging", "kl", "staleness", "sampler", "sentences"}`."""
    studies = {
        name: dataclasses.asdict(getattr(result, name))
        for name in ("advantages", "averaging", "kl", "staleness", "sampler")
    }
    asked = {key: value for key, value in dataclasses.asdict(result.parameters).items() if key != "out"}
    prompts = [dataclasses.asdict(prompt) for prompt in result.prompts]
    world = {"parameters": asked, "answers": result.answers, "free_logits": result.free, "prompts": prompts}
    shown = reports(result)
    return {"world": world, **studies, "sentences": {name: list(report.sentences) for name, report in shown.items()}}


def reports(result: SmallWorldResult, *, brief: bool = False) -> Mapping[str, Report]:
    """Every table, by name; with `brief`, those over group sizes at the smallest and the largest alone."""
    values, gradients = divergence.reports(result.kl)
    return {
        "world": _world_report(result),
        "advantages": advantages.report(result.advantages, brief=brief),
        "averaging": averaging.report(result.averaging, brief=brief),
        "kl-values": values,
        "kl-gradients": gradients,
        "staleness": staleness.report(result.staleness),
        "sampler": sampler.report(result.sampler),
    }


def _world_report(result: SmallWorldResult) -> Report:
    asked = result.parameters
    rows = tuple(
        (str(place), f"{prompt.reward:.4f}", f"{prompt.length:.3f}", f"{prompt.gradient:.4f}")
        for place, prompt in enumerate(result.prompts, start=1)
    )
    title = (
        f"the world: {len(result.prompts)} prompts, {result.answers} answers to each (vocabulary {asked.vocabulary}, "
        f"token 0 ends an answer, at most {asked.length} tokens), {result.free} free logits; an answer is right where "
        "the ids of its tokens add up to an odd number"
    )
    columns = ("prompt", "expected reward", "expected length", "length of the gradient")
    return Report(title=title, columns=columns, rows=rows, sentences=())


def show(result: SmallWorldResult, console: Console) -> None:
    """Print the tables, and what each shows."""
    for place, report in enumerate(reports(result, brief=True).values()):
        if place:
            console.print()
        print_report(report, console)
    for file in result.files:
        say(console, f"written: {file}")


def _folder(out: str | None) -> Path | None:
    """The folder to write into, made before anything is computed."""
    if out is None:
        return None
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: the folder cannot be made: {error.strerror}. Choose another.") from None
    return folder


def _write(result: SmallWorldResult, folder: Path) -> tuple[str, ...]:
    text = "\n\n".join(markdown(report) for report in reports(result).values())
    files = {folder / "small-world.md": f"# Small world\n\n{text}\n"}
    files[folder / "small-world.json"] = json.dumps(as_json(result), indent=2, allow_nan=False) + "\n"
    written = []
    try:
        for target, content in files.items():
            target.write_text(content, encoding="utf-8")
            written.append(str(target))
        for name, made in figures.draw_all(result.advantages, result.averaging, result.kl, result.staleness,
                                           result.sampler).items():  # fmt: skip
            for ending in ("svg", "png"):
                target = folder / f"small-world-{name}.{ending}"
                save(made, target)
                written.append(str(target))
    except OSError as error:
        raise UsageError(f"--out {folder}: a file cannot be written there: {error.strerror}.") from None
    return tuple(written)


def markdown(report: Report) -> str:
    """A report in Markdown: title, table, sentences.

    Example:
        >>> print(markdown(Report(title="one", columns=("a", "b"), rows=(("x", "1"),), sentences=("So.",), left=(0,))))
        One.
        <BLANKLINE>
        | a | b |
        | --- | ---: |
        | x | 1 |
        <BLANKLINE>
        So.
    """
    rule = ["---" if place in report.left else "---:" for place in range(len(report.columns))]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (report.columns, rule, *report.rows))
    return "\n\n".join([f"{report.title[0].upper()}{report.title[1:]}.", table, *report.sentences])
