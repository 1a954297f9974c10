"""`upweight lab NAME`: the experiments of the laboratory. Imports no torch before one runs."""

import importlib
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import tyro
from rich.console import Console

from upweight.cli.config import did_you_mean
from upweight.lab.table import say
from upweight.objective.dialects.base import choice_meant
from upweight.objective.errors import UsageError, bad_parameter, nearest
from upweight.objective.fields import must_be
from upweight.objective.paths import given_path


class Experiment(Protocol):
    """What the module of an experiment has."""

    def run(self, parameters: Any) -> Any:
        """Compute the result for its parameters."""

    def as_json(self, result: Any) -> dict[str, Any]:
        """The result for a program."""

    def show(self, result: Any, console: Console) -> None:
        """Print the result for a person."""

    def draw(self, result: Any) -> Any:
        """The result as a figure; only where the row says that there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """One thing that the laboratory does."""

    module: str
    """Where it lives: an `Experiment`, imported only when it runs."""

    parameters: str
    """Its frozen dataclass of parameters, as `module:Class`; that module imports no torch, and each field is a flag."""

    summary: str
    """Its line in `upweight lab --help`."""

    example: str
    """What may follow its name."""

    figure: bool = True
    """Whether it has a figure."""

    figure_file: str | None = None
    """Where the figure goes unless --plot says so; None = no figure unless asked for."""


NAMES: Mapping[str, Name] = {
    "weights": Name(
        module="upweight.lab.weights",
        parameters="upweight.lab.parameters:WeightsParameters",
        summary="what each token and each answer of a group weighs, by how the loss is averaged",
        example="--rewards 1,0,0,1 --lengths 200,50,2000,400",
    ),
    "kl": Name(
        module="upweight.lab.kl",
        parameters="upweight.lab.parameters:KLParameters",
        summary="the KL estimators k1, k2 and k3 against the exact value",
        example="--noise 0.5 --samples 100000",
    ),
    "ratio": Name(
        module="upweight.lab.ratio",
        parameters="upweight.lab.parameters:RatioParameters",
        summary="importance ratios per token, as a product and as a geometric mean, as answers grow",
        example="--sigma 0.02,0.2 --lengths 100,1000,4000 --plot ratio.svg",
    ),
    "mismatch": Name(
        module="upweight.lab.mismatch",
        parameters="upweight.lab.parameters:MismatchParameters",
        summary="sampler against trainer: bias and noise of no correction, IS, TIS and MIS",
        example="--cap 4 --noise 0.1",
    ),
    "clip-higher": Name(
        module="upweight.lab.clip_higher",
        parameters="upweight.lab.parameters:ClipHigherParameters",
        summary="how far one update may raise a rare token and a likely one",
        example="--probabilities 0.01,0.9 --clip_high 0.2,0.28",
    ),
    "strip": Name(
        module="upweight.lab.strip",
        parameters="upweight.lab.parameters:StripParameters",
        summary="one figure in six panels: from PPO to GRPO, averaging, KL, ratio, clipping, mismatch",
        example="--plot strip.svg",
        figure_file="strip.svg",
    ),
    "small-world": Name(
        module="upweight.lab.small_world.experiment",
        parameters="upweight.lab.small_world.parameters:SmallWorldParameters",
        summary="every estimator against the truth, in a world small enough to enumerate",
        example="--group_sizes 2,8,64 --out small-world",
        figure=False,
    ),
    "page": Name(
        module="upweight.lab.page",
        parameters="upweight.lab.page:PageParameters",
        summary="one HTML file with six experiments to change by hand, which needs no network",
        example="--out lab.html",
        figure=False,
    ),
    "self-test": Name(
        module="upweight.lab.self_test",
        parameters="upweight.lab.parameters:SelfTestParameters",
        summary="five questions about the algorithms, with answers to open",
        example="--answers",
        figure=False,
    ),
}
"""Everything the laboratory does, in the order of `upweight lab --help`."""

_Parameters = TypeVar("_Parameters")


@dataclass(frozen=True, kw_only=True, slots=True)
class LabCall(Generic[_Parameters]):
    """One call of `upweight lab NAME`."""

    parameters: _Parameters
    """The experiment's parameters."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabPlotCall(LabCall[_Parameters]):
    """One call of `upweight lab NAME` for an experiment with a figure."""

    plot: str | None = None
    """Write the figure to this file, an .svg or a .png."""


def run(argv: Sequence[str]) -> int:
    """List the experiments, or run one.

    Args:
        argv: what follows `upweight lab`.

    Returns:
        0.

    Raises:
        UsageError: no such experiment or flag, a value outside its range, or a figure that cannot be written.
        SystemExit: 0 after the `--help` of an experiment.
    """
    word, rest = (argv[0], argv[1:]) if argv else ("--help", ())
    if word in ("-h", "--help", "help"):
        print(_help())
        return 0
    name = word.lower().replace("_", "-")
    if name not in NAMES:
        near = nearest(name, NAMES)
        hint = f"Did you mean `upweight lab {near}`?" if near else did_you_mean(name, tuple(NAMES))
        raise UsageError(f"'{word}' is nothing the laboratory does. {hint}")
    row = NAMES[name]
    call = resolve(name, rest)
    target = _target(getattr(call, "plot", None), name)
    experiment = typing.cast(Experiment, importlib.import_module(row.module))
    result = experiment.run(call.parameters)
    console = Console()
    if call.json:
        print(json.dumps(experiment.as_json(result), indent=2, allow_nan=False))
    else:
        experiment.show(result, console)
    if target is not None:
        _write(experiment.draw(result), target)
        if not call.json:
            say(console, f"figure: {target}")
    return 0


def resolve(name: str, argv: Sequence[str]) -> LabCall[Any]:
    """Read the flags of an experiment.

    Args:
        name: a row of `NAMES`.
        argv: what follows the name.

    Returns:
        The call, with every parameter checked.

    Raises:
        UsageError: a flag that does not exist, or a value that does not fit.
        SystemExit: 0 after `--help`.

    Example:
        >>> resolve("ratio", ["--sigma", "0.1", "--clip-high=0.3"]).parameters.sigma
        (0.1,)
    """
    row = NAMES[name]
    module, _, class_name = row.parameters.partition(":")
    parameters: Any = getattr(importlib.import_module(module), class_name)
    shape: Any = LabPlotCall if row.figure else LabCall
    more = {"plot": row.figure_file} if row.figure else {}
    words, values = _read(name, argv, typing.get_type_hints(parameters), more)
    if values is not None:
        chosen = {key: value for key, value in values.items() if key not in ("json", "plot")}
        # Made here already: what it raises is one sentence, which tyro would put in a box.
        parameters(**chosen)
    with _lists():
        call: LabCall[Any] = tyro.cli(
            shape[parameters],
            prog=f"upweight lab {name}",
            description=f"{row.summary[0].upper()}{row.summary[1:]}.\n\nexample:\n  upweight lab {name} {row.example}",
            args=words,
            default=shape(parameters=parameters(), **more),
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff, tyro.conf.FlagCreatePairsOff),
            use_underscores=True,
        )
    return call


def _read(
    name: str, argv: Sequence[str], hints: Mapping[str, object], more: Mapping[str, object]
) -> tuple[list[str], dict[str, object] | None]:
    """The flags as `--flag=value`, which leaves no doubt about -1, and their values; no values where help is asked."""
    known = {key: hint for key, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}
    known |= {"json": bool} | dict.fromkeys(more, str)
    if any(word in ("-h", "--help") for word in argv):
        return ["--help"], None
    words: list[str] = []
    values: dict[str, object] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, text = word.partition("=")
        key = flag.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or key not in known:
            raise UsageError(f"'{flag}' is not a flag of upweight lab {name}. {_hint(word, key, name, known)}")
        if key in values:
            raise UsageError(f"'{flag}' is there twice. Keep one of them.")
        if known[key] is bool:
            if equals:
                raise UsageError(f"'{flag}' takes no value: leave out '={text}'.")
            words.append(f"--{key}")
            values[key] = True
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"'{flag}' needs a value: {_kind(known[key])}.")
            text = rest.pop(0)
        values[key] = _value(text, known[key], flag, f"upweight lab {name}")
        words.append(f"--{key}={text.lower() if values[key] is None else text}")
    return words, values


def _hint(word: str, key: str, name: str, known: Mapping[str, object]) -> str:
    if not word.startswith("-"):
        return "A flag starts with --, and a list is written with commas, as in 1,0,0,1."
    near = nearest(key, known)
    return f"Did you mean '--{near}'?" if near else f"`upweight lab {name} --help` lists them."


def _value(text: str, hint: object, flag: str, owner: str) -> object:
    """A word of the command line as the value of a parameter."""
    try:
        if typing.get_origin(hint) is tuple:
            member = typing.get_args(hint)[0]
            value: object = tuple(_number(part, member) for part in text.split(","))
            wrong = [must for part in typing.cast(tuple[object, ...], value) if (must := must_be(member, part))]
        else:
            value = None if text.lower() == "none" else text
            if value is not None and must_be(hint, value):
                value = _number(text, hint)
            wrong = [must] if (must := must_be(hint, value)) else []
    except ValueError:
        wrong = ["wrong"]
    if wrong:
        raise bad_parameter(flag, owner, _kind(hint), text, choice_meant(hint, text))
    return value


def _number(text: str, hint: object) -> float:
    return float(text) if hint is float else int(text)


def _kind(hint: object) -> str:
    """What a flag's value has to be."""
    if typing.get_origin(hint) is tuple:
        kind, example = ("whole", "100,200") if typing.get_args(hint)[0] is int else ("finite", "0.1,0.2")
        return f"{kind} numbers with commas between them, as in {example}"
    words: Mapping[object, str] = {float: "a finite number", str: "a file"}
    return words.get(hint) or str(must_be(hint, object()))


def _lists() -> tyro.constructors.ConstructorRegistry:
    """How a tuple of numbers is written on the command line, with commas, and `none`."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def lists(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        if info.type is type(None):
            return tyro.constructors.PrimitiveConstructorSpec(
                nargs=1,
                metavar="{none}",
                instance_from_str=_none,
                is_instance=lambda value: value is None,
                str_from_instance=lambda value: ["none"],
            )
        if typing.get_origin(info.type) is not tuple:
            return None
        member = typing.get_args(info.type)[0]
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="N,N,...",
            instance_from_str=lambda words: tuple(_number(part, member) for part in words[0].split(",")),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda value: [",".join(f"{item:g}" for item in value)],
        )

    return registry


def _none(words: list[str]) -> None:
    if words[0] != "none":
        raise ValueError("none was expected")


def _target(plot: str | None, name: str) -> Path | None:
    """The file of the figure, checked before anything is computed."""
    if plot is None:
        return None
    target = given_path(plot, "--plot")
    if target.suffix.lower() not in (".svg", ".png"):
        raise bad_parameter("--plot", f"upweight lab {name}", "a file that ends in .svg or .png", plot)
    if not target.parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no folder '{target.parent}'. Make it first, or choose another.")
    if target.is_dir():
        raise UsageError(f"--plot {plot}: this is a folder. Name a file in it.")
    return target


def _write(figure: Any, target: Path) -> None:
    from upweight.lab.style import save

    try:
        save(figure, target)
    except OSError as error:
        raise UsageError(f"--plot {target}: the figure cannot be written: {error.strerror}.") from None


def _help() -> str:
    width = max(map(len, NAMES))
    names = "\n".join(f"  {name:<{width}}  {row.summary}" for name, row in NAMES.items())
    examples = "\n".join(f"  upweight lab {name} {NAMES[name].example}" for name in list(NAMES)[:3])
    return f"""usage: upweight lab NAME [flags]

Small experiments with the functions that the trainer uses. Change a parameter, and see what it does.

names:
{names}

examples:
{examples}

`upweight lab NAME --help` shows the flags of one; --json prints its numbers for a program."""
