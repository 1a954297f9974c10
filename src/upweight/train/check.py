"""Everything about a run's configuration that can be refused before anything is loaded. Imports no torch."""

import dataclasses
import sys
import typing
from collections.abc import Iterator

from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.fields import must_be
from upweight.objective.rules import OWNER as OBJECTIVE
from upweight.objective.rules import conflicts, out_of_range, wrong_types
from upweight.objective.spec import Objective
from upweight.policy.known import CONTEXTS, DEVICES, is_device
from upweight.train.args import TrainArgs
from upweight.train.redact import HIDDEN

OWNER = "TrainArgs"

LARGEST_SEED = 2**63 - 1
"""What torch's generator takes."""

LARGEST_COUNT = 10**12
"""Of steps, prompts, tokens: more than any run gets to, and a product of several of them is still a float."""

_AT_LEAST_ONE = {
    "max_steps": ("steps", "1 is the shortest run"),
    "prompts_per_step": ("prompts", ""),
    "group_size": ("answers per prompt", "8 is usual"),
    "minibatches": ("parts of a batch", "1 makes one update of the whole batch"),
    "epochs_per_batch": ("passes over a batch", "1 uses each answer once"),
    "micro_batch_tokens": ("tokens", ""),
    "max_new_tokens": ("tokens", ""),
    "resample_budget": ("rounds of sampling", "to sample once, set --resample false"),
}

_AT_LEAST_ZERO = {
    "top_k": ("tokens", "0 turns top-k off"),
    "lr_warmup_steps": ("steps", "0 leaves the rise out"),
    "weight_decay": ("", "0 turns it off"),
    "max_grad_norm": ("", "0 turns clipping of the gradient off"),
    "sft_steps": ("steps", "0 leaves the warm-up out"),
    "save_every": ("steps", "0 saves at the end only"),
    "keep_checkpoints": ("checkpoints", "0 keeps all"),
    "eval_every": ("steps", "0 evaluates before and after only"),
    "seed": ("", ""),
    "max_reward_errors": ("", "0 stops at the first failure, 1 never"),
}

_ABOVE_ZERO = {
    "temperature": ("", "0 would always sample the same answer, so no group could differ; 1 samples as the model says"),
    "learning_rate": ("", "5e-4 suits tiny, 1e-5 other models"),
    "reward_timeout": ("seconds", ""),
}

_COUNTS = tuple(
    name
    for name, hint in typing.get_type_hints(TrainArgs).items()
    if int in (hint, *typing.get_args(hint)) and name != "seed"
)
"""Fields that are whole numbers of something."""


def check_args(
    args: TrainArgs, *, has_sampler_logprobs: bool = True, replays_kept_set: bool = True, budget_from_task: bool = True
) -> None:
    """Refuse a configuration that cannot work: types, ranges, and contradictions of the objective.

    Args:
        args: the configuration, resolved or not: fields that are None because the run fills them in are accepted.
        has_sampler_logprobs: whether the engine returns log-probabilities.
        replays_kept_set: whether the engine returns the tokens that each sampled one was chosen among.
        budget_from_task: whether a `max_new_tokens` of None will be filled in by the task.

    Raises:
        UsageError: one sentence a problem, all of them, each on a line: the field, its unit, the rule, the value
            and the way out.

    Example:
        >>> check_args(TrainArgs(max_steps=0))
        Traceback (most recent call last):
        ...
        upweight.objective.errors.UsageError: The 'max_steps' parameter of TrainArgs must be at least 1, in steps. \
Got 0 instead. 1 is the shortest run.
    """
    problems = wrong_values(args)
    if isinstance(args.objective, Objective):
        problems += conflicts_of(
            args,
            has_sampler_logprobs=has_sampler_logprobs,
            replays_kept_set=replays_kept_set,
            budget_from_task=budget_from_task,
        )
    if problems:
        raise UsageError("\n".join(problems))


def check_room(args: TrainArgs) -> None:
    """Refuse a budget that leaves no room for a prompt, where the model's name alone says how long its context is.

    Args:
        args: whose values are within their ranges.

    Raises:
        UsageError: naming both, and the way out.

    Example:
        >>> check_room(TrainArgs(model="tiny", max_new_tokens=512))
        Traceback (most recent call last):
        ...
        upweight.objective.errors.UsageError: max_new_tokens=512 leaves no room for a prompt in the context of tiny, \
512 tokens. Lower --max_new_tokens.
    """
    context, budget = CONTEXTS.get(args.model), args.max_new_tokens
    if context is not None and budget is not None and budget >= context:
        where = f"in the context of {args.model}, {context} tokens"
        raise UsageError(f"max_new_tokens={budget} leaves no room for a prompt {where}. Lower --max_new_tokens.")


def wrong_values(args: TrainArgs) -> list[str]:
    """Single values of a wrong type or outside their range, those of the objective included; a sentence each."""
    if not isinstance(args.objective, Objective):
        return [str(bad_parameter("objective", OWNER, "an Objective, or none for the preset's", args.objective))]
    objective = args.objective
    ours = list(_wrong_values(args)) or list(_out_of_range(args))
    return ours + (wrong_types(objective, OBJECTIVE) or out_of_range(objective, OBJECTIVE))


def conflicts_of(
    args: TrainArgs, *, has_sampler_logprobs: bool = True, replays_kept_set: bool = True, budget_from_task: bool = True
) -> list[str]:
    """Choices that do not go together, a sentence each; see `conflicts`. The parameters are `check_args`'s."""
    if wrong_types(args.objective, OBJECTIVE):
        return []
    return conflicts(
        args.objective,
        group_size=args.group_size if isinstance(args.group_size, int) else 2,
        max_new_tokens=args.max_new_tokens if isinstance(args.max_new_tokens, int) else None,
        budget_from_task=budget_from_task,
        has_sampler_logprobs=has_sampler_logprobs,
        top_p=args.top_p if isinstance(args.top_p, int | float) else 1.0,
        top_k=args.top_k if isinstance(args.top_k, int) else 0,
        replays_kept_set=replays_kept_set,
    )


def _wrong_values(args: TrainArgs) -> Iterator[str]:
    hints = typing.get_type_hints(TrainArgs)
    for field in dataclasses.fields(args):
        if field.name == "objective":
            continue
        value = getattr(args, field.name)
        if must := must_be(hints[field.name], value):
            yield str(bad_parameter(field.name, OWNER, must, value))


def _out_of_range(args: TrainArgs) -> Iterator[str]:
    for table, least, rule in (
        (_AT_LEAST_ONE, 1, "at least 1"),
        (_AT_LEAST_ZERO, 0, "at least 0"),
        (_ABOVE_ZERO, sys.float_info.min, "above 0"),
    ):
        for name, (unit, way_out) in table.items():
            value = getattr(args, name)
            if value is not None and value < least:
                must = f"{rule}, in {unit}" if unit else rule
                yield str(bad_parameter(name, OWNER, must, value, way_out and f"{way_out[0].upper()}{way_out[1:]}."))
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if isinstance(value, str) and HIDDEN in value:  # from the configuration of a run that this one goes on with
            must = f"given again: a run's configuration has {HIDDEN} where a secret was"
            yield str(bad_parameter(field.name, OWNER, must, value))
    if args.seed > LARGEST_SEED:
        yield str(bad_parameter("seed", OWNER, "at most 2**63 - 1", args.seed))
    for name in _COUNTS:
        value = getattr(args, name)
        if value is not None and value > LARGEST_COUNT:
            yield str(bad_parameter(name, OWNER, "at most 10**12", value))
    if not is_device(args.device):
        yield str(bad_parameter("device", OWNER, DEVICES, args.device))
    if not 0 < args.top_p <= 1:
        yield str(bad_parameter("top_p", OWNER, "above 0 and at most 1", args.top_p, "1 turns nucleus sampling off."))
    if args.minibatches > args.prompts_per_step >= 1:
        must = f"at most prompts_per_step, {args.prompts_per_step}: a batch is split by prompt"
        way_out = f"Set --minibatches {args.prompts_per_step}, or --prompts_per_step {args.minibatches}."
        yield str(bad_parameter("minibatches", OWNER, must, args.minibatches, way_out))
