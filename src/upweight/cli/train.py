"""`upweight train`: flags, a preset and a file become a `TrainArgs`. Imports no torch before it trains."""

import contextlib
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from upweight.cli.config import FLAG_TYPES, did_you_mean, read_config
from upweight.objective.errors import UsageError, bad_parameter, nearest
from upweight.objective.fields import must_be
from upweight.objective.presets import PRESETS
from upweight.train.args import TrainArgs
from upweight.train.check import check_args

_DESCRIPTION = """Train a language model by reinforcement learning on checked answers.

Values come from the defaults, then --preset, then --config, then the flags: the later one wins.

examples:
  upweight train --preset dr-grpo --max_steps 50
  upweight train --model smollm2-135m --clip_high 0.28 --filter_groups true --kl_coef 0
  upweight train --config run.toml --seed 1 --dry-run"""


ELSEWHERE = {
    "resume": "A run cannot be resumed yet; --model RUN/checkpoint-N starts a new one from its weights.",
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
class TrainCall:
    """One call of `upweight train`, as far as the command line alone tells."""

    args: Annotated[TrainArgs, tyro.conf.FlagConversionOff] = field(default_factory=TrainArgs)
    """The run's configuration."""

    config: str | None = None
    """A TOML, YAML or JSON file of flags (`clip_high = 0.28`, a run's config.json); flags given here win over it."""

    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check everything that can be checked before a model is loaded, and stop there."""


def run(argv: Sequence[str]) -> int:
    """Train, or with `--dry-run` check that training could start.

    Args:
        argv: what follows `upweight train`.

    Returns:
        0.

    Raises:
        UsageError: the configuration cannot work.
        SystemExit: 2 for a flag that does not parse, 0 after `--help`.
    """
    args, dry_run = resolve(argv)
    check_args(args)
    # Only now: PyTorch takes seconds to load, and a wrong flag should not cost them.
    from upweight.train.trainer import Trainer

    trainer = Trainer(args=args)
    if dry_run:
        trainer.check()
        trainer.describe()
    else:
        trainer.train()
    return 0


def resolve(argv: Sequence[str]) -> tuple[TrainArgs, bool]:
    """Put the configuration together: defaults < preset < file < flags.

    The command line is parsed twice: once to learn which preset and which file it names, then on top of what
    these two say.

    Args:
        argv: what follows `upweight train`.

    Returns:
        The configuration, and whether this is a dry run. Fields that the run fills in later stay None.

    Raises:
        UsageError: an unknown preset, or something wrong with the file.
        SystemExit: 2 for a flag that does not parse, 0 after `--help`.

    Example:
        >>> args, dry_run = resolve(["--preset", "gspo", "--clip-high", "0.001"])
        >>> args.objective.ratio_level, args.objective.bounds
        ('sequence', (0.9997, 1.001))
    """
    first = _parse(argv, TrainArgs())
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv if word.startswith("--")}
    values = read_config(first.config) if first.config is not None else {}
    name = first.args.preset if "preset" in given else values.get("preset", first.args.preset)
    budget = first.args.max_new_tokens if "max_new_tokens" in given else values.get("max_new_tokens")
    call = _parse(argv, _defaults(str(name), values, budget if isinstance(budget, int) else None))
    return call.args, call.dry_run


def _defaults(name: str, values: Mapping[str, object], max_new_tokens: int | None) -> TrainArgs:
    """What holds where no flag is given: the preset's row with the file's values on top."""
    if name not in PRESETS:
        raise UsageError(f"'{name}' is not a preset. {did_you_mean(name.lower(), tuple(PRESETS))}")
    return TrainArgs.from_flags(**{**values, "preset": name, "max_new_tokens": max_new_tokens})


def _parse(argv: Sequence[str], defaults: TrainArgs) -> TrainCall:
    _refuse(argv)
    printed = io.StringIO()
    try:
        with _words(), contextlib.redirect_stderr(printed):
            return _read(argv, defaults)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(_sentence(printed.getvalue())) from None


def _refuse(argv: Sequence[str]) -> None:
    """Raise for the first flag that does not exist, or whose value does not fit, before tyro says so at length."""
    for word, following in itertools.zip_longest(argv, argv[1:]):
        flag, equals, text = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name in ("config", "dry_run", "help"):
            continue
        if name not in FLAG_TYPES:
            raise UsageError(f"'{flag}' is not a flag of upweight train. {_meant(name)}")
        value = text if equals else following
        if value is None or value.startswith("--"):
            must = must_be(FLAG_TYPES[name], object())
            raise UsageError(f"'{flag}' needs a value: {must}.")
        if must := must_be(FLAG_TYPES[name], _read_word(value, FLAG_TYPES[name])):
            raise bad_parameter(flag, "upweight train", must, value)


def _meant(name: str) -> str:
    """What a flag that does not exist was probably meant to be."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    near = nearest(name, FLAG_TYPES)
    return f"Did you mean '--{near}'?" if near else "`upweight train --help` lists them."


def _read_word(text: str, hint: object) -> object:
    """A word of the command line as the Python value it stands for."""
    if must_be(hint, text) is None:
        return text
    words: dict[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _sentence(box: str) -> str:
    """What tyro says in a box of several lines, as one sentence."""
    lines = [line.strip(" |\u2502") for line in box.splitlines()[1:]]  # the first is a title
    blocks = [list(block) for words, block in itertools.groupby(lines, _has_words) if words]
    said = " ".join(blocks[0]) if blocks else "The flags could not be read"
    return f"{said.rstrip('.')}. `upweight train --help` lists the flags and their values."


def _has_words(line: str) -> bool:
    """Whether a line says something; the others are the rules between the parts of a box."""
    return any(character.isalnum() for character in line)


def _read(argv: Sequence[str], defaults: TrainArgs) -> TrainCall:
    """Let tyro read the flags; it prints what is wrong and leaves with SystemExit."""
    return tyro.cli(
        TrainCall,
        prog="upweight train",
        description=_DESCRIPTION,
        args=list(argv),
        default=TrainCall(args=defaults),
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
