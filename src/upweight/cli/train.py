"""`upweight train`: check what the flags say, then train. Imports no torch before it trains."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from upweight.cli.config import read_config
from upweight.cli.flags import Call, resolve
from upweight.objective.dialects import Translation
from upweight.objective.errors import UsageError
from upweight.objective.paths import given_path
from upweight.train.check import check_args
from upweight.train.launch import Launch, check_launch
from upweight.train.saving.begun import begun_config, device_again

PROGRAM = "upweight train"

DESCRIPTION = """Train a language model by reinforcement learning on checked answers.

Values come from the defaults, then --preset (or --like), then --config, then the flags: the later one wins.
What is not given beside --resume is as the run was begun.
`upweight explain` with the same flags says what their objective is.

examples:
  upweight train --preset dr-grpo --max_steps 50
  upweight train --model smollm2-135m --clip_high 0.28 --filter_groups true --kl_coef 0
  upweight train --config run.toml --seed 1 --dry-run
  upweight train --resume runs/mine/checkpoint-200
  upweight train --config run.toml --output_dir runs/mine --save_every 20 --resume auto"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainCall(Call, Launch):
    """One call of `upweight train`, as far as the command line alone tells."""

    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check everything that can be checked before a model is loaded, and stop there."""

    def begun(self, output_dir: object) -> Mapping[str, object]:
        """See `Call.begun`: with --resume, what is not given is as it was."""
        if self.resume is None:
            return {}
        files, folder = begun_config(self.resume, output_dir if isinstance(output_dir, str) else None)
        for file in files:
            # What is wrong with a damaged one is said when its checkpoint is checked as a whole.
            with contextlib.suppress(UsageError):
                values = read_config(str(file))
                if "device" in values:
                    alone = os.environ.get("WORLD_SIZE") in (None, "1")
                    values["device"] = device_again(str(values["device"]), alone=alone)
                return values if folder is None else {**values, "output_dir": str(folder)}
        return {}


def run(argv: Sequence[str]) -> int:
    """Train, or with `--dry-run` check that training could start.

    Args:
        argv: what follows `upweight train`.

    Returns:
        0.

    Raises:
        UsageError: the configuration cannot work.
        SystemExit: 0 after `--help`.
    """
    call, translation = read(argv)
    check_launch(call)
    check_args(call.args)
    # Only now: PyTorch takes seconds to load, and a wrong flag should not cost them.
    from upweight.train.trainer import Trainer

    trainer = Trainer(args=call.args, launch=call)
    speaks = os.environ.get("RANK", "0") == "0"  # one of those that torchrun has started
    for sentence in translation.unmatched if translation and speaks else ():
        print(f"note: {sentence}")
    if call.dry_run:
        trainer.check()
        if speaks:
            trainer.describe()
    else:
        trainer.train()
    return 0


def read(argv: Sequence[str]) -> tuple[TrainCall, Translation | None]:
    """What a command line asks for, and how another trainer's settings in it were read.

    Example:
        >>> call, _ = read(["--preset", "gspo", "--clip-high", "0.001"])
        >>> call.args.objective.ratio_level, call.args.objective.bounds
        ('sequence', (0.9997, 1.001))
    """
    call, translation = resolve(argv, TrainCall, PROGRAM, DESCRIPTION)
    folder = call.args.output_dir
    if folder is not None:
        path = given_path(folder, "--output_dir")
        if folder.startswith("~"):  # which a shell leaves alone in --output_dir=~/runs
            args = dataclasses.replace(call.args, output_dir=str(path))
            call = dataclasses.replace(call, args=args)
    return call, translation
