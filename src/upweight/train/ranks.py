"""The processes of a run, and what they say to each other. One process alone is the same code with nothing to say."""

import contextlib
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from upweight.objective.errors import UsageError
from upweight.train.heartbeat import Heartbeat

_T = TypeVar("_T")

LOOK_SECONDS = 0.2
"""Between two looks whether the first process is done with what it does alone."""


class RankError(RuntimeError):
    """Another process of the run is missing: says which, where it was, and what is known of the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among those of the run.

    `sum`, `gather`, `from_first`, `agree`, `same` and `in_turn` are collectives: all ranks call them, in one order.
    """

    rank: int = 0
    """Of this process, from 0."""

    world: int = 1
    """How many there are."""

    local: int = 0
    """Of this process among those of its machine, from 0."""

    heartbeat: Heartbeat | None = None
    """Tells the others where this process is; None alone."""

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, on each, to the bit the same; `tensor` is overwritten with it."""
        if self.world > 1:
            self._meet()
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        return tensor

    def gather(self, value: _T) -> list[_T]:
        """Every rank's value, in the order of the ranks, on each."""
        if self.world == 1:
            return [value]
        self._meet()
        values: list[_T] = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], _T]) -> _T:
        """What `make` returns on rank 0, on each; the others do not call it."""
        if self.world == 1:
            return make()
        return cast(_T, self.gather(make() if self.first else None)[0])

    def agree(self, flag: bool) -> bool:
        """Whether it holds on all ranks."""
        return bool(self.sum(torch.tensor([float(not flag)])) == 0)

    def same(self, tensors: Iterator[Tensor]) -> None:
        """Overwrite the tensors with those of rank 0: another machine may have rounded otherwise."""
        if self.world == 1:
            return
        self._meet()
        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """On each machine, the first process goes in alone, however long it takes; then the others, all at once.

        For what fills a cache: the others find it full.

        Raises:
            RankError: the first process failed, or is gone.
        """
        if self.world == 1:
            yield
            return
        self._meet()
        store = dist.distributed_c10d._get_default_store()
        key = f"in turn {self._met()} on {os.environ.get('GROUP_RANK', '0')}"
        while self.local > 0 and not store.check([key]):
            if said := self._lost(self.rank - self.local):
                raise RankError(said)
            time.sleep(LOOK_SECONDS)
        yield
        if self.local == 0:
            store.set(key, "done")

    def at(self, place: str) -> None:
        """Leave word where this process is, for the others' messages: `in step 3 (sampling)`. No collective."""
        if self.heartbeat is not None:
            self.heartbeat.at(place)

    def _meet(self) -> None:
        if self.heartbeat is not None:
            self.heartbeat.meets()

    def _met(self) -> int:
        return 0 if self.heartbeat is None else self.heartbeat.meetings

    def _lost(self, rank: int) -> str | None:
        return None if self.heartbeat is None else self.heartbeat.first_failure() or self.heartbeat.silent(rank)


ALONE = Ranks()
"""A run in one process."""

_RUNS = itertools.count(1)
"""Runs that this process has joined, one after the other; the same on every rank."""


@contextlib.contextmanager
def joined_ranks(*, timeout: float = 600.0) -> Iterator[Ranks]:
    """Join the other processes that torchrun started, for as long as a run lasts; `ALONE` where it started none.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Tensors of the CPU travel by gloo, those of a GPU
    by NCCL. An exception of this process is left where the others find it, and where this process waited in vain for
    another, its exception says for which.

    Args:
        timeout: seconds that one process may keep the others waiting.

    Raises:
        UsageError: an environment that is not torchrun's.
        RankError: another process is missing.
    """
    here = _environment()
    if here is None:
        yield ALONE
        return
    rank, world, local = here
    if "OMP_NUM_THREADS" not in os.environ:  # torchrun sets it; other launchers may not
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))))
    patience = timedelta(seconds=timeout)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(local)
    store, _, _ = next(iter(rendezvous("env://", rank, world, timeout=patience)))
    # Processes that torchrun starts again, and runs of one process, find what was written before them: addresses, and
    # why others ended.
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"start {start}, run {next(_RUNS)}", store)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world,
        timeout=patience,
    )
    heartbeat = Heartbeat(PrefixStore("heartbeat", store), rank=rank, world=world)
    try:
        # By default SIGTERM, which torchrun sends, would end this process without a word.
        with _handling(signal.SIGTERM, _stop), _blaming(heartbeat):
            yield Ranks(rank=rank, world=world, local=local, heartbeat=heartbeat)
    finally:
        heartbeat.stop()
        _leave()


def _leave() -> None:
    """Leave the process group, and wait for its threads.

    A thread of gloo that still has a tensor to drop while Python shuts down aborts the process: a run that has ended
    well would count as failed. They end with the last reference to the group; a sharded model, which is made of
    cycles, holds some.
    """
    gc.collect()
    dist.destroy_process_group()


@contextlib.contextmanager
def _blaming(heartbeat: Heartbeat) -> Iterator[None]:
    """Tell how this process ends: by itself, by its own failure, or by that of another, whose name it then gives."""
    try:
        yield
    except RankError:
        raise
    except (SystemExit, KeyboardInterrupt) as stop:
        # torchrun ends the others with SIGTERM as soon as one has failed: did it?
        heartbeat.left()
        _raise_for(heartbeat, stop, stopping=True)
        raise
    except RuntimeError as error:  # of every backend, where a connection closed or the time ran out
        _raise_for(heartbeat, error, stopping=False)
        heartbeat.failed(error)
        raise
    except Exception as error:
        heartbeat.failed(error)
        raise
    heartbeat.left()


def _raise_for(heartbeat: Heartbeat, error: BaseException, *, stopping: bool) -> None:
    """Raise RankError where another process is the cause. Signals wait until that is known."""
    with _handling(signal.SIGTERM, signal.SIG_IGN):
        cause = heartbeat.cause(stopping=stopping)
    if cause is not None:
        heartbeat.left()  # whoever still looks for the cause must not take this process for it
        way_out = "This process cannot go on without it; --resume goes on from the last checkpoint"
        raise RankError(f"{cause}. {way_out}") from error


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    """A signal's handler for a while; outside the main thread, where Python allows none, as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _environment() -> tuple[int, int, int] | None:
    """Rank, world and local rank; None where there is one process."""
    texts = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if texts["WORLD_SIZE"] in (None, "1"):
        return None
    try:
        rank, world = int(texts["RANK"] or ""), int(texts["WORLD_SIZE"] or "")
        return rank, world, int(texts["LOCAL_RANK"] or rank)
    except ValueError:
        raise UsageError(
            f"WORLD_SIZE={texts['WORLD_SIZE']!r} and RANK={texts['RANK']!r} in the environment are no ranks: start "
            "several processes with torchrun, or unset both."
        ) from None


def device_of(device: str, ranks: Ranks) -> str:
    """The device of this process: each has a GPU of its own.

    Args:
        device: as `--device` takes it.
        ranks: this process among the others.

    Raises:
        UsageError: one GPU named for several processes.
    """
    if ranks.world == 1:
        return device
    if device.startswith("cuda:"):
        raise UsageError(
            f"--device {device} is one GPU for {ranks.world} processes: each takes its own with --device cuda."
        )
    wanted = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return f"cuda:{ranks.local}" if wanted else device


def shares(costs: Sequence[int], world: int) -> list[list[int]]:
    """Divide work over `world` ranks so that the largest share is small: the dearest first, to whom has the least.

    Args:
        costs: of each piece, in tokens.
        world: how many ranks there are, >= 1.

    Returns:
        The places of each rank's pieces, ascending; empty where there are fewer pieces than ranks. The same on every
        rank, and a rank has at least one piece wherever there are enough.

    Example:
        >>> shares([5, 9, 4, 1], 2)
        [[1, 3], [0, 2]]
    """
    mine: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        rank = min(range(world), key=lambda rank: (loads[rank], len(mine[rank]), rank))
        mine[rank].append(place)
        loads[rank] += costs[place]
    return [sorted(places) for places in mine]


def share_of(lengths: Sequence[int], ranks: Ranks) -> list[int]:
    """The places of this rank's pieces of work, ascending; see `shares`.

    Args:
        lengths: cost of each piece in tokens: of a prompt to sample from, its length plus the answers' budgets.
        ranks: who shares the work.

    Example:
        >>> share_of([5, 9, 4, 1], Ranks(rank=1, world=2)), share_of([5, 9], ALONE)
        ([0, 2], [0, 1])
    """
    return shares(lengths, ranks.world)[ranks.rank]
