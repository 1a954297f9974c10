"""What is worth knowing about a sound objective, and is never refused. Imports no torch.

`remarks` finds choices that have no effect, biases, and where the objective leaves its paper: `upweight explain` prints
all of them. `notes` are those that a run says at its start: somebody chose something, and it does not do what it says.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from upweight.objective.papers import differences, punishes_length
from upweight.objective.spec import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """One thing worth knowing."""

    kind: Literal["no effect", "bias", "paper"]
    """A choice that does nothing here, a bias of the objective, or a difference from the paper it is named after."""

    text: str
    """A sentence or two."""

    at_start: bool
    """Whether a run says it when it starts: unusual, and not what everybody who takes the preset gets."""


def remarks(
    objective: Objective, *, updates_per_step: int = 1, group_size: int | None = None, preset: str = ""
) -> list[Remark]:
    """Everything that is worth knowing about an objective.

    Args:
        objective: the choices; one that `rules` does not refuse.
        updates_per_step: optimiser updates made on one batch, minibatches x epochs_per_batch.
        group_size: G, answers per prompt; None where it is not known.
        preset: the row of the preset table the objective started from; "" where there is none.

    Returns:
        Choices without effect, then biases, then differences from the paper; empty where there is nothing to say.
        A choice without effect is named only where it differs from its default.
    """
    moves = objective.ratio_moves(updates_per_step)
    return [
        *_without_effect(objective, moves, group_size),
        *_biases_of_averages(objective, group_size),
        *_biases_of_ratios(objective, moves),
        *_biases_of_corrections(objective),
        *_biases_of_the_kl(objective),
        *_biases_of_selection(objective, preset),
        *_differences(objective, preset),
    ]


def notes(
    objective: Objective, *, updates_per_step: int = 1, group_size: int | None = None, preset: str = ""
) -> list[str]:
    """What a run says about its objective at the start: the remarks that are `at_start`.

    Example:
        >>> for note in notes(Objective(kl_coef=0, kl_estimator="k2"), updates_per_step=2):
        ...     print(note)
        kl_estimator=k2 has no effect: kl_coef is 0.
    """
    found = remarks(objective, updates_per_step=updates_per_step, group_size=group_size, preset=preset)
    return [remark.text for remark in found if remark.at_start]


def _without_effect(o: Objective, moves: bool, group_size: int | None) -> Iterator[Remark]:
    for names, idle, because in (
        (("adv_ddof", "adv_eps"), o.adv_norm == "none", "adv_norm is none"),
        (("adv_norm", "adv_ddof", "adv_eps"), o.baseline == "critic", "baseline is critic"),
        (("gae_lambda",), o.baseline != "critic", "there is no critic"),
        (("clip", "clip_high"), o.surrogate == "none", "surrogate is none"),
        (("dual_clip",), o.surrogate != "clip", f"surrogate is {o.surrogate}"),
        (("correction_level", "correction_cap"), o.correction == "none", "correction is none"),
        (("correction_cap",), o.correction == "is", "correction is `is`, which has no cap"),
        (("masked_tokens",), o.correction != "mis", "only correction=mis drops tokens"),
        (("kl_estimator", "kl_grad", "kl_place"), o.kl_coef == 0, "kl_coef is 0"),
        (
            ("kl_estimator", "kl_grad"),
            o.kl_coef > 0 and o.kl_place == "reward",
            "in the reward the KL is the sum of k1, and has no gradient",
        ),
    ):
        for name in names if idle else ():
            value = getattr(o, name)
            if value != getattr(Objective(), name):
                yield _no_effect(f"{name}={value} has no effect: {because}.")
    if not moves and (still := list(_idle_at_a_ratio_of_1(o))):
        about = "up to rounding" if o.asks_for_old_logprobs else "exactly"
        yield _no_effect(
            f"{', '.join(still)} {'have' if len(still) > 1 else 'has'} no effect on the gradient: with a single update "
            f"per batch every ratio is {about} 1. This matters with minibatches or epochs_per_batch above 1."
        )
    others = math.inf if group_size is None else group_size - 1
    if o.adv_norm == "std" and o.baseline == "leave-one-out" and others <= max(1, o.adv_ddof):
        yield _no_effect(
            f"adv_norm=std has no effect with baseline=leave-one-out, group_size={group_size} and "
            f"adv_ddof={o.adv_ddof}: there are too few other answers for a std."
        )


def _idle_at_a_ratio_of_1(o: Objective) -> Iterator[str]:
    """Choices that do nothing to the gradient where every ratio is 1, as the flags spell them."""
    if o.surrogate != "none":
        high = o.clip if o.clip_high is None else o.clip_high
        yield f"clip={o.clip:g}"
        yield f"clip_high={high:g}"
        if o.surrogate == "clip" and o.dual_clip is not None:
            yield f"dual_clip={o.dual_clip:g}"
    # Under a sequence ratio a token's gradient has the mean of its answer's corrections, under CISPO its own.
    averaged = o.ratio_level == "sequence" and o.correction != "none" and o.correction_level == "token"
    if o.ratio_level == "sequence" and (not averaged or o.surrogate == "cispo"):
        yield "ratio_level=sequence"
    if o.surrogate == "none" or (o.surrogate == "cispo" and not averaged):
        yield f"surrogate={o.surrogate}"


def _no_effect(text: str) -> Remark:
    return Remark(kind="no effect", text=text, at_start=True)


def _bias(text: str, *, at_start: bool = False) -> Remark:
    return Remark(kind="bias", text=text, at_start=at_start)


def _biases_of_averages(o: Objective, group_size: int | None) -> Iterator[Remark]:
    yield _bias(
        {
            "token-mean": "Length: every token of an update weighs the same, so a long answer counts by its length; "
            "and the longer the others are, the less a token weighs.",
            "seq-mean-token-mean": "Length: a token of a long answer weighs less than one of a short answer. A long "
            "wrong answer is punished less per token than a short one, a short right one rewarded more: wrong "
            "answers grow.",
            "seq-mean-token-sum-norm": "Length: none. The divisor is a constant, so the gradient shrinks where "
            "answers are short against the budget, and grows as they grow.",
            "group-mean-token-mean": "Length: every token of a group weighs the same, a token of a group with long "
            "answers less than one of a group with short ones.",
        }[o.loss_agg]
    )
    if o.baseline == "critic":
        return
    if o.adv_norm == "std":
        if o.loss_agg == "seq-mean-token-sum-norm":
            yield _bias(
                "adv_norm=std with loss_agg=seq-mean-token-sum-norm: the length bias is gone, the difficulty bias is "
                "not. Dr. GRPO removes both, with adv_norm=none.",
                at_start=True,
            )
        yield _bias(
            "Difficulty: groups that are nearly all right or all wrong have a small std, so they count for more."
            + _lone_answer(o, group_size)
        )
    if o.adv_norm == "batch":
        yield _bias("Difficulty: none between the groups of a step; the step's std scales all of them alike.")
    if o.baseline == "leave-one-out" and o.adv_norm == "std":
        yield _bias(
            "Baseline: every answer is divided by the std of the others, so a group's advantages do not add up to 0. "
            "An answer that is right or wrong alone has others without spread, and is not scaled at all."
        )
    if o.baseline == "mean" and o.adv_norm != "std":
        factor = "" if group_size is None else f" ({(group_size - 1) / group_size:g} with group_size={group_size})"
        yield _bias(
            "Baseline: an answer's own reward is in its group's mean, which shrinks the expected gradient by "
            f"(G - 1)/G{factor} and does not turn it; baseline=leave-one-out does not shrink it."
        )


def _lone_answer(o: Objective, group_size: int | None) -> str:
    """How much the std blows up a lone right answer, in numbers."""
    if group_size is None or group_size <= max(2, o.adv_ddof) or o.baseline != "mean":
        return ""

    def advantage(right: int) -> float:
        share = right / group_size
        std = math.sqrt(group_size * share * (1 - share) / (group_size - o.adv_ddof))
        return (1 - share) / (std + o.adv_eps)

    half = group_size // 2
    return (
        f" With group_size={group_size} a lone right answer gets an advantage of {advantage(1):.2f}; where {half} are "
        f"right, each gets {advantage(half):.2f}."
    )


def _biases_of_ratios(o: Objective, moves: bool) -> Iterator[Remark]:
    if moves and o.ratio_level == "sequence":
        yield _bias(
            "Ratio: the geometric mean over the tokens is no importance weight - that is their product - so "
            "expectations under the new policy are not kept; what it buys is a spread that does not grow with the "
            "length."
        )
        if o.loss_agg == "token-mean":
            yield _bias(
                "ratio_level=sequence with loss_agg=token-mean: every token of an answer carries the same ratio, so "
                "long answers count by their length. GSPO's formula is seq-mean-token-mean.",
                at_start=True,
            )
    elif moves:
        yield _bias(
            "Ratio: a ratio per token takes the tokens before it as given, so that they came from pi_old is not "
            "corrected for; the error grows with the distance from pi_old."
        )
    if o.ratio_level == "sequence" and o.correction != "none" and o.correction_level == "token":
        yield _bias(
            "Correction: under a sequence ratio the gradient of every token of an answer has the mean of the answer's "
            "corrections; a token that is dropped still moves it, through the ratio.",
            at_start=True,
        )
    if moves and o.surrogate == "clip":
        yield _bias("Clip: tokens beyond the bound lose their gradient, which holds the policy near pi_old.")
    if moves and o.surrogate == "cispo":
        yield _bias("Clip: a cut-down weight is smaller than the importance weight; no token loses its gradient.")


_CUT = {
    "is": "",
    "tis": ": ever more of the weights are cut off at the cap, and the others go to 0",
    "mis": ": ever more answers are dropped, and the weights of the others go to 0",
}


def _biases_of_corrections(o: Objective) -> Iterator[Remark]:
    if o.correction == "none":
        return
    if o.correction_level == "token":
        yield _bias(
            f"correction={o.correction} per token is unbiased for one-token answers only: the tokens before count "
            "as given. The whole answer's weight is correction_level=sequence.",
            at_start=True,
        )
    elif o.correction_level == "sequence":
        yield _bias(
            f"correction={o.correction} with correction_level=sequence multiplies the ratios of all tokens, whose "
            f"spread grows exponentially with the length of the answer{_CUT[o.correction]}.",
            at_start=True,
        )
    else:
        yield _bias(
            f"correction={o.correction} with correction_level=geometric is no importance weight: it is a measure of "
            "how far sampler and trainer are apart per token, and removes no bias exactly.",
            at_start=True,
        )
    if o.correction in ("tis", "mis"):
        what = "cutting weights off" if o.correction == "tis" else "dropping tokens"
        yield _bias(f"correction={o.correction}: {what} above {o.correction_cap:g} trades bias for less noise.")


def _biases_of_the_kl(o: Objective) -> Iterator[Remark]:
    if o.kl_coef == 0:
        return
    if o.kl_place == "reward":
        if o.adv_norm != "none" and o.baseline != "critic":
            yield _bias(
                f"kl_place=reward with adv_norm={o.adv_norm}: the KL is divided by the std with everything else, so "
                "kl_coef is no fixed weight. In a group that is all right or all wrong the KL alone makes advantages "
                "of size 1, however small kl_coef is. adv_norm=none keeps it in proportion.",
                at_start=o.adv_norm == "std",
            )
        return
    if o.kl_grad == "naive" and o.kl_estimator == "k3":
        yield _bias(
            "KL: the term's value estimates the reverse KL(pi || pi_ref), its gradient is the forward KL(pi_ref || "
            "pi)'s. kl_grad=reverse descends what is estimated."
        )
    if o.kl_grad == "naive" and o.kl_estimator == "k2":
        yield _bias("KL: k2's value is not quite the KL; its gradient is the reverse KL's, with the prefix held fixed.")
    if o.kl_grad == "reverse" and o.kl_estimator == "k2":
        yield _bias(
            "kl_grad=reverse with kl_estimator=k2 descends the expectation of k2, which is not quite the KL. k1 and k3 "
            "have the reverse KL's gradient in this form, k2 has it with kl_grad=naive.",
            at_start=True,
        )
    yield _bias(
        "KL: it is taken position by position, with the prefix held fixed; the KL of whole answers is kl_place=reward."
    )


def _biases_of_selection(o: Objective, preset: str) -> Iterator[Remark]:
    if o.filter_groups:
        yield _bias(
            "Selection: prompts that the policy always or never answers drop out, so the objective is that of the "
            "prompts in between, a set that changes with the policy."
        )
    if o.truncated == "mask":
        yield _bias("Selection: an answer that used up its budget teaches nothing, not even to be shorter.")
        if punishes_length(o, preset):
            which = "preset=dapo" if o.overlong_buffer is None else f"overlong_buffer={o.overlong_buffer}"
            yield _bias(
                f"{which} with truncated=mask: answers that used up the budget are taken out, so the overlong penalty "
                "falls on those that ended within the buffer only.",
                at_start=True,
            )


def _differences(o: Objective, preset: str) -> Iterator[Remark]:
    for field, sentence in differences(o, preset):
        if preset == "dapo" and field == "loss_agg" and o.loss_agg == "token-mean":  # what nearly everybody calls DAPO
            yield Remark(
                kind="paper",
                text="preset=dapo averages over the tokens of the whole batch. The paper's formula averages over the "
                "tokens of one group: loss_agg=group-mean-token-mean.",
                at_start=True,
            )
        else:
            yield Remark(kind="paper", text=sentence, at_start=False)
