"""Groups that wait for the next step, as plain JSON values: exact, kept sets included."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from upweight.rewards.score import Score, Status
from upweight.rollout.completion import Completion, FinishReason
from upweight.tasks.prompt import Draw, Prompt
from upweight.train.records import Group
from upweight.train.redact import redact


def why_told(score: Score) -> str:
    """What a score says of itself, for a file. What a function raised may name a secret; a verdict names the answer."""
    return score.why if score.status is Status.SCORED else redact(score.why)


def group_to_json(group: Group) -> dict[str, Any]:
    """A judged group, ready for `json.dumps(..., allow_nan=False)`.

    Numbers keep every bit, and NaN is the word "nan". A row's further columns are left out: they are for reward
    functions, and these have spoken. Errors are told without secrets.
    """
    prompt = group.draw.prompt
    return {
        "row": prompt.row,
        "text": prompt.said,
        "answer": prompt.answer,
        "where": prompt.where,
        "draw": group.draw.number,
        "prompt_ids": list(group.prompt_ids),
        "texts": list(group.texts),
        "scores": [
            {
                "value": str(score.value),
                "status": score.status.value,
                "why": why_told(score),
                "extracted": score.extracted,
                "gold_parsed": score.gold_parsed,
            }
            for score in group.scores
        ],
        "completions": [
            {
                "token_ids": list(completion.token_ids),
                "logprobs": [str(logprob) for logprob in completion.logprobs],
                "loss_mask": list(completion.loss_mask),
                "weights_versions": list(completion.weights_versions),
                "finish_reason": completion.finish_reason.value,
                "kept": None if completion.kept is None else [ids.tolist() for ids in completion.kept],
            }
            for completion in group.completions
        ],
    }


def check_held(states: Any) -> None:
    """Refuse what `group_from_json` could not read.

    Raises:
        ValueError: it is no list of groups; the reason.
    """
    try:
        for state in states:
            group_from_json(state)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"the groups that wait for the next step cannot be read ({error!r})") from error


def group_from_json(state: Mapping[str, Any]) -> Group:
    """The group that `group_to_json` wrote."""
    prompt = Prompt(row=state["row"], text=state["text"], answer=state["answer"], where=state["where"])
    return Group(
        draw=Draw(prompt=prompt, number=state["draw"]),
        prompt_ids=tuple(state["prompt_ids"]),
        completions=tuple(
            Completion(
                token_ids=tuple(one["token_ids"]),
                logprobs=tuple(float(logprob) for logprob in one["logprobs"]),
                loss_mask=tuple(one["loss_mask"]),
                weights_versions=tuple(one["weights_versions"]),
                finish_reason=FinishReason(one["finish_reason"]),
                kept=None if one["kept"] is None else tuple(np.array(ids, dtype=np.int32) for ids in one["kept"]),
            )
            for one in state["completions"]
        ),
        texts=tuple(state["texts"]),
        scores=tuple(
            Score(**{**one, "value": float(one["value"]), "status": Status(one["status"])}) for one in state["scores"]
        ),
    )
