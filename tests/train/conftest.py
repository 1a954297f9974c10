"""A small policy, answers and groups made by hand, a scripted engine, and an optimiser that keeps the gradients."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.policy.tiny import byte_tokenizer
from upweight.rewards.score import Score, Status
from upweight.rollout.completion import Completion, FinishReason, Sampling
from upweight.tasks.prompt import Draw, Prompt
from upweight.train.args import TrainArgs
from upweight.train.optimizer import MasterAdamW
from upweight.train.records import Batch, Group, Sampled
from upweight.train.report import make_report
from upweight.train.step import Learner

NAN = math.nan


def make_policy(seed: int = 0, dtype: torch.dtype = torch.float32) -> Policy:
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=96,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return Policy(model=model.to(dtype), tokenizer=tokenizer, name="small")


@pytest.fixture
def policy_of() -> Callable[..., Policy]:
    """Makes a two-layer Llama with the byte tokenizer."""
    return make_policy


@pytest.fixture
def policy() -> Policy:
    return make_policy()


def make_completion(
    ids: Sequence[int],
    logprobs: Sequence[float] | None = None,
    *,
    mask: Sequence[bool] | None = None,
    reason: FinishReason = FinishReason.STOP,
    kept: tuple[Any, ...] | None = None,
    version: int = 0,
) -> Completion:
    return Completion(
        token_ids=tuple(ids),
        logprobs=tuple(logprobs or [-1.0] * len(ids)),
        loss_mask=tuple(mask or [True] * len(ids)),
        weights_versions=(version,) * len(ids),
        finish_reason=reason,
        kept=kept,
    )


@pytest.fixture
def completion() -> Callable[..., Completion]:
    return make_completion


def make_group(
    rewards: Sequence[float],
    lengths: Sequence[int] | None = None,
    *,
    row: int = 0,
    draw: int | None = None,
    prompt: Sequence[int] = (65, 66, 67),
    completions: Sequence[Completion] | None = None,
) -> Group:
    """A group with these rewards (NaN = raised an error); ids are any letters, fixed by place."""
    sizes = [3] * len(rewards) if lengths is None else lengths
    made = completions or [
        make_completion([97 + (row * 7 + b * 3 + t) % 26 for t in range(length)]) for b, length in enumerate(sizes)
    ]
    return Group(
        draw=Draw(prompt=Prompt(row=row, text="abc", answer="1"), number=row if draw is None else draw),
        prompt_ids=tuple(prompt),
        completions=tuple(made),
        texts=tuple(f"answer {b}" for b in range(len(made))),
        scores=tuple(
            Score(value=NAN, status=Status.ERROR, why="raised") if math.isnan(reward) else Score(value=reward)
            for reward in rewards
        ),
    )


@pytest.fixture
def group() -> Callable[..., Group]:
    return make_group


def make_args(**fields: Any) -> TrainArgs:
    """A resolved configuration: constant learning rate, no clipping of the gradient."""
    defaults: dict[str, Any] = {
        "max_new_tokens": 8,
        "learning_rate": 1e-3,
        "lr_warmup_steps": 0,
        "max_grad_norm": 0.0,
        "prompts_per_step": 4,
        "group_size": 4,
        "objective": Objective(kl_coef=0.0),
    }
    return TrainArgs(**{**defaults, **fields})


@pytest.fixture
def run_args() -> Callable[..., TrainArgs]:
    return make_args


class FixedSource:
    """Hands out the same groups at every step."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    def next_groups(self, count: int) -> Sampled:
        return Sampled(groups=self.groups)

    def state_dict(self) -> Mapping[str, object]:
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        return None


def make_learner(
    groups: Sequence[Group], *, policy: Policy | None = None, reference: Policy | None = None, **fields: Any
) -> Learner:
    chosen = make_policy() if policy is None else policy
    args = make_args(**fields)
    return Learner(
        policy=chosen,
        reference=reference,
        optimizer=MasterAdamW(chosen.model.parameters(), weight_decay=args.weight_decay),
        source=FixedSource(groups),
        args=args,
    )


@pytest.fixture
def learner() -> Callable[..., Learner]:
    """Makes what a step works on, over groups given by hand."""
    return make_learner


def flat_weights(policy: Policy) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in policy.model.parameters()])


@pytest.fixture
def weights_of() -> Callable[[Policy], Tensor]:
    """All weights of a policy, flat, as a copy."""
    return flat_weights


def flat_gradient(policy: Policy) -> Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.model.parameters()]
    return torch.cat([grad.double().flatten() for grad in grads])


@pytest.fixture
def gradient_of() -> Callable[[Policy], Tensor]:
    """All gradients of a policy, flat, as a copy; 0 where there is none."""
    return flat_gradient


def nudge(policy: Policy, seed: int, scale: float = 0.02) -> Policy:
    """Move every weight by fixed noise: stands for an update, so that ratios leave 1."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=noise).to(parameter.dtype)
    return policy


@pytest.fixture
def nudged() -> Callable[..., Policy]:
    return nudge


class Recorder(MasterAdamW):
    """Keeps the gradient of every update and moves the weights by fixed noise instead."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model.parameters(), weight_decay=0.0)
        self.policy = policy
        self.gradients: list[Tensor] = []

    def step(self, lr: float, *, scale: float = 1.0) -> None:
        self.gradients.append(flat_gradient(self.policy) * scale)
        nudge(self.policy, seed=len(self.gradients))


@pytest.fixture
def recording() -> Callable[..., tuple[Learner, Recorder]]:
    """A learner whose optimiser is a `Recorder`, on a copy of the policy."""

    def make(groups: Sequence[Group], policy: Policy, **fields: Any) -> tuple[Learner, Recorder]:
        twin = Policy(model=copy.deepcopy(policy.model), tokenizer=policy.tokenizer, name=policy.name)
        learner = make_learner(groups, policy=twin, **fields)
        recorder = Recorder(twin)
        return dataclasses.replace(learner, optimizer=recorder), recorder

    return make


class ScriptedEngine:
    """Answers by a rule from (row, draw, sample) to text; remembers what it was asked."""

    def __init__(self, answer: Callable[[int, int, int], str]) -> None:
        self.answer = answer
        self.asked: list[list[tuple[int, int]]] = []

    def generate(
        self,
        prompt_token_ids: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        *,
        keys: Sequence[tuple[int, int]] | None = None,
    ) -> list[list[Completion]]:
        assert keys is not None
        assert len(keys) == len(prompt_token_ids)
        self.asked.append(list(keys))
        return [[make_completion(self.answer(row, draw, s).encode()) for s in range(n)] for row, draw in keys]


@pytest.fixture
def scripted() -> Callable[..., ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture
def report_of() -> Callable[..., Any]:
    """A report over an empty batch, with fields replaced."""

    def make(step: int = 1, **fields: Any) -> Any:
        empty = torch.zeros(0, dtype=torch.long)
        batch = Batch(
            groups=(),
            group_of=empty,
            task_rewards=empty.double(),
            trained=empty.bool(),
            seq_id=empty,
            sampler_logprobs=empty.float(),
        )
        report = make_report(
            step=step,
            sampled=Sampled(groups=()),
            batch=batch,
            results=[],
            denominator=0,
            lr=0.1,
            has_reference=False,
            seconds=1.0,
            sample_seconds=0.5,
        )
        return dataclasses.replace(report, **fields)

    return make


@pytest.fixture(autouse=True)
def _no_noise_leaks() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
