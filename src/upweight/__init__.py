"""upweight: reinforcement learning on verifiable rewards, the trainer whose maths you can check.

The public names are loaded on first use, so that `import upweight` and `upweight --help` stay free of PyTorch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from upweight.objective.dense import aggregate_token_loss, gae, group_advantages, grpo_loss, token_weights
    from upweight.objective.spec import Objective
    from upweight.rewards.verify import verify
    from upweight.train.args import TrainArgs
    from upweight.train.trainer import Trainer

__all__ = [
    "Objective",
    "TrainArgs",
    "Trainer",
    "__version__",
    "aggregate_token_loss",
    "gae",
    "group_advantages",
    "grpo_loss",
    "token_weights",
    "verify",
]

_HOME = {
    "Objective": "upweight.objective.spec",
    "TrainArgs": "upweight.train.args",
    "Trainer": "upweight.train.trainer",
    "aggregate_token_loss": "upweight.objective.dense",
    "gae": "upweight.objective.dense",
    "group_advantages": "upweight.objective.dense",
    "grpo_loss": "upweight.objective.dense",
    "token_weights": "upweight.objective.dense",
    "verify": "upweight.rewards.verify",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562), once."""
    if name == "__version__":
        value: object = _version()
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'upweight' has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    """The installed version; `0+unknown` for a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("upweight")
    except PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
