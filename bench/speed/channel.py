"""The far end of a `Worker`: requests and replies as lines of JSON. Imported by every side, so it imports nothing."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


class Channel:
    """Requests from the standard input, replies to what was the standard output.

    Libraries print what they like: from here on that goes to the standard error.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def take(self) -> dict[str, Any] | None:
        """The next request; None at the end."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def reply(self, answer: dict[str, Any]) -> None:
        """Answer it."""
        print(json.dumps(answer), file=self._out, flush=True)


Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(make: Callable[[dict[str, Any]], tuple[dict[str, Any], Handler]]) -> None:
    """Answer the first request, which sets up, with what `make` says of itself, and the others by its handler."""
    channel = Channel()
    setup = channel.take()
    if setup is None:
        return
    said, handle = make(setup)
    channel.reply(said)
    while (request := channel.take()) is not None:
        channel.reply(handle(request))
