"""What one rank of a test runs, and how ranks are started: real processes that meet over gloo, as torchrun's do."""

import contextlib
import dataclasses
import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from tests.train.conftest import make_args, make_completion, make_group, make_policy, nudge
from torch import Tensor

import upweight
import upweight.train.step as room
from upweight.objective.spec import Objective
from upweight.policy.decoder import Decoder
from upweight.policy.policy import Policy
from upweight.policy.variants import head_in_float32, layers_recomputed
from upweight.rewards.runner import make_runner
from upweight.rollout.completion import Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.rows import RowsTask
from upweight.train.optimizer import MasterAdamW
from upweight.train.ranks import ALONE, Ranks, joined_ranks
from upweight.train.records import Group
from upweight.train.shard import sharded
from upweight.train.source import SamplingSource
from upweight.train.step import Learner, training_step

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 150
"""Until processes that import torch and transformers on what may be one core count as stuck."""

LENGTHS = ((3, 1, 8, 5), (2, 2, 4, 1), (7, 6, 1, 2))
REWARDS = ((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.5, 1.0, 0.25))
OBJECTIVE = Objective(kl_coef=0.1, correction="tis", correction_cap=1.5)


def environment(**more: str) -> dict[str, str]:
    """Of a process that a test starts."""
    path = os.pathsep.join([str(Path(upweight.__file__).parents[1]), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    made = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}
    if sys.platform == "linux":  # by the name of the machine, gloo may find no interface at all
        made["GLOO_SOCKET_IFNAME"] = "lo"
    return made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def started(job: str, world: int, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """`job` on every rank, from the environment that torchrun gives; ended whatever happens."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    call = f"from tests.train.rank_jobs import JOBS, run; from pathlib import Path; run({job!r}, Path({str(folder)!r}))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", call],
            cwd=REPOSITORY,
            env=environment(**meeting, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def torchrun(script: Sequence[str], *options: str, world: int = 2) -> list[str]:
    """A command line of torchrun for a script or a module."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world), *options, *script]


def done(job: str, world: int, folder: Path) -> list[str]:
    """Run a job to its end; what each rank printed."""
    with started(job, world, folder) as processes:
        texts = [process.communicate(timeout=SECONDS)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * world, "\n".join(texts)
    return texts


def run(job: str, folder: Path) -> None:
    """In the process itself."""
    torch.set_num_threads(1)
    with joined_ranks(timeout=60) as ranks:
        JOBS[job](ranks, folder)


def judged_groups(policy: Policy) -> list[Group]:
    """Three groups of four answers with sampler log-probs near the policy's; one group's rewards are all equal."""
    made = []
    noise = torch.Generator().manual_seed(5)
    for g, lengths in enumerate(LENGTHS):
        prompt = [65 + g] * (2 * g + 1)
        answers = []
        for length in lengths:
            ids = torch.randint(0, 257, (length,), generator=noise).tolist()
            with torch.no_grad():
                logprobs = policy.score([prompt], [ids]).logprobs + 0.1 * torch.randn(length, generator=noise)
            answers.append(make_completion(ids, logprobs.tolist()))
        made.append(make_group(REWARDS[g], row=g, prompt=prompt, completions=answers))
    return made


class Kept(MasterAdamW):
    """Keeps the gradient of each update by parameter, this rank's part of it where that is all it has."""

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        super().__init__(policy.model.named_parameters(), weight_decay=0.01, ranks=ranks)
        self.kept: dict[str, Tensor] = {}
        self.norms: list[float] = []

    def step(self, lr: float, *, scale: float = 1.0) -> None:
        number = len(self.norms)
        for name, (_, gradient) in zip(self._names, self.gradients(), strict=True):
            assert gradient is not None
            self.kept[f"{number}/{name}"] = gradient.clone()
        self.norms.append(self.grad_norm())
        super().step(lr, scale=scale)


def learner_of(policy: Policy, ranks: Ranks, source: Any, *, shard: bool, kl: bool = True, **fields: Any) -> Learner:
    """A learner over a policy, sharded or not, with the optimiser that keeps gradients."""
    reference = nudge(make_policy(dtype=policy.dtype), seed=77, scale=0.03) if kl else None
    trained = sharded(policy, ranks) if shard else policy
    if shard and reference is not None:
        reference = sharded(reference, ranks)
    return Learner(
        policy=trained,
        reference=reference,
        optimizer=Kept(trained, ranks),
        source=source,
        args=make_args(**fields),
        ranks=ranks,
        whole=policy if shard else None,
    )


class Fixed:
    """Hands out the same groups."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    def next_groups(self, count: int) -> Any:
        from upweight.train.records import Sampled

        return Sampled(groups=self.groups)

    def state_dict(self) -> Mapping[str, object]:
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        return None


@contextlib.contextmanager
def own_forward() -> Iterator[None]:
    """Every model through its own forward pass, as a sharded one goes."""
    before = Decoder.fits
    Decoder.fits = staticmethod(lambda model: False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Decoder.fits = before  # type: ignore[method-assign]


WAYS = (("one", False), ("two", False), ("full", True))
"""One process, two that each hold the model, two that each hold a part of it."""


def gradients(ranks: Ranks, folder: Path) -> None:
    """Two updates each way: gradients, norms and reports. Whole models go through the compact decoder and their own."""
    told: dict[str, Any] = {}
    groups = judged_groups(make_policy(dtype=torch.float64))
    for dtype in (torch.float32, torch.float64):
        for forward in ("decoder", "own"):
            with own_forward() if forward == "own" else contextlib.nullcontext():
                for way, shard in WAYS:
                    if shard and forward == "decoder":
                        continue
                    name = f"{str(dtype).removeprefix('torch.')}-{forward}-{way}"
                    learner = learner_of(
                        make_policy(dtype=dtype),
                        ALONE if way == "one" else ranks,
                        Fixed(groups),
                        shard=shard,
                        objective=OBJECTIVE,
                        minibatches=2,
                        micro_batch_tokens=20,
                        max_grad_norm=1.0,
                    )
                    told[name] = step_of(learner)
                    save_file(learner.optimizer.kept, folder / f"{name}-{ranks.rank}.safetensors")
    (folder / f"gradients-{ranks.rank}.json").write_text(json.dumps(told))


def step_of(learner: Learner) -> dict[str, Any]:
    """Take one; its report, without the times."""
    report, _ = training_step(learner, 1)
    times = ("seconds", "sample_seconds", "tokens_per_second")
    return {key: value for key, value in dataclasses.asdict(report).items() if key not in times}


def few(ranks: Ranks, folder: Path) -> None:
    """B66: three answers; one answer; none, on two ranks of which some have nothing: passes, and what came of them."""
    cases = {
        "three": [make_group([1.0, 0.0, 0.5], [2, 3, 4])],
        "one": [make_group([1.0, math.nan], [3, 3])],
        "none": [make_group([math.nan, math.nan], [3, 3])],
        "equal": [make_group([1.0, 1.0], [3, 3])],
    }
    told: dict[str, Any] = {}
    for case, groups in cases.items():
        for way, shard in WAYS:
            # With a KL in the loss a single answer moves something; without one, equal rewards move nothing.
            objective = Objective(kl_coef=0.0 if case == "equal" else 0.1)
            here = ALONE if way == "one" else ranks
            learner = learner_of(make_policy(), here, Fixed(groups), shard=shard, objective=objective)
            learner = dataclasses.replace(learner, args=dataclasses.replace(learner.args, micro_batch_tokens=1))
            passes = []
            for policy in (learner.policy, learner.reference):
                count_passes(policy, passes)
            told[f"{case}-{way}"] = {
                **step_of(learner),
                "trained": passes.count("trained"),
                "frozen": passes.count("frozen"),
            }
    (folder / f"few-{ranks.rank}.json").write_text(json.dumps(told))


def count_passes(policy: Policy | None, passes: list[str]) -> None:
    """Note every pass of a policy, and whether it had a graph."""
    assert policy is not None
    score = policy.score

    def counted(*args: Any, **more: Any) -> Any:
        passes.append("trained" if torch.is_grad_enabled() else "frozen")
        return score(*args, **more)

    policy.score = counted  # type: ignore[method-assign]


def letters(completions: list[str], **_: Any) -> list[float]:
    """A reward with spread: the share of lower-case letters."""
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


def ids(ranks: Ranks, folder: Path) -> None:
    """Three steps of sampling and training; the ids that were sampled."""
    told: dict[str, list[list[list[int]]]] = {}
    for way, shard in WAYS:
        policy, here = make_policy(), ALONE if way == "one" else ranks
        source = SamplingSource(
            stream=RowsTask([{"prompt": f"say {n}"} for n in range(8)]).stream(0),
            engine=LocalEngine(policy),
            encode=policy.encode,
            decode=policy.decode,
            runner=make_runner(letters),
            sampling=Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=0),
            group_size=4,
            context_length=policy.context_length,
            ranks=here,
        )
        learner = learner_of(policy, here, source, shard=shard, kl=False, prompts_per_step=3)
        steps = []
        for step in (1, 2, 3):
            _, batch = training_step(learner, step)
            steps.append([list(completion.token_ids) for completion in batch.completions])
        told[way] = steps
    (folder / f"ids-{ranks.rank}.json").write_text(json.dumps(told))


def everything(ranks: Ranks, folder: Path) -> None:
    """All of the above; starting processes takes longer than the work."""
    for job in (gradients, few, ids):
        job(ranks, folder)


def variants(ranks: Ranks, folder: Path) -> None:
    """Two updates of a whole model and of one in parts, in every way that a model may be run."""
    groups = judged_groups(make_policy())
    for name, dtype, head, recompute in (
        ("plain", torch.float32, False, False),
        ("bfloat16", torch.bfloat16, False, False),
        ("float32-head", torch.bfloat16, True, False),
        ("recomputed", torch.float32, False, True),
        ("recomputed-bfloat16", torch.bfloat16, False, True),
    ):
        for way, shard in (("one", False), ("full", True)):
            policy = make_policy(dtype=dtype)
            if head:
                head_in_float32(policy.model)
            if recompute:
                layers_recomputed(policy.model)
            here = ranks if shard else ALONE
            fields = {"objective": OBJECTIVE, "minibatches": 2, "micro_batch_tokens": 20, "dtype": str(dtype)[6:]}
            with own_forward():
                learner = learner_of(policy, here, Fixed(groups), shard=shard, **fields)
                assert step_of(learner)["updates"] == 2
            kept = learner.optimizer.kept  # type: ignore[attr-defined]
            kept |= {f"2/{key[7:]}": t for key, t in learner.optimizer.state_tensors().items() if key[:7] == "master/"}
            kept |= {f"weights/{key}": p.detach().clone() for key, p in policy.model.named_parameters()}
            save_file(kept, folder / f"{name}-{way}-{ranks.rank}.safetensors")


def faults(ranks: Ranks, folder: Path) -> None:
    """Updates that are not finite on the last rank alone, or by a weight that all have: what each rank made of them."""
    last = ranks.rank == ranks.world - 1
    told: dict[str, Any] = {}
    for way, shard in WAYS[1:]:
        for where in ("loss", "gradient", "weight", "forward"):
            policy = make_policy()
            if where == "weight":
                with torch.no_grad():
                    policy.model.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
            source = Fixed([make_group([1.0, 0.0, 0.5], [2, 3, 4])])
            learner = learner_of(policy, ranks, source, shard=shard, kl=False, weight_decay=0.1, micro_batch_tokens=1)
            if where == "forward" and last:
                part = learner.policy.model.model.layers[1].mlp.up_proj
                part.register_forward_hook(lambda module, inputs, output: output * math.nan)
            before = [p.detach().clone() for p in policy.model.parameters()]
            forward = own_forward() if where == "forward" else contextlib.nullcontext()
            with forward, mock.patch.object(room, "policy_loss", spoiled(where if last else "")):
                report, _ = training_step(learner, 1)
            (fault,) = learner.guard.faults
            told[f"{where}-{way}"] = {
                "counts": [report.updates, report.skipped_updates, report.nonfinite_steps, learner.policy.version],
                "causes": fault.causes,
                "parameters": len(fault.parameters),
                "module": fault.module,
                "untouched": all(
                    torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
                    for a, b in zip(before, policy.model.parameters(), strict=True)
                ),
            }
    (folder / f"faults-{ranks.rank}.json").write_text(json.dumps(told))


def spoiled(where: str) -> Callable[..., Any]:
    """The loss, with NaN in its value, or in its gradient alone; as it is for any other place."""
    real = room.policy_loss

    def loss(*args: Any, **options: Any) -> Any:
        terms = real(*args, **options)
        if where == "loss":
            return dataclasses.replace(terms, loss=terms.loss + math.nan)
        if where == "gradient":
            terms.loss.register_hook(lambda gradient: gradient * math.nan)
        return terms

    return loss


JOBS: dict[str, Callable[[Ranks, Path], None]] = {"everything": everything, "faults": faults, "variants": variants}
