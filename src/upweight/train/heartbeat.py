"""What each process of a run is doing, kept where the others can read it after it is gone."""

import json
import threading
import time
from datetime import timedelta
from typing import Any

BEAT_SECONDS = 0.5
"""Between two signs of life."""

GONE_SECONDS = 3.0
"""Without a sign of life, after which a process counts as gone."""


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
        self.meetings = self._beats = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Where this process is, in a reader's words: `in step 3 (sampling)`."""
        self._place = place

    def meets(self) -> None:
        """Count a collective that this process has come to."""
        self.meetings += 1

    def failed(self, error: BaseException) -> None:
        """Leave the cause for the others, before this process ends."""
        first = str(error).strip().partition("\n")[0]
        cause = f"{type(error).__name__}: {first}" if first else type(error).__name__
        with self._lock:
            self._store.set(f"failed/{self._rank}", f"failed {self._place}: {cause}")

    def stop(self) -> None:
        """No more signs of life."""
        self._over.set()
        self._thread.join()

    def cause(self) -> str | None:
        """Why this process is alone in a collective: the rank that is missing, where it was, and what is known of it.

        Takes `GONE_SECONDS` at most. None where every other rank is there.
        """
        others = [rank for rank in range(self._world) if rank != self._rank]
        before = {rank: self._read(rank) for rank in others}
        deadline = time.monotonic() + GONE_SECONDS
        while time.monotonic() < deadline:
            for rank in others:
                if said := self._failure(rank):
                    return f"rank {rank} {said}"
            time.sleep(BEAT_SECONDS)
        now = {rank: self._read(rank) for rank in others}
        for rank in others:
            if now[rank].get("beats") == before[rank].get("beats"):
                place = now[rank].get("place", "before it was ready")
                return f"rank {rank} is gone {place}: it was killed, or stopped, or its machine was"
        rank = min(others, key=lambda rank: now[rank]["meetings"])
        if now[rank]["meetings"] >= self.meetings:
            return None
        return f"rank {rank} did not come in time; it is alive {now[rank]['place']}"

    def first_failure(self) -> str | None:
        """What a rank that failed has left, if one has."""
        for rank in range(self._world):
            if rank != self._rank and (said := self._failure(rank)):
                return f"rank {rank} {said}"
        return None

    def _failure(self, rank: int) -> str | None:
        with self._lock:
            there = self._store.check([f"failed/{rank}"])
            return self._store.get(f"failed/{rank}").decode() if there else None

    def _read(self, rank: int) -> dict[str, Any]:
        with self._lock:
            there = self._store.check([f"beat/{rank}"])
            found: dict[str, Any] = json.loads(self._store.get(f"beat/{rank}")) if there else {}
        return found

    def _beat(self) -> None:
        self._beats += 1
        text = json.dumps({"beats": self._beats, "place": self._place, "meetings": self.meetings})
        with self._lock:
            self._store.set(f"beat/{self._rank}", text)

    def _go_on(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                self._beat()
            except RuntimeError:  # the process that holds the store has ended; so will this one
                return
