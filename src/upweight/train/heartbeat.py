"""What each process of a run is doing, kept where the others can read it after it is gone."""

import json
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

BEAT_SECONDS = 0.5
"""Between two signs of life."""

GONE_SECONDS = 3.0
"""Without a sign of life, after which a process that is missed counts as gone."""

SILENT_SECONDS = 60.0
"""Without a sign of life, after which one that nobody misses yet does: loading may hold its thread up for long."""


class Heartbeat:
    """Signs of life of this process, and what can be told of the others when one of them is missed.

    A thread writes them into the key-value store of the process group, which torchrun's own process holds: it outlives
    the process that it speaks of.
    """

    def __init__(self, store: Any, *, rank: int, world: int) -> None:
        """Start to beat.

        Args:
            store: of the process group, a torch.distributed Store.
            rank: of this process.
            world: how many there are.
        """
        self._store = store.clone()  # a connection of its own: another may be waiting for hours
        self._store.set_timeout(timedelta(seconds=GONE_SECONDS))
        self._rank, self._world = rank, world
        self._place = "before the first step"
        self._heard: dict[int, tuple[object, float]] = {}
        self.meetings = self._beats = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Where this process is, in a reader's words: `in step 3 (sampling)`."""
        self._place = place
        self._beat()

    def meets(self) -> None:
        """Count a collective that this process has come to."""
        self.meetings += 1

    def failed(self, error: BaseException) -> None:
        """Leave the cause for the others, before this process ends."""
        first = str(error).strip().partition("\n")[0].rstrip(".")
        cause = f"{type(error).__name__}: {first}" if first else type(error).__name__
        with self._lock:
            self._store.set(f"failed/{self._rank}", f"failed {self._place}: {cause}")

    def left(self) -> None:
        """Say that this process ends, and not because of a failure of its own."""
        with self._lock:
            self._store.set(f"left/{self._rank}", "")

    def stop(self) -> None:
        """No more signs of life."""
        self._over.set()
        self._thread.join()

    def cause(self, *, stopping: bool = False) -> str | None:
        """Which rank is missing, where it was, and what is known of it. Takes `GONE_SECONDS` at most.

        Args:
            stopping: this process was asked to end, and was not waiting for another.

        Returns:
            None where every other rank is there, or has left for no failure of its own.
        """
        others = [rank for rank in range(self._world) if rank != self._rank]
        before = {rank: self._read(rank) for rank in others}
        deadline = time.monotonic() + GONE_SECONDS
        while others and time.monotonic() < deadline:
            if said := self.first_failure():
                return said
            time.sleep(BEAT_SECONDS / 5)
            others = [rank for rank in others if not self._has(f"left/{rank}")]
        now = {rank: self._read(rank) for rank in others}
        for rank in others:
            if now[rank].get("beats") == before[rank].get("beats"):
                return _gone(rank, now[rank])
        late = [rank for rank in others if now[rank]["meetings"] < self.meetings]
        if stopping or not late:
            return None
        rank = min(late, key=lambda rank: now[rank]["meetings"])
        return f"rank {rank} did not come in time; it is alive {now[rank]['place']}"

    def first_failure(self) -> str | None:
        """What a rank that failed has left, if one has."""
        for rank in range(self._world):
            if rank != self._rank and (said := self._failure(rank)):
                return f"rank {rank} {said}"
        return None

    def silent(self, rank: int) -> str | None:
        """That a rank is gone, where it has given no sign of life for `SILENT_SECONDS` of those this is asked in.

        Args:
            rank: whom this process waits for; ask again and again.
        """
        now, found = time.monotonic(), self._read(rank)
        beats, since = self._heard.get(rank, (None, now))
        if beats != found.get("beats"):
            since = now
        self._heard[rank] = (found.get("beats"), since)
        return _gone(rank, found) if now - since >= SILENT_SECONDS else None

    def _failure(self, rank: int) -> str | None:
        with self._lock:
            return self._store.get(f"failed/{rank}").decode() if self._store.check([f"failed/{rank}"]) else None

    def _has(self, key: str) -> bool:
        with self._lock:
            return bool(self._store.check([key]))

    def _read(self, rank: int) -> dict[str, Any]:
        with self._lock:
            there = self._store.check([f"beat/{rank}"])
            found: dict[str, Any] = json.loads(self._store.get(f"beat/{rank}")) if there else {}
        return found

    def _beat(self) -> None:
        with self._lock:
            self._beats += 1
            text = json.dumps({"beats": self._beats, "place": self._place, "meetings": self.meetings})
            self._store.set(f"beat/{self._rank}", text)

    def _go_on(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                self._beat()
            except RuntimeError:  # the process that holds the store has ended: nobody is left to read it
                return


def _gone(rank: int, last: Mapping[str, Any]) -> str:
    place = last.get("place", "before it was ready")
    return f"rank {rank} is gone {place}: it was killed, or stopped, or its machine was"
