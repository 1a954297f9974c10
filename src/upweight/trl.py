"""For scripts written for TRL: `from upweight.trl import GRPOConfig, GRPOTrainer` in place of `from trl import ...`."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from upweight.objective.errors import UsageError
from upweight.train.from_trl import read_trl
from upweight.train.run import TrainResult
from upweight.train.saving.checkpoint import CONFIG, MANIFEST, TRAINING
from upweight.train.trainer import Trainer


class GRPOConfig(SimpleNamespace):
    """TRL's settings under their own names, for `GRPOTrainer`.

    Args:
        output_dir: the run folder.
        **settings: fields of TRL 1.16's GRPOConfig; what is not given is as TRL has it.

    Raises:
        UsageError: TRL has no such field, or one that nothing here can stand for.

    Example:
        >>> GRPOConfig("runs/first", learning_rate=1e-5).learning_rate
        1e-05
    """

    def __init__(self, output_dir: str | None = None, **settings: Any) -> None:
        super().__init__(output_dir=output_dir, **settings)
        read_trl(self)


class GRPOTrainer(Trainer):
    """`Trainer`, called as TRL's GRPOTrainer is. Prints one line for each setting that nothing here can stand for.

    Args:
        model: a name as `--model` takes it, or a causal LM that is loaded already.
        reward_funcs: functions as TRL takes them, one or several.
        args: a GRPOConfig, of this module or of TRL; TRL's defaults where None.
        train_dataset: rows with a `prompt`.
        eval_dataset: held-out rows.
        processing_class: the tokenizer of a `model` that is loaded already.
        **others: TRL's other arguments; only None is accepted.

    Raises:
        UsageError: a setting or an argument that nothing here can stand for.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **others: Any,
    ) -> None:
        for name, value in others.items():
            if value is not None:
                raise UsageError(f"GRPOTrainer's '{name}' has nothing here to stand for it. Leave it out.")
        rows = len(train_dataset) if hasattr(train_dataset, "__len__") else None
        found = read_trl({} if args is None else args, rows=rows)
        for sentence in found.unmatched:
            print(f"note: {sentence}")
        super().__init__(
            model,
            reward_funcs,
            found.args,
            train_dataset,
            eval_dataset,
            processing_class,
            reward_weights=found.reward_weights,
        )
        self._result: TrainResult | None = None

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> TrainResult:
        """Run it; see `Trainer.train`.

        Args:
            resume_from_checkpoint: True goes on from the newest whole checkpoint of output_dir, and starts afresh where
                there is none, as `--resume auto` does; a folder is RUN/checkpoint-N, or RUN.
        """
        if resume_from_checkpoint:
            resume = "auto" if resume_from_checkpoint is True else str(resume_from_checkpoint)
            self.launch = dataclasses.replace(self.launch, resume=resume)
        self._result = super().train()
        return self._result

    def save_model(self, output_dir: str | None = None) -> None:
        """Copy the last checkpoint's model and tokenizer into a folder; the run folder where None.

        Raises:
            UsageError: nothing was trained yet.
        """
        if self._result is None:
            raise UsageError("There is nothing to save before train() has run.")
        target = self._result.folder if output_dir is None else Path(output_dir)
        state = shutil.ignore_patterns(MANIFEST, TRAINING, CONFIG, "optimizer*")
        shutil.copytree(self._result.checkpoint, target, dirs_exist_ok=True, ignore=state)
