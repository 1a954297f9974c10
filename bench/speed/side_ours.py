"""Our side, in a process of its own: makes the model's folder, measures the peak, samples, steps, passes."""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
from safetensors.torch import load_file, save_file

from speed.channel import Handler, serve
from speed.machine import matrix_peak
from speed.workload import Reward, rows
from upweight import TrainArgs
from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.rewards.runner import make_runner
from upweight.rollout.completion import Completion, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.prompt import Draw, Prompt
from upweight.train.handshake import shake_hands
from upweight.train.optimizer import MasterAdamW
from upweight.train.ranks import joined_ranks
from upweight.train.shard import sharded
from upweight.train.source import SamplingSource
from upweight.train.step import Learner, training_step

Made = tuple[dict[str, Any], Handler]

OPEN = contextlib.ExitStack()
"""What stays open as long as the process."""


def prepare(setup: Mapping[str, Any]) -> Made:
    """Write the model as a folder that every side loads; encodes prompts, measures the matrix peak."""
    policy = load_policy(setup["model"])
    policy.save(setup["folder"])
    head, embedding = policy.model.get_output_embeddings().weight, policy.model.get_input_embeddings().weight
    apart = 0 if embedding is head else embedding.numel()
    total = sum(p.numel() for p in policy.model.parameters())

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if "texts" in request:
            return {"ids": [policy.encode(Prompt(row=row, text=text)) for row, text in enumerate(request["texts"])]}
        return {"flops": matrix_peak(request["dtype"], tuple(request["sizes"]))}

    return {"body": total - apart - head.numel(), "head": head.numel(), "vocabulary": head.shape[0]}, handle


def _policy(setup: Mapping[str, Any]) -> Policy:
    """The policy; nothing ends an answer but its budget, so that every side makes the same number of tokens."""
    policy = load_policy(setup["folder"], dtype=setup["dtype"], device="cpu")
    policy.end_ids = frozenset()
    return policy


class _InOrder:
    """A stream that hands the prompts out in the order given: TRL's data set, unshuffled."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts, self.taken = prompts, 0

    def take(self, n: int) -> list[Draw]:
        first, self.taken = self.taken, self.taken + n
        return [Draw(prompt=self.prompts[place], number=place) for place in range(first, self.taken)]

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.taken = state["taken"]


def step(setup: Mapping[str, Any]) -> Made:
    """A GRPO step: sample, score, train; on several ranks where the environment names them."""
    policy, reward = _policy(setup), Reward()
    ranks = OPEN.enter_context(joined_ranks())
    parts = setup.get("shard") == "full"
    args = TrainArgs.from_flags(
        preset="grpo",
        kl_coef=setup["kl"],
        prompts_per_step=setup["prompts"],
        group_size=setup["answers"],
        max_new_tokens=setup["new_tokens"],
        micro_batch_tokens=setup["micro_batch_tokens"],
        max_steps=setup["steps"],
        learning_rate=setup["lr"],
        lr_warmup_steps=0,
        lr_schedule="constant",
        dtype=setup["dtype"],
    )
    data = rows(setup["prompts"], setup["steps"], setup["informative"])
    source = SamplingSource(
        stream=_InOrder(
            [
                Prompt(row=place, text=row["prompt"], columns={"informative": row["informative"]})
                for place, row in enumerate(data)
            ]
        ),
        engine=LocalEngine(policy),
        encode=policy.encode,
        decode=policy.decode,
        runner=make_runner(reward),
        sampling=Sampling(max_new_tokens=setup["new_tokens"]),
        group_size=setup["answers"],
        context_length=policy.context_length,
        ranks=ranks,
    )
    reference = policy.frozen_copy() if args.objective.needs_reference else None
    trained = sharded(policy, ranks) if parts else policy
    learner = Learner(
        policy=trained,
        whole=policy if parts else None,
        reference=sharded(reference, ranks) if parts and reference is not None else reference,
        optimizer=MasterAdamW(trained.model.parameters(), weight_decay=0.0, ranks=ranks),
        source=source,
        args=args,
        ranks=ranks,
    )

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if "save" in request:
            names = [name for name, _ in trained.model.named_parameters()]
            found = zip(names, learner.optimizer.gradients(), strict=True)
            save_file(
                {name: gradient.clone() for name, (_, gradient) in found if gradient is not None}, request["save"]
            )
            return {}
        if "compare" in request:
            return {"difference": _apart(load_file(request["compare"]), [load_file(part) for part in request["parts"]])}
        report, _ = training_step(learner, request["step"] + 1)
        told = dataclasses.asdict(report)
        return reward.counted() | {name: told[name] for name in ("informative", "grad_norm", "sample_seconds")}

    return {}, handle


def _apart(one: Mapping[str, torch.Tensor], parts: Sequence[Mapping[str, torch.Tensor]]) -> float:
    """Norm of the difference over the norm; `parts` are a gradient's rows, one part after the other."""
    other = {name: torch.cat([part[name] for part in parts]) for name in one}
    squares = [(one[name].double() - other[name].double()).square().sum() for name in one]
    return float((torch.stack(squares).sum() / sum(value.double().square().sum() for value in one.values())).sqrt())


def sample(setup: Mapping[str, Any]) -> Made:
    """Answers with their log-probabilities."""
    policy = _policy(setup)
    engine = LocalEngine(policy)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if "handshake" in request:
            shaken = shake_hands(policy, engine, request["handshake"], Sampling(max_new_tokens=32), float("inf"))
            return dataclasses.asdict(shaken)
        sampling = Sampling(max_new_tokens=setup["new_tokens"], seed=request["seed"])
        groups = engine.generate(request["prompts"], setup["answers"], sampling)
        return counted([answer for group in groups for answer in group])

    return {}, handle


def counted(answers: Sequence[Completion]) -> dict[str, Any]:
    """How many tokens came back, and how many log-probabilities."""
    return {
        "tokens": sum(len(answer.token_ids) for answer in answers),
        "logprobs": sum(logprob == logprob for answer in answers for logprob in answer.logprobs),
    }


def passes(setup: Mapping[str, Any]) -> Made:
    """Forward and backward over all sequences: with shared prompts, with prompts that differ, or each alone.

    `cuts` has, by way, the first and last sequence of each pass.
    """
    policy = _policy(setup)
    prompts, answers = setup["prompts"], setup["completions"]
    other = [[(prompt[0] + place) % setup["vocabulary"], *prompt[1:]] for place, prompt in enumerate(prompts)]
    coefficients = torch.tensor(setup["coefficients"]).split([len(answer) for answer in answers])

    def run(way: str) -> None:
        policy.model.zero_grad(set_to_none=True)
        asked = other if way == "different" else prompts
        for start, end in setup["cuts"][way]:
            scores = policy.score(asked[start:end], answers[start:end])
            (scores.logprobs * torch.cat(coefficients[start:end])).sum().backward()

    def gradients() -> list[torch.Tensor]:
        found = [p.grad.float() for p in policy.model.parameters() if p.grad is not None]
        return [grad.clone() for grad in found]

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] != "difference":
            run(request["do"])
            return {}
        run("shared")
        ours = gradients()
        run("alone")
        apart = max(float((a - b).abs().max()) for a, b in zip(ours, gradients(), strict=True))
        return {"largest": max(float(a.abs().max()) for a in ours), "difference": apart}

    return {}, handle


ROLES = {"prepare": prepare, "step": step, "sample": sample, "passes": passes}

if __name__ == "__main__":
    with OPEN:
        serve(lambda setup: ROLES[setup["role"]](setup))
