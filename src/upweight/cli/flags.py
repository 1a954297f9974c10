"""The flags of a run, for every verb that takes them: defaults < preset or --like < file < flags. Imports no torch."""

import contextlib
import dataclasses
import io
import itertools
import typing
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import tyro

from upweight.cli.config import FLAG_TYPES, OBJECTIVE_FLAGS, did_you_mean, read_config
from upweight.objective.dialects import DIALECTS, Setting, Translation, translate
from upweight.objective.dialects.base import choice_meant, last_part
from upweight.objective.errors import UsageError, bad_parameter, nearest
from upweight.objective.fields import must_be
from upweight.objective.presets import PRESETS
from upweight.train.args import TrainArgs

ELSEWHERE = {
    "lr": "It is --learning_rate.",
    "beta": "The weight of the KL is --kl_coef.",
    "num_generations": "Answers per prompt are --group_size.",
    "per_device_train_batch_size": "Batches are --prompts_per_step x --group_size; --micro_batch_tokens bounds memory.",
    "gradient_accumulation_steps": "Passes are cut by --micro_batch_tokens; updates per step are --minibatches.",
    "max_completion_length": "The budget of an answer is --max_new_tokens.",
    "num_iterations": "Passes over a batch are --epochs_per_batch.",
    "epsilon": "The clip's bounds are --clip and --clip_high.",
    "epsilon_high": "The clip's upper bound is --clip_high.",
    "delta": "It is --dual_clip.",
    "loss_type": "A loss is a --preset; how it is averaged is --loss_agg.",
    "scale_rewards": "It is --adv_norm.",
    "importance_sampling_level": "It is --ratio_level.",
}
"""Names that other trainers give to a flag, or that it will have, and what to say to somebody who types them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What every verb that takes a run's flags takes."""

    args: Annotated[TrainArgs, tyro.conf.FlagConversionOff] = field(default_factory=TrainArgs)
    """The run's configuration."""

    config: str | None = None
    """A TOML, YAML or JSON file of flags (`clip_high = 0.28`, a run's config.json); flags given here win over it."""

    like: Annotated[str | None, tyro.conf.arg(metavar="{" + ",".join(DIALECTS) + "}")] = None
    """In place of a preset: start from that trainer's defaults, and read the names it has for what decides the
    objective (loss_type, epsilon_high, beta, ...) in its own meaning."""

    def begun(self, output_dir: object) -> Mapping[str, object]:
        """Values for flags that neither the command line nor the file gives, from a run that this call goes on with.

        Args:
            output_dir: what these say about the run folder.

        Returns:
            Flag -> value; empty where the call starts afresh.
        """
        return {}


C = TypeVar("C", bound=Call)

_TRAINERS: object = Literal.__getitem__(tuple(DIALECTS))
"""What `--like` takes."""


def resolve(argv: Sequence[str], kind: type[C], program: str, description: str) -> tuple[C, Translation | None]:
    """Put the configuration together: defaults < preset or --like < the run that is gone on with < file < flags.

    The command line is parsed twice: once to learn which preset, trainer and file it names, then on top of what these
    say.

    Args:
        argv: what follows the verb.
        kind: the verb's call, a record of its flags.
        program: `upweight train`, for messages.
        description: heads the help.

    Returns:
        The call - fields of its configuration that the run fills in later stay None - and how the settings of
        another trainer were read, where --like names one.

    Raises:
        UsageError: an unknown preset, trainer or setting, --like or a setting twice, or something wrong with the
            file.
        SystemExit: 0 after `--help`.
    """
    if any(word in ("-h", "--help") for word in argv):
        argv = ["--help"]
    trainer = _trainer_of(argv)
    theirs: Mapping[str, object] = {}
    own = _own_flags(kind)
    if trainer in DIALECTS:
        switches = [name for name, hint in own.items() if hint is bool]
        argv, theirs = _take_settings(argv, trainer, switches)
    _refuse(argv, own, program, trainer)
    first = _parse(argv, kind(), program, description)
    given = {_name_of(word) for word in argv if word.startswith("--")}
    values = {} if first.config is None else read_config(first.config, program=program, own=own)
    begun = first.begun(first.args.output_dir if "output_dir" in given else values.get("output_dir"))
    if {"preset", "like"} & (given | set(values)):  # then these say which objective
        begun = {flag: value for flag, value in begun.items() if flag not in OBJECTIVE_FLAGS | {"preset"}}
    values = {**begun, **values}
    budget = first.args.max_new_tokens if "max_new_tokens" in given else values.get("max_new_tokens")
    budget = budget if isinstance(budget, int) else None
    if first.like is None:
        translation = None
        name = str(first.args.preset if "preset" in given else values.get("preset", first.args.preset))
        if name not in PRESETS:
            raise UsageError(f"'{name}' is not a preset. {did_you_mean(name.lower(), tuple(PRESETS))}")
        defaults = TrainArgs.from_flags(**{**values, "preset": name, "max_new_tokens": budget})
    else:
        if "preset" in given | set(values):
            raise UsageError(
                f"--like {first.like} and a preset both say where the objective starts from. Leave one of them out; "
                f"with --like, {first.like}'s own names say which algorithm."
            )
        translation = translate(first.like, theirs, max_new_tokens=budget)
        start = {f.name: getattr(translation.objective, f.name) for f in dataclasses.fields(translation.objective)}
        defaults = TrainArgs.from_flags(**{**start, **values})
    call = _parse(argv, dataclasses.replace(kind(), args=defaults), program, description)
    return call, translation


def _trainer_of(argv: Sequence[str]) -> str:
    """What --like says, which has to be known before the other flags can be read; "" where it is not there."""
    found: list[str] = []
    for word, following in itertools.zip_longest(argv, argv[1:]):
        flag, equals, text = word.partition("=")
        if flag == "--like":
            _refuse_repeat(word, "like", ["like"] * len(found))
            found.append(text if equals else following or "")
    return found[0] if found else ""


def _name_of(word: str) -> str:
    """The name of a flag, as its field is called: `clip_high` of `--clip-high=0.3`."""
    return word.partition("=")[0].removeprefix("--").replace("-", "_")


def _refuse_repeat(word: str, name: str, seen: Container[str]) -> None:
    if name in seen:
        raise UsageError(f"'{word.partition('=')[0]}' is there twice. Keep one of them.")


def _own_flags(kind: type[Call]) -> dict[str, object]:
    """The flags of a verb's call itself, with what they hold; a bool is a switch without a value."""
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name != "args"}
    return hints | {"help": bool, "like": _TRAINERS}


def _take_settings(argv: Sequence[str], trainer: str, switches: Container[str]) -> tuple[list[str], dict[str, object]]:
    """What of a command line is in another trainer's words: the rest, and those settings by their names.

    Raises:
        UsageError: a `name=value` that is no setting of that trainer, a setting that is there twice, or one without
            its value.
    """
    settings = _settings_of(trainer)
    rest: list[str] = []
    theirs: dict[str, object] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        flag, equals, text = word.partition("=")
        name = _name_of(word.lstrip("+"))  # with a +, verl's configuration takes a name that its files do not have
        dashes = word.startswith("-")
        if not (name in settings if dashes else equals):
            rest.append(word)
            if dashes and not equals and name not in switches and words and not words[0].startswith("--"):
                rest.append(words.pop(0))  # its value, which may look like a setting
            continue
        setting = settings.get(name) or DIALECTS[trainer].setting(flag.lstrip("+"))
        _refuse_repeat(word, setting.name, theirs)
        values = [text] if equals else []
        # A pair of numbers, or no word for a switch.
        while words and not equals and not words[0].startswith("--") and "=" not in words[0]:
            values.append(words.pop(0))
        if not values and setting.kind is not bool:
            raise UsageError(f"'{flag}' needs a value: {must_be(setting.kind, object())}.")
        theirs[setting.name] = _read_word(" ".join(values), setting.kind, ("none", "null")) if values else True
    return rest, theirs


def _settings_of(trainer: str) -> Mapping[str, Setting]:
    """Another trainer's settings, by every spelling of their names."""
    return {
        spelling: setting
        for setting in DIALECTS[trainer].settings
        for spelling in (setting.name, setting.path)
        if spelling
    }


def _parse(argv: Sequence[str], defaults: C, program: str, description: str) -> C:
    printed = io.StringIO()
    try:
        with _words(), contextlib.redirect_stderr(printed):
            return _read(argv, defaults, program, description)
    except SystemExit as stop:
        if stop.code != 2:  # help was shown, or a signal came
            raise
        raise UsageError(_sentence(printed.getvalue(), program)) from None


def _refuse(argv: Sequence[str], own: Mapping[str, object], program: str, like: str) -> None:
    """Raise for the first flag that does not exist, or whose value does not fit, before tyro says so at length."""
    types = {**FLAG_TYPES, **own}
    for word, following in itertools.zip_longest(argv, argv[1:]):
        if not word.startswith("--"):
            continue
        flag, equals, text = word.partition("=")
        name = _name_of(word)
        if name not in types:
            raise UsageError(f"'{flag}' is not a flag of {program}. {_meant(name, types, program, like)}")
        if own.get(name) is bool:
            if equals:
                raise UsageError(f"'{flag}' takes no value: leave out '={text}'.")
            continue
        value = text if equals else following
        if value is None or value.startswith("--"):
            raise UsageError(f"'{flag}' needs a value: {must_be(types[name], object())}.")
        if must := must_be(types[name], _read_word(value, types[name])):
            raise bad_parameter(flag, program, must, value, choice_meant(types[name], value))


def _meant(name: str, known: Iterable[str], program: str, like: str) -> str:
    """What a flag that does not exist was probably meant to be."""
    near = DIALECTS[like].nearest(name) if like in DIALECTS else None
    if near and last_part(near) == last_part(name):
        return f"Did you mean '--{near}'?"
    speakers = [trainer for trainer in DIALECTS if name in _settings_of(trainer)]
    theirs = f" With --like {speakers[0]} it means what it means there." if speakers else ""
    if name in ELSEWHERE:
        return ELSEWHERE[name] + theirs
    if theirs:
        return theirs.strip()
    near = _closer(name, near, nearest(name, known))
    return f"Did you mean '--{near}'?" if near else f"`{program} --help` lists them."


def _closer(name: str, theirs: str | None, ours: str | None) -> str | None:
    """Which of two flags, another trainer's and ours, is the likelier to be meant."""
    if theirs is None or ours is None or "." in name:
        return theirs or ours
    return ours if nearest(name, (last_part(theirs), ours)) == ours else theirs


def _read_word(text: str, hint: object, nothing: Container[str] = ("none",)) -> object:
    """A word of the command line as the Python value it stands for."""
    if text.lower() in nothing and must_be(hint, None) is None:
        return None
    if must_be(hint, text) is None:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _sentence(box: str, program: str) -> str:
    """What tyro says in a box of several lines, as one sentence."""
    lines = [line.strip(" |\u2502") for line in box.splitlines()[1:]]  # the first is a title
    blocks = [list(block) for words, block in itertools.groupby(lines, _has_words) if words]
    said = " ".join(blocks[0]) if blocks else "The flags could not be read"
    return f"{said.rstrip('.')}. `{program} --help` lists the flags and their values."


def _has_words(line: str) -> bool:
    """Whether a line says something; the others are the rules between the parts of a box."""
    return any(character.isalnum() for character in line)


def _read(argv: Sequence[str], defaults: C, program: str, description: str) -> C:
    """Let tyro read the flags; it prints what is wrong and leaves with SystemExit."""
    return tyro.cli(
        type(defaults),
        prog=program,
        description=description,
        args=list(argv),
        default=defaults,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
        use_underscores=True,
    )


def _words() -> tyro.constructors.ConstructorRegistry:
    """How `true`, `false` and `none` are spelled on the command line; Python's own spelling works as well."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def words(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        if info.type is bool:
            return _one_of({"true": True, "false": False})
        if info.type is type(None):
            return _one_of({"none": None})
        return None

    return registry


def _one_of(spelling: Mapping[str, bool | None]) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    def read(words: list[str]) -> bool | None:
        if words[0].lower() not in spelling:
            raise ValueError(f"{' or '.join(spelling)} was expected")
        return spelling[words[0].lower()]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(spelling) + "}",
        instance_from_str=read,
        is_instance=lambda value: value in spelling.values(),
        str_from_instance=lambda value: [str(value).lower()],
    )
