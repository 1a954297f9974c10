"""What can be said of models and devices by their names alone. Imports no torch."""

import re
from collections.abc import Mapping

CONTEXTS: Mapping[str, int] = {"tiny": 512, "smollm2-135m": 8192}
"""Tokens of a prompt with its answer that the models behind the aliases take, at most."""

DEVICES = "auto, cpu, cuda or cuda:N"
"""What a device may be called, for messages."""

_DEVICE = re.compile(r"auto|(cpu|cuda)(:\d+)?", re.ASCII)


def is_device(text: str) -> bool:
    """Whether a name is one of `DEVICES`; whether the device is there, only torch knows.

    Example:
        >>> [is_device(name) for name in ("cuda:1", "cuda:x", "gpu")]
        [True, False, False]
    """
    return _DEVICE.fullmatch(text) is not None
