"""Messages between processes: JSON behind four bytes that say how long it is. Nothing is ever unpickled."""

import json
import os
from typing import Any

LARGEST = 256 * 1024**2
"""Bytes of a message."""


class Closed(Exception):
    """The other end is gone, or what it wrote is no message."""


def write_frame(fd: int, content: dict[str, Any]) -> None:
    """Write a message.

    Raises:
        Closed: nobody reads any more.
    """
    data = json.dumps(content).encode()
    view = memoryview(len(data).to_bytes(4, "big") + data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise Closed(str(error)) from error


def read_frame(fd: int) -> dict[str, Any]:
    """Read a message, waiting for it.

    Raises:
        Closed: the other end is gone.
    """
    buffer = bytearray()
    while (message := take_frame(buffer)) is None:
        try:
            chunk = os.read(fd, 65_536)
        except OSError as error:
            raise Closed(str(error)) from error
        if not chunk:
            raise Closed("the other end is closed")
        buffer += chunk
    return message


def take_frame(buffer: bytearray) -> dict[str, Any] | None:
    """The first message in a buffer, taken out of it; None where it is not complete.

    Example:
        >>> take_frame(bytearray(b"\\x00\\x00\\x00\\x02{}")), take_frame(bytearray(b"\\x00"))
        ({}, None)
    """
    if len(buffer) < 4:
        return None
    length = int.from_bytes(buffer[:4], "big")
    if length > LARGEST:
        raise Closed("a message too long")
    if len(buffer) < 4 + length:
        return None
    data = bytes(buffer[4 : 4 + length])
    del buffer[: 4 + length]
    try:
        content = json.loads(data)
    except ValueError as error:
        raise Closed("no message") from error
    if not isinstance(content, dict):
        raise Closed("no message")
    return content
