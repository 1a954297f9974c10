"""The sentence for a name nobody knows: the valid ones, and the one that was probably meant."""

from collections.abc import Iterable

from upweight.objective.errors import UsageError, nearest


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Build the error for a name that is not in a registry.

    Args:
        kind: what the name should have been ("task", "reward").
        name: what was given.
        known: the valid names.

    Returns:
        The error, to be raised by the caller.

    Example:
        >>> print(unknown_name("task", "arithmetc", ["arithmetic"]))
        There is no task 'arithmetc'. Did you mean 'arithmetic'? Valid: arithmetic.
    """
    names = sorted(known)
    close = nearest(name, names)
    hint = f" Did you mean '{close}'?" if close else ""
    return UsageError(f"There is no {kind} '{name}'.{hint} Valid: {', '.join(names)}.")
