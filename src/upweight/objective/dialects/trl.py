"""TRL's conventions, read from trl/trainer/grpo_trainer.py and grpo_config.py of release 1.16.0. Imports no torch."""

from typing import Literal

from upweight.objective.dialects.base import Dialect, Reader, Setting, shown

SETTINGS = (
    Setting(
        name="loss_type",
        kind=Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
        default="dapo",
        meaning="Which surrogate, and what the sum over tokens is divided by.",
    ),
    Setting(
        name="gradient_accumulation_steps",
        kind=int,
        default=1,
        at_least=1,
        meaning="Micro-batches per optimiser step; bnpo's denominators are theirs.",
    ),
    Setting(
        name="steps_per_generation",
        kind=int | None,
        default=None,
        at_least=1,
        meaning="Micro-batches per sampled batch; dapo and cispo divide by the batch's mean. As above where not given.",
    ),
    Setting(
        name="scale_rewards",
        kind=Literal["group", "batch", "none", "true", "false"],
        default="group",
        meaning="Divide the centred rewards by the std of the group, of the whole batch, or by nothing.",
    ),
    Setting(
        name="multi_objective_aggregation",
        kind=Literal["sum_then_normalize", "normalize_then_sum"],
        default="sum_then_normalize",
        meaning="Several reward functions: add them up before or after normalising each.",
    ),
    Setting(
        name="importance_sampling_level",
        kind=Literal["token", "sequence"],
        default="token",
        meaning="One importance ratio per token, or one per answer (its geometric mean).",
    ),
    Setting(name="epsilon", kind=float, default=0.2, at_least=0, meaning="Lower bound of the ratio: 1 - epsilon."),
    Setting(
        name="epsilon_high",
        kind=float | None,
        default=None,
        at_least=0,
        meaning="Upper bound 1 + epsilon_high; for cispo the ceiling itself. epsilon where not given.",
    ),
    Setting(
        name="delta",
        kind=float | None,
        default=None,
        meaning="Two-sided clipping: the unclipped ratio is cut off at delta.",
    ),
    Setting(name="beta", kind=float, default=0.0, at_least=0, meaning="Weight of the KL in the loss; 0 turns it off."),
    Setting(
        name="use_bias_correction_kl",
        kind=bool,
        default=True,
        meaning="Multiply the KL by the importance ratio, differentiably.",
    ),
    Setting(
        name="mask_truncated_completions",
        kind=bool,
        default=False,
        meaning="Leave answers that used up their budget out of the loss.",
    ),
    Setting(name="use_vllm", kind=bool, default=False, meaning="Sample with vLLM; the correction below needs it."),
    Setting(
        name="vllm_importance_sampling_correction",
        kind=bool,
        default=True,
        meaning="With use_vllm: weigh each token by trainer against sampler.",
    ),
    Setting(
        name="vllm_importance_sampling_mode",
        kind=Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
        default="sequence_mask",
        meaning="Per token or per answer; ratios beyond the bounds are cut off or dropped.",
    ),
    Setting(
        name="vllm_importance_sampling_clip_max",
        kind=float | None,
        default=3.0,
        meaning="Upper bound of that ratio.",
    ),
    Setting(
        name="vllm_importance_sampling_clip_min",
        kind=float | None,
        default=None,
        meaning="Lower bound of that ratio.",
    ),
    Setting(
        name="vllm_importance_sampling_cap",
        kind=float | None,
        default=None,
        meaning="Old name of vllm_importance_sampling_clip_max; wins where given.",
    ),
    Setting(
        name="top_entropy_quantile", kind=float, default=1.0, meaning="Train on the share of most uncertain tokens."
    ),
    Setting(name="entropy_coef", kind=float, default=0.0, meaning="Weight of an entropy bonus."),
    Setting(name="use_adaptive_entropy", kind=bool, default=False, meaning="Adjust that weight towards a target."),
    Setting(
        name="off_policy_mask_threshold",
        kind=float | None,
        default=None,
        meaning="Drop answers with a negative advantage that drifted further than this.",
    ),
    Setting(name="sync_ref_model", kind=bool, default=False, meaning="Move the reference after the policy."),
)

_AGGREGATION = {
    "dapo": ("the sum over tokens is divided by all tokens of the optimiser step", "token-mean"),
    "cispo": ("the sum over tokens is divided by all tokens of the optimiser step", "token-mean"),
    "bnpo": ("the sum over tokens is divided by the tokens of the micro-batch", "token-mean"),
    "grpo": ("mean over an answer's tokens, then over the answers", "seq-mean-token-mean"),
    "dr_grpo": (
        "the sum over tokens is divided by answers x max_completion_length, which is max_new_tokens here",
        "seq-mean-token-sum-norm",
    ),
}


def read(reader: Reader) -> None:
    """TRL's settings as fields of our objective."""
    if reader.text("loss_type") not in _AGGREGATION:
        way_out = (
            "Its surrogate is not built in; the nearest are cispo, and dapo with importance_sampling_level=sequence."
        )
        reader.refuse("loss_type", "one of grpo, dr_grpo, dapo, bnpo or cispo", way_out)
    _advantage(reader)
    _average(reader)
    _ratio_and_bounds(reader)
    _kl(reader)
    _correction(reader)
    _not_built_in(reader)


def _advantage(reader: Reader) -> None:
    if reader.text("multi_objective_aggregation") == "normalize_then_sum":
        way_out = "Each reward function would be normalised alone; here their weighted sum is."
        reader.refuse("multi_objective_aggregation", "sum_then_normalize", way_out)
    scale = {"true": "group", "false": "none"}.get(reader.text("scale_rewards"), reader.text("scale_rewards"))
    if scale == "none":
        reader.say("scale_rewards=none: A = R - mean of the group", adv_norm="none")
    else:
        of = "group" if scale == "group" else "whole batch"
        ours = "std" if scale == "group" else "batch"
        sentence = f"scale_rewards={scale}: A = (R - mean of the group) / (std of the {of} + 1e-4), std over n - 1"
        reader.say(sentence, adv_norm=ours, adv_ddof=1, adv_eps=1e-4)
    reader.miss(
        "An answer that no reward function could score keeps its place in TRL's denominators, with advantage 0; here "
        "it leaves them"
    )


def _average(reader: Reader) -> None:
    loss_type = reader.text("loss_type")
    sentence, ours = _AGGREGATION[loss_type]
    reader.say(f"loss_type={loss_type}: {sentence}", loss_agg=ours)
    parts = reader.number("gradient_accumulation_steps")
    if loss_type == "bnpo" and parts > 1:
        reader.miss(
            f"loss_type=bnpo with gradient_accumulation_steps={shown(parts)} averages over each micro-batch's own "
            "tokens, then over the micro-batches; here over all tokens of the step, however it is cut"
        )
    elif loss_type == "bnpo":
        reader.say("With a single micro-batch on one process that is all tokens of the step, as here")
    sampled = reader.number_or_none("steps_per_generation")
    if ours == "token-mean" and loss_type != "bnpo" and sampled not in (None, parts):
        reader.miss(
            f"steps_per_generation={shown(sampled)}: where a sampled batch feeds several optimiser steps, TRL divides "
            "each by their mean number of tokens; here by its own"
        )
    if reader.flag("mask_truncated_completions"):
        reader.say("mask_truncated_completions=true: answers that used up their budget are left out", truncated="mask")
        if loss_type in ("grpo", "dr_grpo"):
            reader.miss(
                f"With loss_type={loss_type} TRL still counts the truncated answers among those it divides by; here "
                "they leave the denominator"
            )
    else:
        reader.fields["truncated"] = "keep"


def _ratio_and_bounds(reader: Reader) -> None:
    level = reader.text("importance_sampling_level")
    what = "one ratio per token" if level == "token" else "the geometric mean of an answer's ratios"
    reader.say(f"importance_sampling_level={level}: {what}", ratio_level=level)
    low = reader.number("epsilon")
    high = reader.number_or_none("epsilon_high")
    delta = reader.number_or_none("delta")
    if reader.text("loss_type") == "cispo":
        _cispo_ceiling(reader, low if high is None else high)
        return
    if high is None:
        sentence = f"epsilon={shown(low)}: bounds {shown(1 - low)} and {shown(1 + low)}"
    else:
        sentence = f"epsilon={shown(low)}, epsilon_high={shown(high)}: bounds {shown(1 - low)} and {shown(1 + high)}"
    reader.say(sentence, surrogate="clip", clip=low, clip_high=high)
    _two_sided(reader, delta, low if high is None else high)


def _cispo_ceiling(reader: Reader, ceiling: float) -> None:
    if ceiling < 1:
        way_out = (
            "For cispo it is the ceiling of the weight itself, and what epsilon gives where it is left out would cut "
            "every weight down; ScaleRL uses 5."
        )
        reader.refuse("epsilon_high", "at least 1 with loss_type=cispo", way_out)
    sentence = (
        f"epsilon_high={shown(ceiling)} is CISPO's absolute ceiling, without a floor, and our bounds are 1 - clip and "
        "1 + clip_high"
    )
    reader.say(sentence, surrogate="cispo", clip=1.0, clip_high=ceiling - 1)
    ignored = [name for name in ("epsilon", "delta") if name in reader.given]
    if ignored:
        reader.say(f"{' and '.join(ignored)}: not read by TRL with loss_type=cispo and epsilon_high given")


def _two_sided(reader: Reader, delta: float | None, high: float) -> None:
    if delta is None:
        reader.fields["dual_clip"] = None
        return
    if delta > 1 and delta >= 1 + high:
        reader.say(f"delta={shown(delta)}: for A < 0 the ratio stops at delta, which is dual clip", dual_clip=delta)
    elif delta >= 1 and high > 0:
        # min(min(rho, delta) A, clip(rho) A) with delta below the upper bound: the two swap their parts.
        sentence = (
            f"delta={shown(delta)}, below 1 + epsilon_high: upper bound for A > 0, and 1 + epsilon_high is dual clip"
        )
        reader.say(sentence, clip_high=delta - 1, dual_clip=1 + high)
    else:
        reader.refuse("delta", "above 1, and epsilon_high above 0 with it", "INTELLECT-2 uses 4; none turns it off.")


def _kl(reader: Reader) -> None:
    beta = reader.number("beta")
    if beta == 0:
        reader.say("beta=0: no KL and no reference model", kl_coef=0.0)
        return
    reverse = reader.flag("use_bias_correction_kl")
    what = (
        "k3 times the ratio, which carries a gradient: the reverse KL's"
        if reverse
        else "k3 differentiated as it stands"
    )
    sentence = f"beta={shown(beta)}, use_bias_correction_kl={shown(reverse)}: {what}"
    grad = "reverse" if reverse else "naive"
    reader.say(sentence, kl_coef=beta, kl_place="loss", kl_estimator="k3", kl_grad=grad)
    if reverse and reader.text("importance_sampling_level") == "sequence":
        reader.miss("TRL multiplies the KL by the answer's ratio; here it is multiplied by the token's")
    if reader.flag("sync_ref_model"):
        reader.miss("sync_ref_model=true moves the reference after the policy; here it stays as it was loaded")


def _correction(reader: Reader) -> None:
    reader.say("old log-probabilities are those of a forward pass of the trainer", old_logprobs="recompute")
    if not reader.flag("use_vllm"):
        reader.say("use_vllm=false: no correction for the sampler", correction="none")
        return
    if not reader.flag("vllm_importance_sampling_correction"):
        reader.say("vllm_importance_sampling_correction=false: no correction for the sampler", correction="none")
        return
    mode = reader.text("vllm_importance_sampling_mode")
    level, _, kind = mode.partition("_")
    old, new = "vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max"
    bound = new if reader.values[old] is None else old
    cap = reader.number_or_none(bound)
    if cap is not None and cap <= 0:
        reader.refuse(bound, "above 0", "TRL's own value is 3; none takes the bound away.")
    correction = "is" if cap is None else {"truncate": "tis", "mask": "mis"}[kind]
    beyond = "" if cap is None else f" {'cut off' if kind == 'truncate' else 'dropped'} above {shown(cap)}"
    what = "each token's ratio" if level == "token" else "the product of an answer's ratios (TRL sums its log-ratios)"
    fields: dict[str, object] = {"correction": correction, "correction_level": level, "masked_tokens": "keep"}
    reader.say(f"vllm_importance_sampling_mode={mode}: {what}{beyond}", **fields)
    if cap is not None:
        reader.fields["correction_cap"] = cap
    floor = reader.number_or_none("vllm_importance_sampling_clip_min")
    if floor is not None:
        reader.miss(f"vllm_importance_sampling_clip_min={shown(floor)}: there is no lower bound here")
    if reader.number("beta") > 0 and reader.flag("use_bias_correction_kl"):
        reader.miss("TRL leaves the correction's weight off the KL; here kl_grad=reverse multiplies the KL by it too")
    elif reader.number("beta") > 0 and correction == "mis":
        reader.miss("TRL keeps the KL of tokens that the correction drops; here they have none")


def _not_built_in(reader: Reader) -> None:
    reader.say("TRL has no dynamic sampling: groups without spread stay in the denominator", filter_groups=False)
    if reader.number("top_entropy_quantile") < 1:
        share = shown(reader.number("top_entropy_quantile"))
        reader.miss(f"top_entropy_quantile={share} trains on the most uncertain tokens; here every token is trained on")
    if reader.number("entropy_coef") != 0 or reader.flag("use_adaptive_entropy"):
        reader.miss("entropy_coef adds an entropy bonus; here there is none")
    threshold = reader.number_or_none("off_policy_mask_threshold")
    if threshold is not None:
        reader.miss(f"off_policy_mask_threshold={shown(threshold)} drops answers that drifted; here none is dropped")


TRL = Dialect(name="trl", version="1.16.0", settings=SETTINGS, read=read)
"""TRL's GRPOTrainer."""
