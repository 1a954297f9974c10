"""Secrets stay out of what a run writes and says. Imports no torch."""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
"""What stands where a secret was."""

SHORTEST = 8
"""Characters that a variable's value needs to be taken for a secret: shorter ones are words and numbers of any text."""

_NAMED_SECRET = re.compile(r"((^|_)(TOKEN|KEY|SECRET|CREDENTIALS?)|PASSWORD|PASSWD|APIKEY)$", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^\s/?#'\"]+(?=@)")
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}"
    r"|\bsk-(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]*[A-Za-z0-9]{16,}[A-Za-z0-9_-]*"  # not the words of a name like sk-learn-regression-run
)

LOGGERS = ("upweight.rewards.runner", "upweight.tasks.gym")
"""The loggers that say what reward functions raise."""


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """A text without what looks like a secret.

    Hidden are: what stands before the @ of a URL; the values of environment variables called *_TOKEN, *_KEY, *_SECRET,
    *PASSWORD (or just that) of at least `SHORTEST` characters; keys of the forms hf_... and sk-....

    Args:
        text: any.
        environment: the process's own where None.

    Example:
        >>> redact("https://me:pw@host/x with hf_abcdefghijklmnop and letmein-letmein", {"MY_KEY": "letmein-letmein"})
        'https://***@host/x with *** and ***'
    """
    variables = os.environ if environment is None else environment
    values = {value for name, value in variables.items() if len(value) >= SHORTEST and _NAMED_SECRET.search(name)}
    for value in sorted(values, key=len, reverse=True):  # one may be part of another
        text = text.replace(value, HIDDEN)
    return _SHAPES.sub(HIDDEN, _USERINFO.sub(HIDDEN, text))


def redacted(value: Any) -> Any:
    """Plain JSON values with every text in them redacted; keys are left as they are.

    Example:
        >>> redacted({"data": "https://me:pw@host/x", "steps": [3, None]})
        {'data': 'https://***@host/x', 'steps': [3, None]}
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: redacted(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part) for part in value]
    return value


class _WithoutSecrets(logging.Filter):
    """Takes secrets out of a record, whoever prints it: its message, its arguments, its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        if record.exc_info:
            # Whoever formats a record prints this text; from the exception itself the secret would come back.
            record.exc_text, record.exc_info = redact(logging.Formatter().formatException(record.exc_info)), None
        return True


_FILTER = _WithoutSecrets()


def redact_logs() -> None:
    """Keep secrets out of what reward functions raise, also where a program that is not ours prints the log."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
