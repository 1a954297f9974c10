"""Optional packages: imported where they are needed, with one line that says how to get them."""

import importlib
from typing import Any

from upweight.objective.errors import UsageError


def optional(module: str, extra: str, what: str) -> Any:
    """Import a module that an extra of upweight brings.

    Args:
        module: its import name.
        extra: the extra's name in `pip install 'upweight[...]'`.
        what: what needs it, as the subject of the error's sentence.

    Returns:
        The module.

    Raises:
        UsageError: it is not installed; the sentence says what to install.

    Example:
        >>> optional("json", "datasets", "This").dumps([1])
        '[1]'
        >>> optional("no_such_module", "datasets", "A Parquet file")
        Traceback (most recent call last):
        ...
        upweight.objective.errors.UsageError: A Parquet file needs the Python package no_such_module: \
pip install 'upweight[datasets]'.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Something that is missing inside the package is another fault, and not ours to explain.
        if error.name is None or module.split(".")[0] != error.name:
            raise
        raise UsageError(f"{what} needs the Python package {error.name}: pip install 'upweight[{extra}]'.") from error
