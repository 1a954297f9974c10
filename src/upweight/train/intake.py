"""What a run checks about its rows before anything is trained: room for an answer, and a gold answer to judge by."""

from collections.abc import Sequence

from upweight.objective.errors import UsageError
from upweight.policy.policy import Policy
from upweight.rewards.runner import RewardRunner
from upweight.rewards.score import Status
from upweight.tasks.prompt import Prompt
from upweight.tasks.rows import PromptsTask, listed
from upweight.tasks.task import Task
from upweight.train.args import TrainArgs
from upweight.train.resolve import known
from upweight.train.source import check_fits

JUDGED_GOLDS = 20_000
"""Rows whose gold answer is tried, at most: at 5,000 a second that takes four seconds."""

EVAL_PROMPTS = 256
"""Held-out prompts that an evaluation during a run uses, at most; `upweight eval` uses all of them."""

ENDLESS_SAMPLE = 64
"""Prompts of an endless task that are measured."""


def fitting(task: Task, policy: Policy, args: TrainArgs) -> Task:
    """Measure every prompt, those of an evaluation included; refuse or drop what leaves no room for an answer.

    A prompt of an endless task is measured when it is drawn as well, as not all of them can be here.

    Args:
        task: the task as this model is asked it.
        policy: counts the tokens; has the context.
        args: resolved; `prompt_too_long` says what happens.

    Returns:
        The task, without the rows that do not fit under `drop`; a remark counts them.

    Raises:
        UsageError: prompts are too long, the first five with file:line; or none would be left.
    """
    budget = known(args.max_new_tokens)
    if not isinstance(task, PromptsTask):
        draws = task.stream(args.seed).take(task.size or ENDLESS_SAMPLE)
        for prompt in [draw.prompt for draw in draws] + list(task.held_out[:EVAL_PROMPTS]):
            check_fits(prompt, len(policy.encode(prompt)), budget, policy.context_length)
        return task
    room = policy.context_length - budget
    training, held_out = (_too_long(part, policy, room) for part in (task.prompts, task.held_out))
    long = training + held_out
    if not long:
        return task
    total = len(task.prompts) + len(task.held_out)
    sentence = (
        f"{len(long)} of {total} prompts are too long: with max_new_tokens={budget} and the model's context of "
        f"{policy.context_length}, a prompt may have {max(room, 0)} tokens"
    )
    lines = listed([(prompt.place, f"{tokens} tokens") for prompt, tokens in long])
    if args.prompt_too_long == "error":
        way_out = "Shorten them, lower --max_new_tokens, or leave them out with --prompt_too_long drop."
        raise UsageError("\n".join([f"{sentence}:", *lines, way_out]))
    if len(training) == len(task.prompts):
        raise UsageError("\n".join([f"{sentence}, and no training row is left:", *lines]))
    return task.without(
        {prompt.row for prompt, _ in training},
        {prompt.row for prompt, _ in held_out},
        "\n".join([f"dropped, as {sentence}:", *lines]),
    )


def judgeable(task: Task, runner: RewardRunner) -> Task:
    """Try every row's gold answer on a built-in reward: a row that cannot be judged teaches nothing.

    Args:
        task: the task; only rows of a finite one are tried.
        runner: built-in rewards only; others may be costly to call.

    Returns:
        The task, with a remark that counts the gold answers that cannot be read, where there are any.

    Raises:
        UsageError: rows have no gold answer and the reward needs one, or none of the gold answers can be read.
    """
    if not isinstance(task, PromptsTask):
        return task
    prompts = [*task.prompts, *task.held_out][:JUDGED_GOLDS]
    scores = runner.score(prompts, [prompt.answer or "" for prompt in prompts], completion_ids=[()] * len(prompts))
    bad = [(p, score.why) for p, score in zip(prompts, scores, strict=True) if score.status is Status.UNPARSABLE_GOLD]
    reward = "+".join(runner.names)
    missing = [(prompt.place, "no answer") for prompt, _ in bad if not (prompt.answer or "").strip()]
    if missing:
        sentence = f"{len(missing)} of {len(prompts)} rows have no answer, which the reward {reward} needs:"
        way_out = "Give these rows an answer, or choose another --reward."
        raise UsageError("\n".join([sentence, *listed(missing), way_out]))
    if not bad:
        return task
    lines = listed([(prompt.place, why) for prompt, why in bad])
    sentence = f"{len(bad)} of {len(prompts)} gold answers cannot be read by the reward {reward}"
    if len(bad) == len(prompts):
        raise UsageError("\n".join([f"{sentence}, so nothing could be judged:", *lines, "Choose another --reward."]))
    return task.without((), (), "\n".join([f"{sentence}; answers to these rows get no score:", *lines]))


def _too_long(prompts: Sequence[Prompt], policy: Policy, room: int) -> list[tuple[Prompt, int]]:
    measured = [(prompt, len(policy.encode(prompt))) for prompt in prompts]
    return [(prompt, tokens) for prompt, tokens in measured if tokens > room]
