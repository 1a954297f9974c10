"""SIGINT and SIGTERM: finish the step or drop its sampling, save, leave; a second one leaves at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import torch

from upweight.train.ranks import Ranks

HANDLED = (signal.SIGINT, signal.SIGTERM)


class SamplingDropped(BaseException):
    """A signal came while a step was still sampling: its answers are dropped, its prompts are for the next run.

    Not an `Exception`, as KeyboardInterrupt is none: nothing failed, and nobody may count it as a failure.
    """


class GracefulStop:
    """While it is entered, a first SIGINT or SIGTERM only sets `received`; a second one takes its ordinary effect.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._may_drop = False

    def __enter__(self) -> "GracefulStop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Within it, `check` may end what is being sampled."""
        self._may_drop = True
        try:
            yield
        finally:
            self._may_drop = False

    def asked(self) -> bool:
        """Whether a signal has come to this process."""
        return self.received is not None

    def check(self) -> None:
        """Called between two tokens of a rollout.

        Raises:
            SamplingDropped: within `dropping`, once a signal has come.
        """
        if self._may_drop and self.received is not None:
            raise SamplingDropped

    def agreed(self, ranks: Ranks) -> bool:
        """Whether a signal has come to any rank; every rank then leaves as that one does. Called at a step's border."""
        if ranks.world == 1:
            return self.asked()
        came = ranks.sum(torch.tensor([float(self.received is number) for number in HANDLED]))
        if self.received is None and bool(came.any()):
            self.received = HANDLED[int(came.argmax())]
        return self.asked()

    def leave(self) -> None:
        """Raise what the received signal stands for: KeyboardInterrupt, or SystemExit with 128 + its number."""
        if self.received is signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
