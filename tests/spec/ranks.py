"""Real processes that share one optimiser step: each holds some answers, and the gradients add up.

`serve` is what one rank runs; `Ranks` starts them and hands out the work.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.spec.models import Ledger, Pass, Plan, Step, decoder, gradient, joined, ledger_of, loss_of, settle
from torch import Tensor

import upweight
from upweight.objective.spec import Objective

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 120
"""Two processes import torch and transformers on what may be one core."""
JOB_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one rank works on."""

    share: Step
    """The answers it holds, with the group ids of the whole step."""

    objective: Objective
    """The same on every rank."""

    alone: bool = False
    """Fix the weights from its own tokens only: the fault that the gathering prevents."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What one rank hands back."""

    total: Tensor
    """[P] the gradient after all ranks have added theirs up."""

    own: Tensor
    """[P] its own part."""

    tokens: int
    """Tokens of its share that are trained on."""


def work(job: Job) -> Done:
    """One step on one rank: gather the ledgers, fix the weights, pass, add up."""
    own_ledger = ledger_of(job.share, job.objective)
    ledgers: list[Ledger] = [own_ledger] * dist.get_world_size()
    dist.all_gather_object(ledgers, own_ledger)
    plan = _share_of(settle(joined(ledgers), job.objective), ledgers, dist.get_rank())
    if job.alone:
        plan = Plan(trained=plan.trained, weights=settle(own_ledger, job.objective).weights, advantages=plan.advantages)
    model, answers = decoder(job.share.kind), tuple(range(len(job.share.answers)))
    losses = [loss_of(model, job.share, job.objective, Pass(answers=answers), plan)] if answers else []
    own = gradient(model, losses)
    total = own.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return Done(total=total, own=own, tokens=int(plan.trained.sum()))


def _share_of(plan: Plan, ledgers: Sequence[Ledger], rank: int) -> Plan:
    """A rank's slice of what was fixed for all."""
    answers = [len(ledger.group) for ledger in ledgers]
    tokens = [len(ledger.seq) for ledger in ledgers]
    return Plan(
        trained=plan.trained.split(tokens)[rank],
        weights=plan.weights.split(tokens)[rank],
        advantages=None if plan.advantages is None else plan.advantages.split(answers)[rank],
    )


def serve(rank: int, world: int, file: str, handle: int) -> None:
    """Work until None comes, or until whoever sends the work is gone."""
    connection = Connection(handle)
    torch.set_num_threads(1)
    # A collective that waits for a rank that never comes raises, instead of waiting for ever.
    timeout = timedelta(seconds=JOB_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=timeout)
    connection.send_bytes(pickle.dumps("ready"))
    with contextlib.suppress(EOFError):
        # Connection.send would hand tensors over as shared memory, which a process of another family may not open.
        while (job := pickle.loads(connection.recv_bytes())) is not None:
            connection.send_bytes(pickle.dumps(work(job)))
    dist.destroy_process_group()


class Ranks:
    """Processes that stay alive from one step to the next."""

    def __init__(self, world: int, folder: Path) -> None:
        self.log = folder / "ranks.log"
        self.connections: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        python_path = os.pathsep.join([str(Path(upweight.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
        if sys.platform == "linux":  # by the name of the machine, gloo may find no interface at all
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        with self.log.open("wb") as log:
            for rank in range(world):
                ours, theirs = Pipe()
                call = f"serve({rank}, {world}, {str(folder / 'meeting')!r}, {theirs.fileno()})"
                self.connections.append(ours)
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", f"from tests.spec.ranks import serve; {call}"],
                        cwd=REPOSITORY,
                        env=environment,
                        pass_fds=[theirs.fileno()],
                        stdout=log,
                        stderr=log,
                    )
                )
                theirs.close()

    def answers(self, seconds: float) -> list[Any]:
        """One message of each rank; a failure with what they printed where one is silent or gone."""
        try:
            if all(connection.poll(seconds) for connection in self.connections):
                return [pickle.loads(connection.recv_bytes()) for connection in self.connections]
            problem = f"was silent for {seconds} s"
        except (EOFError, OSError) as gone:
            problem = f"is gone ({gone!r})"
        raise AssertionError(f"A rank {problem}; they printed:\n{self.log.read_text()}")

    def run(self, jobs: Sequence[Job]) -> list[Done]:
        """One step: job k on rank k."""
        for connection, job in zip(self.connections, jobs, strict=True):
            with contextlib.suppress(OSError):  # the rank is gone, which `answers` reports
                connection.send_bytes(pickle.dumps(job))
        return self.answers(JOB_SECONDS + 10)

    def stop(self) -> None:
        """Ask them to end; end those that do not."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send_bytes(pickle.dumps(None))
            connection.close()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)


@contextlib.contextmanager
def ranks(world: int, folder: Path) -> Iterator[Ranks]:
    """Started and met; ended whatever happens."""
    running = Ranks(world, folder)
    try:
        running.answers(START_SECONDS)
        yield running
    finally:
        running.stop()
