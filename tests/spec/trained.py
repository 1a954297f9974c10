"""The same step through the trainer's own functions, which score tokens in float32."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from tests.spec.models import BUDGET, Step, critic_advantages, decoder, flat_gradient
from torch import Tensor

from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.policy.tiny import byte_tokenizer
from upweight.rewards.score import Score, Status
from upweight.rollout.completion import Completion, FinishReason
from upweight.tasks.prompt import Draw, Prompt
from upweight.train.args import TrainArgs
from upweight.train.batch import make_batch, with_advantages
from upweight.train.optimizer import MasterAdamW
from upweight.train.passes import plan_updates
from upweight.train.records import Batch, Group, MicroBatch, Update, Verdict
from upweight.train.step import Learner, take_update


class Recorder(MasterAdamW):
    """Keeps the gradient of an update and leaves the weights as they are."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model.parameters(), weight_decay=0.0)
        self.policy = policy
        self.gradients: list[Tensor] = []

    def step(self, lr: float, *, scale: float = 1.0) -> None:
        self.gradients.append(flat_gradient(self.policy.model))


def policy_of(kind: str, pad_id: int | None = None) -> Policy:
    policy = Policy(model=decoder(kind), tokenizer=byte_tokenizer(), name="small")
    policy.pad_id = policy.pad_id if pad_id is None else pad_id
    return policy


def groups_of(step: Step) -> tuple[list[Group], list[int]]:
    """The step's groups, in the order in which they first appear; and the answers in the order of the batch."""
    groups, order = [], []
    for name in dict.fromkeys(step.group.tolist()):
        members = [b for b, group in enumerate(step.group.tolist()) if group == name]
        order += members
        rewards = step.rewards[members].tolist()
        groups.append(
            Group(
                draw=Draw(prompt=Prompt(row=0, text="the same row, drawn more than once"), number=name),
                prompt_ids=step.prompts[members[0]],
                completions=tuple(_completion(step, b) for b in members),
                texts=tuple(f"answer {b}" for b in members),
                scores=tuple(
                    Score(value=math.nan, status=Status.ERROR, why="raised") if math.isnan(r) else Score(value=r)
                    for r in rewards
                ),
            )
        )
    return groups, order


def _completion(step: Step, b: int) -> Completion:
    tokens = step.tokens_of([b])
    return Completion(
        token_ids=step.answers[b],
        logprobs=tuple(step.sampler[tokens].tolist()),
        loss_mask=tuple(step.ours[tokens].tolist()),
        weights_versions=(0,) * len(tokens),
        finish_reason=FinishReason.STOP,
    )


def batch_of(step: Step, objective: Objective) -> Batch:
    """`make_batch` and `with_advantages`, with the step's old and reference log-probs; a critic's by `gae`."""
    groups, order = groups_of(step)
    batch, step = make_batch(groups, objective), step.take(order)
    tokens = (step.ours & batch.trained[step.seq]).nonzero()[:, 0]
    batch = dataclasses.replace(
        batch,
        old_logprobs=None if step.old is None else step.old[tokens].float(),
        ref_logprobs=step.ref[tokens].float() if objective.needs_reference else None,
    )
    if objective.baseline == "critic":
        return dataclasses.replace(batch, advantages=critic_advantages(step, objective)[tokens].float())
    return with_advantages(batch, objective, BUDGET)


def update_of(batch: Batch, objective: Objective, micro_batch_tokens: int = 10_000) -> Update:
    [update] = plan_updates(
        batch,
        objective,
        minibatches=1,
        epochs=1,
        micro_batch_tokens=micro_batch_tokens,
        max_new_tokens=BUDGET,
    )
    return update


def recut(update: Update, pass_of: Sequence[int]) -> Update:
    """An update of one answer a pass, cut otherwise: answer b goes into pass `pass_of[b]`."""
    spans = {}
    for micro in update.micro_batches:
        [answer] = micro.answers
        spans[answer] = micro.tokens
    passes: dict[int, list[tuple[int, np.ndarray]]] = {}
    for answer, tokens in spans.items():
        passes.setdefault(pass_of[answer], []).append((answer, tokens))
    return dataclasses.replace(
        update,
        micro_batches=tuple(
            MicroBatch(answers=tuple(b for b, _ in pack), tokens=np.concatenate([tokens for _, tokens in pack]))
            for pack in passes.values()
        ),
    )


def trainer_gradient(
    kind: str, objective: Objective, batch: Batch, update: Update, *, pad_id: int | None = None
) -> Tensor:
    """[P] float64: what `take_update` leaves in the parameters; zeros where it trains on nothing."""
    policy = policy_of(kind, pad_id)
    recorder = Recorder(policy)
    args = TrainArgs(max_new_tokens=BUDGET, learning_rate=1.0, max_grad_norm=0.0, objective=objective)
    learner = Learner(policy=policy, reference=None, optimizer=recorder, source=None, args=args)
    result = take_update(learner, batch, update, lr=0.0)
    assert result.verdict is (Verdict.STEP if recorder.gradients else Verdict.NOTHING)
    assert update.micro_batches or not recorder.gradients
    return recorder.gradients[0] if recorder.gradients else torch.zeros_like(flat_gradient(policy.model))
