"""Which objectives contradict themselves and are refused. Imports no torch.

The sentences are finished - they name the flag, its value and the way out - so that the command line, `explain` and
the trainer say the same. What is worth knowing and never refused is in `remarks`.
"""

import dataclasses
import functools
import typing
from collections.abc import Iterator

from upweight.objective.errors import bad_parameter
from upweight.objective.fields import must_be
from upweight.objective.spec import Objective

OWNER = "Objective"


def conflicts(
    objective: Objective,
    *,
    group_size: int,
    max_new_tokens: int | None = None,
    budget_from_task: bool = False,
    has_sampler_logprobs: bool = True,
    top_p: float = 1.0,
    top_k: int = 0,
    replays_kept_set: bool = True,
) -> list[str]:
    """Choices that do not go together, which make an objective impossible or meaningless.

    Args:
        objective: the choices, each of a right type and in its range: see `wrong_types` and `out_of_range`.
        group_size: G, answers per prompt.
        max_new_tokens: generation budget of one answer in tokens; None where there is none.
        budget_from_task: a budget of None will be filled in by the task, so nothing is held against it yet.
        has_sampler_logprobs: whether the engine returns the log-probability of every token it samples.
        top_p: nucleus sampling of the run, 1 = off.
        top_k: top-k sampling of the run, 0 = off.
        replays_kept_set: whether the engine returns the tokens that each one was chosen among.

    Returns:
        One sentence each, in the order of the fields; empty where the objective is sound.

    Example:
        >>> print(conflicts(Objective(), group_size=1)[0])
        group_size=1 with baseline=mean gives every answer the advantage 0: it is its own baseline. Set --group_size \
to 2 or more.
        >>> conflicts(Objective(), group_size=8)
        []
    """
    problems = [
        *_impossible_groups(objective, group_size),
        *_impossible_lengths(objective, max_new_tokens, budget_from_task),
        *_impossible_ratios(objective, has_sampler_logprobs),
    ]
    if (top_p < 1 or top_k > 0) and not replays_kept_set:
        problems.append(
            f"top_p={top_p}, top_k={top_k} sample from a part of the vocabulary, and this engine does not say "
            "which: the trainer would score another distribution. Set --top_p 1 --top_k 0, or use an engine that "
            "returns the kept set."
        )
    return problems


def wrong_types(objective: Objective, owner: str) -> list[str]:
    """Values that do not fit their field, an unknown name among them; `owner` is who the sentences speak of."""
    problems = []
    for name, hint in _hints().items():
        value = getattr(objective, name)
        if must := must_be(hint, value):
            problems.append(str(bad_parameter(name, owner, must, value)))
    return problems


@functools.cache
def _hints() -> dict[str, object]:
    hints = typing.get_type_hints(Objective)
    return {field.name: hints[field.name] for field in dataclasses.fields(Objective)}


def out_of_range(o: Objective, owner: str) -> list[str]:
    """Single values outside their range; `owner` is who the sentences speak of."""
    checks = [
        ("adv_ddof", o.adv_ddof >= 0, "at least 0", "1 divides by n - 1, 0 by n."),
        ("adv_eps", o.adv_eps >= 0, "at least 0", "It is added to the std."),
        ("gae_lambda", 0 <= o.gae_lambda <= 1, "between 0 and 1", ""),
        ("clip", o.clip >= 0, "at least 0", "The lower bound is 1 - clip."),
        ("clip_high", o.clip_high is None or o.clip_high >= 0, "at least 0", "The upper bound is 1 + clip_high."),
        (
            "dual_clip",
            o.dual_clip is None or o.dual_clip > 1,
            "above 1",
            "At 1 or below it would cut off updates inside the clip range; 3 is usual, none turns it off.",
        ),
        ("kl_coef", o.kl_coef >= 0, "at least 0", "A negative one would push away from the reference; 0 turns it off."),
        ("correction_cap", o.correction_cap > 0, "above 0", "2 is usual."),
        ("overlong_buffer", (o.overlong_buffer or 0) >= 0, "at least 0", "0 turns the penalty off."),
    ]
    return [
        str(bad_parameter(name, owner, must, getattr(o, name), way_out))
        for name, holds, must, way_out in checks
        if not holds
    ]


def _impossible_groups(o: Objective, group_size: int) -> Iterator[str]:
    if o.baseline == "critic":
        yield (
            "baseline=critic needs a value network, which is not built in yet. "
            "Use --baseline mean or --baseline leave-one-out; upweight.gae computes the advantages of a critic of "
            "your own."
        )
    elif group_size == 1:
        yield (
            f"group_size=1 with baseline={o.baseline} gives every answer the advantage 0: it is its own baseline. "
            "Set --group_size to 2 or more."
        )
    elif o.adv_norm == "std" and 1 < group_size <= o.adv_ddof:
        yield (
            f"adv_ddof={o.adv_ddof} leaves nothing to divide the variance of group_size={group_size} answers by. "
            f"Set --adv_ddof below {group_size}, or --adv_norm none."
        )
    if o.resample and not o.filter_groups:
        yield (
            "resample=true samples on until the batch is full of groups that filter_groups leaves in, "
            "and filter_groups is false. Add --filter_groups true, or set --resample false."
        )


def _impossible_lengths(o: Objective, max_new_tokens: int | None, budget_from_task: bool) -> Iterator[str]:
    if max_new_tokens is None:
        if o.loss_agg == "seq-mean-token-sum-norm" and not budget_from_task:
            yield (
                "loss_agg=seq-mean-token-sum-norm divides by the generation budget, and there is none. "
                "Set --max_new_tokens, or choose another --loss_agg."
            )
        if (o.overlong_buffer or 0) > 0 and not budget_from_task:
            yield (
                f"overlong_buffer={o.overlong_buffer} counts back from the generation budget, and there is none. "
                "Set --max_new_tokens, or --overlong_buffer 0."
            )
    elif (o.overlong_buffer or 0) > max_new_tokens:
        yield (
            f"overlong_buffer={o.overlong_buffer} is longer than the generation budget "
            f"max_new_tokens={max_new_tokens}, so even an empty answer would be punished. Set --overlong_buffer to "
            f"at most {max_new_tokens}."
        )


def _impossible_ratios(o: Objective, has_sampler_logprobs: bool) -> Iterator[str]:
    if o.kl_coef > 0 and o.kl_place == "loss" and o.kl_estimator == "k1" and o.kl_grad == "naive":
        yield (
            "kl_estimator=k1 with kl_grad=naive in the loss has an expected gradient of 0 on the policy's own "
            "samples: it would add noise only. Use --kl_estimator k3 or k2, or --kl_grad reverse, or --kl_place reward."
        )
    if o.correction != "none" and not has_sampler_logprobs:
        yield (
            f"correction={o.correction} weighs the trainer's log-probabilities against the sampler's, and this "
            "engine returns none. Set --correction none, or use an engine that returns log-probabilities."
        )
    if o.correction != "none" and o.old_logprobs == "sampler":
        yield (
            f"correction={o.correction} with old_logprobs=sampler corrects twice: the ratio starts from the sampler's "
            "log-probabilities already. Set --correction none, or --old_logprobs recompute."
        )
