"""Coroutine reward functions, awaited from ordinary code."""

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections.abc import Awaitable


class Late(TimeoutError):
    """A coroutine was not done at its deadline."""


def resolved(value: object, seconds: float | None = None) -> object:
    """The value itself, or what it comes to where it has to be awaited.

    Awaiting happens on one event loop in a thread of its own, for two reasons: a caller may have a running loop
    already (notebooks do), and a function may keep a session open between calls, which belongs to a loop.

    Args:
        value: what a reward function returned.
        seconds: a coroutine may take; it is cancelled then. No limit where None.

    Returns:
        The result.

    Raises:
        Late: the coroutine took longer.
        Exception: whatever the coroutine raised.

    Example:
        >>> async def slow():
        ...     return [1.0]
        >>> resolved(slow()), resolved([2.0])
        ([1.0], [2.0])
    """
    if not inspect.isawaitable(value):
        return value
    future = asyncio.run_coroutine_threadsafe(_await(value), _loop())
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError as error:
        if future.done():
            raise  # the coroutine's own
        future.cancel()
        raise Late(f"it took longer than {seconds:g} s") from error
    except BaseException:
        future.cancel()  # Ctrl-C while waiting: the coroutine must not go on behind the run's back
        raise


async def _await(value: Awaitable[object]) -> object:
    try:
        return await value
    except SystemExit as error:
        # asyncio would end the loop's thread with it, and the caller would wait for ever.
        raise RuntimeError(f"the reward function called sys.exit({error.code!r})") from error


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="upweight-async-rewards", daemon=True).start()
    return loop
