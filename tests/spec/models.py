"""A real decoder in float64, the material of one optimiser step, and the gradient of its loss by the public functions.

Shapes: B answers; N tokens of all answers, answer after answer, those outside the loss included; R rows and T slots
of one pass through the model.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from upweight import gae, group_advantages, grpo_loss, token_weights
from upweight.objective.advantage import informative_groups, terminal_rewards
from upweight.objective.correction import rejected_tokens
from upweight.objective.loss import policy_loss
from upweight.objective.shaping import overlong_penalty
from upweight.objective.spec import Objective
from upweight.policy.tiny import byte_tokenizer

BUDGET = 6
"""Generation budget of every step here, in tokens."""

PASSED_ON = (
    *("clip", "clip_high", "ratio_level", "surrogate", "dual_clip", "loss_agg", "kl_coef", "kl_estimator", "kl_grad"),
    *("correction", "correction_level", "correction_cap", "masked_tokens"),
)
"""The fields of an objective that are keywords of `grpo_loss`."""


@functools.cache
def decoder(kind: str = "llama", attention: str = "sdpa") -> Any:
    """A two-layer Llama or GPT-2, float64 in every operation, over bytes."""
    tokenizer = byte_tokenizer()
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if kind == "llama":
        config: Any = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            initializer_range=0.3,
            tie_word_embeddings=True,
            **ends,
        )
    else:
        config = GPT2Config(
            vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3, **ends
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()
    _norms_in_float64(model)
    return model


class Norm(torch.nn.Module):
    """RMSNorm in the dtype of what comes in; transformers' own computes in float32, whatever that is."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = like.weight, like.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def _norms_in_float64(model: Any) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                setattr(parent, name, Norm(child))


@dataclass(frozen=True, kw_only=True)
class Step:
    """Answers, rewards and frozen log-probs that feed one optimiser step."""

    kind: str
    """The `decoder` that scores it."""

    prompts: tuple[tuple[int, ...], ...]
    """[B] ids, at least one each."""

    answers: tuple[tuple[int, ...], ...]
    """[B] ids; an answer may be empty."""

    group: Tensor
    """[B] int64: any integers."""

    rewards: Tensor
    """[B] float64, NaN = not scored."""

    ours: Tensor
    """[N] bool: the policy's own tokens; the others are context (tool output)."""

    old: Tensor | None
    """[N] float64 log pi_old; None = the policy's own."""

    ref: Tensor
    """[N] float64 log-probs of the reference."""

    sampler: Tensor
    """[N] float64 log mu, NaN = not scored."""

    values: Tensor
    """[N] float64: what a critic says at each token."""

    @property
    def seq(self) -> Tensor:
        """[N] answer of each token."""
        lengths = torch.tensor([len(answer) for answer in self.answers], dtype=torch.long)
        return torch.repeat_interleave(torch.arange(len(self.answers)), lengths)

    def tokens_of(self, answers: Sequence[int]) -> Tensor:
        """[n] indices into N of the tokens of some answers, in their order."""
        seq = self.seq
        return torch.cat([torch.empty(0, dtype=torch.long), *((seq == b).nonzero()[:, 0] for b in answers)])

    def take(self, answers: Sequence[int]) -> "Step":
        """Some of the answers, in this order."""
        tokens, rows = self.tokens_of(answers), torch.tensor(list(answers), dtype=torch.long)
        return Step(
            kind=self.kind,
            prompts=tuple(self.prompts[b] for b in answers),
            answers=tuple(self.answers[b] for b in answers),
            group=self.group[rows],
            rewards=self.rewards[rows],
            ours=self.ours[tokens],
            old=None if self.old is None else self.old[tokens],
            ref=self.ref[tokens],
            sampler=self.sampler[tokens],
            values=self.values[tokens],
        )


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What must be known of every answer of a step, whoever holds it, to fix weights and advantages."""

    group: Tensor
    """[B] int64."""

    rewards: Tensor
    """[B] float64, NaN = not scored."""

    seq: Tensor
    """[N] int64: answer of each token, 0..B-1, ascending."""

    ours: Tensor
    """[N] bool: the policy's own tokens."""

    rejected: Tensor
    """[N] bool: dropped by mis, where the weights are made without them."""


def ledger_of(step: Step, objective: Objective) -> Ledger:
    rejected = torch.zeros_like(step.ours)
    if objective.masked_tokens == "valid" and step.old is not None:
        rejected = _rejected(step, objective, step.old)
    return Ledger(group=step.group, rewards=step.rewards, seq=step.seq, ours=step.ours, rejected=rejected)


def _rejected(step: Step, objective: Objective, old: Tensor) -> Tensor:
    """Of the policy's own tokens: a ratio over the answer is one over those."""
    rejected, mine = torch.zeros_like(step.ours), step.ours
    rejected[mine] = rejected_tokens(objective, old[mine], step.sampler[mine], step.seq[mine])
    return rejected


def joined(ledgers: Sequence[Ledger]) -> Ledger:
    """One ledger of what several ranks hold, rank after rank."""
    seqs, count = [], 0
    for ledger in ledgers:
        seqs.append(ledger.seq + count)
        count += len(ledger.group)
    parts = {
        field.name: torch.cat([getattr(ledger, field.name) for ledger in ledgers])
        for field in dataclasses.fields(Ledger)
    }
    return Ledger(**{**parts, "seq": torch.cat(seqs)})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is fixed over the whole step, before any pass."""

    trained: Tensor
    """[N] bool: tokens in the loss."""

    weights: Tensor
    """[N] float64: w_t."""

    advantages: Tensor | None
    """[B] float64; None where a critic's values give one per token."""


def settle(ledger: Ledger, objective: Objective) -> Plan:
    """Who is trained on, w_t and the advantages, by the public functions."""
    count, rewards = len(ledger.group), ledger.rewards
    chosen = ~rewards.isnan()
    if objective.filter_groups:
        chosen = chosen & informative_groups(rewards, ledger.group)
    trained = ledger.ours & chosen[ledger.seq]
    lengths = torch.bincount(ledger.seq[ledger.ours], minlength=count)
    if objective.overlong_buffer:
        rewards = rewards + overlong_penalty(lengths, BUDGET, objective.overlong_buffer).double()
    place = torch.arange(len(ledger.seq)) - torch.searchsorted(ledger.seq, ledger.seq)
    mask = torch.zeros(count, BUDGET, dtype=torch.float64)
    mask[ledger.seq, place] = (trained & ~ledger.rejected).double()
    weights = token_weights(mask, objective.loss_agg, max_length=BUDGET, group_ids=ledger.group)
    advantages = None
    if objective.baseline != "critic":
        how = {"scale": objective.adv_norm, "baseline": objective.baseline}
        advantages = group_advantages(rewards, ledger.group, ddof=objective.adv_ddof, eps=objective.adv_eps, **how)
    return Plan(trained=trained, weights=weights[ledger.seq, place], advantages=advantages)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Some answers that go through the model together, and how they are padded."""

    answers: tuple[int, ...]
    """Indices into the step's answers."""

    side: str = "right"
    """Where a row's padding is: "left", "right", or "between" (prompts end together, answers begin there)."""

    extra: int = 0
    """Slots beyond the longest row."""

    pad: int = 256
    """The id in padded slots."""

    garbage: float = 0.0
    """What every tensor holds at slots outside the mask."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Input of one pass, and where the answers' tokens are in it."""

    ids: Tensor
    """[R, T] int64."""

    attention: Tensor
    """[R, T] 0/1, or [R, 1, T, T] additive."""

    positions: Tensor
    """[R, T] int64."""

    row: Tensor
    """[n] row of each token of the answers, answer after answer."""

    column: Tensor
    """[n] slot of each."""


def padded(step: Step, how: Pass) -> Layout:
    """A row an answer: prompt, answer, padding."""
    prompts, answers = ([texts[b] for b in how.answers] for texts in (step.prompts, step.answers))
    front, back = max(map(len, prompts)), max(map(len, answers))
    total = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    width = (front + back if how.side == "between" else total) + how.extra
    ids = torch.full((len(answers), width), how.pad)
    attention = torch.zeros(len(answers), width, dtype=torch.long)
    rows, columns = [], []
    for r, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        length = len(prompt) + len(answer)
        start = {"right": 0, "left": width - length, "between": front - len(prompt)}[how.side]
        ids[r, start : start + length] = torch.tensor(prompt + answer)
        attention[r, start : start + length] = 1
        rows += [r] * len(answer)
        columns += range(start + len(prompt), start + length)
    return Layout(
        ids=ids,
        attention=attention,
        positions=(attention.cumsum(1) - 1).clamp(min=0),
        row=torch.tensor(rows, dtype=torch.long),
        column=torch.tensor(columns, dtype=torch.long),
    )


def packed(step: Step) -> Layout:
    """All answers in one row: each sees its own prompt and itself, and positions begin again at every prompt."""
    ids: list[int] = []
    owner: list[int] = []
    positions: list[int] = []
    columns: list[int] = []
    for b, (prompt, answer) in enumerate(zip(step.prompts, step.answers, strict=True)):
        columns += range(len(ids) + len(prompt), len(ids) + len(prompt) + len(answer))
        ids += prompt + answer
        owner += [b] * len(prompt + answer)
        positions += range(len(prompt + answer))
    of = torch.tensor(owner)
    sees = (of[:, None] == of[None, :]).tril()
    return Layout(
        ids=torch.tensor([ids]),
        attention=torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, torch.finfo(torch.float64).min)[
            None, None
        ],
        positions=torch.tensor([positions]),
        row=torch.zeros(len(columns), dtype=torch.long),
        column=torch.tensor(columns, dtype=torch.long),
    )


def logits_of(model: Any, layout: Layout) -> Tensor:
    """[R, T, V] float64."""
    logits: Tensor = model(
        input_ids=layout.ids, attention_mask=layout.attention, position_ids=layout.positions, use_cache=False
    ).logits
    return logits


def logprob_table(model: Any, layout: Layout) -> Tensor:
    """[R, T] float64 log-prob of the id in each slot, given what its row holds before it; 0 in the first slot."""
    logits = logits_of(model, layout)[:, :-1]
    scores = torch.log_softmax(logits, dim=-1).gather(2, layout.ids[:, 1:, None]).squeeze(2)
    return torch.nn.functional.pad(scores, (1, 0))


def loss_of(model: Any, step: Step, objective: Objective, how: Pass, plan: Plan, *, whole: bool = False) -> Tensor:
    """`grpo_loss` of one pass, with its slice of the step's weights; by the mode alone where it is the whole step."""
    layout, tokens = padded(step, how), step.tokens_of(how.answers)
    shape, at = layout.ids.shape, (layout.row, layout.column)
    mask = torch.zeros(shape, dtype=torch.bool).index_put(at, plan.trained[tokens])

    def table(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        filled = torch.full(shape, how.garbage, dtype=torch.float64).index_put(at, values[tokens])
        return torch.where(mask, filled, how.garbage)

    rows = torch.tensor(how.answers)
    if plan.advantages is None:
        rewards = terminal_rewards(step.rewards[rows], mask)
        rewards = torch.where(mask, rewards, how.garbage)
        advantages = gae(rewards, table(step.values), mask, lam=objective.gae_lambda)[0]
        advantages = torch.where(mask, advantages, how.garbage)
    else:
        advantages = torch.where(mask.any(1), plan.advantages[rows], how.garbage)
    loss, _ = grpo_loss(
        torch.where(mask, logprob_table(model, layout), how.garbage),
        table(step.old),
        advantages,
        mask,
        max_length=BUDGET,
        group_ids=step.group[rows],
        weights=None if whole else table(plan.weights),
        ref_logprobs=table(step.ref),
        sampler_logprobs=table(step.sampler),
        **{name: getattr(objective, name) for name in PASSED_ON},
    )
    return loss


def everything(step: Step, **how: Any) -> Pass:
    return Pass(answers=tuple(range(len(step.answers))), **how)


def whole_gradient(model: Any, step: Step, objective: Objective, **how: Any) -> Tensor:
    """Of the step in one pass, averaged by the mode."""
    plan = settle(ledger_of(step, objective), objective)
    return gradient(model, [loss_of(model, step, objective, everything(step, **how), plan, whole=True)])


def cut_gradient(model: Any, step: Step, objective: Objective, passes: Sequence[Pass]) -> Tensor:
    """Of the step in several passes, one backward each, under weights that were made over all of it."""
    plan = settle(ledger_of(step, objective), objective)
    return gradient(model, (loss_of(model, step, objective, how, plan) for how in passes))


def packed_gradient(model: Any, step: Step, objective: Objective) -> Tensor:
    """Of the step in one row."""
    layout = packed(step)
    return gradient(model, [flat_loss(step, objective, logprob_table(model, layout)[layout.row, layout.column])])


def flat_loss(step: Step, objective: Objective, logprobs: Tensor) -> Tensor:
    """`policy_loss` of the whole step: from [N] log-probs, without a padded table."""
    plan = settle(ledger_of(step, objective), objective)
    ours, seq = plan.trained, step.seq
    advantages = critic_advantages(step, objective) if plan.advantages is None else plan.advantages[seq]
    return policy_loss(
        objective,
        logprobs=logprobs[ours],
        old_logprobs=None if step.old is None else step.old[ours],
        advantages=advantages[ours],
        weights=plan.weights[ours],
        seq_id=seq[ours],
        ref_logprobs=step.ref[ours],
        sampler_logprobs=step.sampler[ours],
        per_token_advantages=plan.advantages is None,
    ).loss


def critic_advantages(step: Step, objective: Objective) -> Tensor:
    """[N] by `gae`, answer by answer; 0 for tokens that are not trained on."""
    trained = settle(ledger_of(step, objective), objective).trained
    out = torch.zeros(len(trained), dtype=torch.float64)
    for b in range(len(step.answers)):
        tokens = step.tokens_of([b])
        mask = trained[tokens][None]
        rewards = terminal_rewards(step.rewards[b : b + 1], mask)
        out[tokens] = gae(rewards, step.values[tokens][None], mask, lam=objective.gae_lambda)[0][0]
    return out


def gradient(model: Any, losses: Any) -> Tensor:
    """[P] of all parameters, float64; losses are made and differentiated one after the other, and add up."""
    model.zero_grad(set_to_none=True)
    for loss in losses:
        loss.backward()
    return flat_gradient(model)


def flat_gradient(model: Any) -> Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads])
