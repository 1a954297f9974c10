"""Guards: an update happens only where its loss, its gradient and what they are made of are finite.

An update that is not finite is left out on all ranks together: no optimiser step, no weight decay, no new version of
the weights. It is counted, its batch is written down, and a run in which it goes on and on ends.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from upweight.policy.policy import Policy
from upweight.train.optimizer import MasterAdamW, own_part
from upweight.train.ranks import ALONE, Ranks
from upweight.train.records import Batch, Update, Verdict

MAX_IN_A_ROW = 3
"""Steps in a row with an update that is not finite, at which the run ends."""

NAMED = 5
"""Parameters that a message names; the dump has all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Why an update was left out as not finite."""

    causes: tuple[str, ...]
    """What was not finite, in words."""

    parameters: tuple[str, ...]
    """Names of the parameters whose gradient was not finite."""

    module: str | None
    """The first module whose output was not finite, where a forward pass shows one."""

    weights: Tensor
    """[N] float64: the update's token weights."""

    @property
    def sentence(self) -> str:
        """What a message says about it."""
        named = ", ".join(self.parameters[:NAMED])
        more = f" and {len(self.parameters) - NAMED} more" if len(self.parameters) > NAMED else ""
        return (
            f"{' and '.join(self.causes)} not finite"
            + (f"; the first module whose output is not: {self.module}" if self.module else "")
            + (f"; gradients that are not: {named}{more}" if named else "")
        )


class NotFiniteError(RuntimeError):
    """Step after step was not finite; the last good weights have been saved."""


class Guard:
    """What went wrong in a step, and for how many steps in a row."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        """Of the step under way, or of the last one."""
        self.in_a_row = 0
        """Steps in a row with a fault."""

    def start(self) -> None:
        """A step begins."""
        self.faults = []

    def end(self, step: int, batch: Batch, folder: Path, say: Callable[[str], None], *, write: bool = True) -> None:
        """A step is over: write down and say what was wrong with it.

        Args:
            step: its number.
            batch: what it trained on.
            folder: dumps go into folder/step-N/.
            say: takes a line.
            write: whether this process writes.
        """
        if not self.faults:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        where = folder / f"step-{step:05d}"
        if write:
            write_dump(where, step, batch, self.faults)
        say(
            f"step {step}: no update, {self.faults[0].sentence}; the weights are as they were, the batch is in {where} "
            f"({self.in_a_row} in a row; the run ends at {MAX_IN_A_ROW})"
        )

    @property
    def has_enough(self) -> bool:
        """Whether the run has to end."""
        return self.in_a_row >= MAX_IN_A_ROW

    def refuse_to_go_on(self, checkpoint: Path) -> None:
        """End a run that has had enough.

        Args:
            checkpoint: where the last good weights are.

        Raises:
            NotFiniteError: it has; says what to do.
        """
        if self.has_enough:
            raise NotFiniteError(
                f"{self.in_a_row} steps in a row were not finite ({self.faults[0].sentence}); the last good weights "
                f"are in {checkpoint}. Look into the dumps; a lower --learning_rate, --max_grad_norm or --dtype "
                "float32 are what usually helps."
            )


def judge(*, finite: bool, grad_norm: float, ranks: Ranks) -> Verdict:
    """Whether the optimiser may step; the same on every rank, for one reduction.

    Args:
        finite: whether loss, log-probabilities and inputs are finite on this rank.
        grad_norm: of the whole gradient; exactly 0 where no token had a coefficient that moves anything (all rewards
            equal, every token rejected or masked): AdamW would still move the weights by old momentum and decay.
        ranks: who must agree.

    Example:
        >>> from upweight.train.ranks import ALONE
        >>> [str(judge(finite=True, grad_norm=norm, ranks=ALONE)) for norm in (0.5, 0.0, float("nan"))]
        ['step', 'nothing to train', 'not finite']
    """
    if not ranks.agree(finite and math.isfinite(grad_norm)):
        return Verdict.NOT_FINITE
    return Verdict.STEP if grad_norm > 0 else Verdict.NOTHING


def broken_inputs(batch: Batch, update: Update) -> list[str]:
    """What of an update's own tokens is not finite before anything was computed with it.

    A sampler's log-prob of NaN stands for "not scored" and is no fault; an infinite one is: a token that was sampled
    had a probability. Each rank looks at its own passes, and so all of them together at what enters the update: an
    answer that goes through no pass, as its advantage is 0, moves nothing whatever it holds.

    Args:
        batch: with log-probs and advantages.
        update: only tokens of its passes with a weight count.
    """
    ours = torch.zeros_like(update.weights, dtype=torch.bool)
    for micro in update.micro_batches:
        ours[micro.tokens] = True
    ours &= update.weights != 0
    fields = {
        "the sampler's log-probabilities are": batch.sampler_logprobs.nan_to_num(
            nan=0.0, posinf=math.inf, neginf=-math.inf
        ),
        "the old policy's log-probabilities are": batch.old_logprobs,
        "the reference's log-probabilities are": batch.ref_logprobs,
        "the advantages are": batch.advantages,
    }
    return [name for name, values in fields.items() if values is not None and not bool(values.isfinite()[ours].all())]


def find_fault(
    policy: Policy,
    optimizer: MasterAdamW,
    batch: Batch,
    update: Update,
    *,
    loss: float,
    grad_norm: float,
    ranks: Ranks,
) -> Fault:
    """Look for what made an update not finite: inputs, gradients, the first module. Called on all ranks together.

    Args:
        policy: the model, its weights untouched.
        optimizer: which holds the gradients.
        batch: the step's.
        update: the one that is left out.
        loss: its loss.
        grad_norm: its gradient's norm.
        ranks: their findings are put together.
    """
    named = {id(parameter): name for name, parameter in policy.model.named_parameters()}
    mine = [
        named.get(id(parameter), "a parameter without a name")
        for parameter, gradient in optimizer.gradients()
        if gradient is not None and not _finite(gradient)
    ]
    passed = [b for micro in update.micro_batches for b in micro.answers]
    found = ranks.gather((broken_inputs(batch, update), math.isfinite(loss), mine, passed))
    causes = list(dict.fromkeys(cause for inputs, *_ in found for cause in inputs))
    module = None
    if not causes:
        answers = sorted({b for *_, passed in found for b in passed})
        prompts, completions = batch.prompts, batch.completions
        sequences = [(*prompts[b], *completions[b].token_ids) for b in answers]
        module = first_nonfinite_module(policy, sequences, ranks)
    if not all(good for _, good, *_ in found):
        causes.append("the loss is")
    elif not causes and not math.isfinite(grad_norm):
        causes.append("the gradient is")
    return Fault(
        causes=tuple(causes or ["the log-probabilities are"]),
        parameters=tuple(dict.fromkeys(name for _, _, names, _ in found for name in names)),
        module=module,
        weights=update.weights,
    )


def first_nonfinite_module(policy: Policy, sequences: Iterable[Sequence[int]], ranks: Ranks = ALONE) -> str | None:
    """Name of the first module, in the order of the forward pass, whose output is not finite; None where all are.

    Args:
        policy: the model; it goes through its own forward, one sequence at a time.
        sequences: token ids, the same on every rank.
        ranks: who look together: where the weights lie in parts, a forward pass takes all of them. The first rank that
            finds one names it.
    """
    found: list[str] = []

    def watch(name: str) -> Callable[[Any, Any, Any], None]:
        def look(module: Any, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            if not found and isinstance(first, Tensor) and first.is_floating_point() and not _finite(first):
                found.append(name)

        return look

    modules = [(name, module) for name, module in policy.model.named_modules() if name]
    hooks = [module.register_forward_hook(watch(name)) for name, module in modules]
    try:
        with torch.no_grad():
            for ids in sequences:
                policy.model(input_ids=torch.tensor([list(ids)], device=policy.device), use_cache=False)
                if not ranks.agree(not found):
                    break
    finally:
        for hook in hooks:
            hook.remove()
    return next((names[0] for names in ranks.gather(found) if names), None)


def first_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinity; None where all are finite.

    Args:
        tensors: (name, tensor) pairs, as `named_parameters()` gives them. Whole numbers are finite.

    Example:
        >>> first_nonfinite([("a", torch.ones(2)), ("b", torch.tensor([1.0, float("nan")]))])
        'b'
    """
    return next((name for name, tensor in tensors if tensor.is_floating_point() and not _finite(tensor)), None)


def write_dump(folder: Path, step: int, batch: Batch, faults: Sequence[Fault]) -> None:
    """Everything that an update which was not finite was made of: batch.json, and tensors.safetensors.

    Args:
        folder: is made.
        step: its number.
        batch: prompts, ids, log-probs, advantages.
        faults: one for each update that was left out; weights_U are the token weights of the U-th of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answers = [
        {
            "row": group.draw.prompt.row,
            "draw": group.draw.number,
            "prompt_ids": list(group.prompt_ids),
            "token_ids": list(completion.token_ids),
            "completion": text,
            "finish_reason": completion.finish_reason.value,
            "reward": score.value if math.isfinite(score.value) else None,
        }
        for group in batch.groups
        for completion, text, score in zip(group.completions, group.texts, group.scores, strict=True)
    ]
    found = [
        {"causes": list(fault.causes), "parameters": list(fault.parameters), "module": fault.module} for fault in faults
    ]
    text = json.dumps({"step": step, "faults": found, "answers": answers}, indent=1, allow_nan=False)
    (folder / "batch.json").write_text(text + "\n", encoding="utf-8")
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    tensors = {name: value.contiguous().cpu() for name, value in values.items() if isinstance(value, Tensor)}
    tensors |= {f"weights_{number}": fault.weights.contiguous() for number, fault in enumerate(faults)}
    # Two fields may be one tensor (old log-probs that are the sampler's), which safetensors refuses.
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "tensors.safetensors")


def _finite(tensor: Tensor) -> bool:
    return bool(own_part(tensor).isfinite().all())
