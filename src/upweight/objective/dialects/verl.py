"""verl's conventions, read from core_algos.py, losses.py, rollout_corr_helper.py of release 0.9.1. Imports no torch."""

import math
from typing import Literal

from upweight.objective.dialects.base import Dialect, Reader, Setting, shown

_ACTOR = "actor_rollout_ref.actor."
_ESTIMATORS = Literal[
    "gae",
    "grpo",
    "grpo_vectorized",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "grpo_passk",
    "gpg",
    "gdpo",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
]
_LOSS_MODES = Literal[
    "vanilla",
    "gspo",
    "cispo",
    "gpg",
    "sapo",
    "dppo_tv",
    "dppo_kl",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "bypass_mode",
]
_KL = Literal[
    "kl", "k1", "kl+", "k1+", "abs", "abs+", "mse", "mse+", "k2", "k2+", "low_var_kl", "low_var_kl+", "k3", "k3+"
]

SETTINGS = (
    Setting(
        name="adv_estimator",
        path="algorithm.adv_estimator",
        kind=_ESTIMATORS,
        default="gae",
        meaning="How advantages are made; gae needs a critic.",
    ),
    Setting(
        name="norm_adv_by_std_in_grpo",
        path="algorithm.norm_adv_by_std_in_grpo",
        kind=bool,
        default=True,
        meaning="Divide by the group's std; false is Dr. GRPO's advantage.",
    ),
    Setting(name="gamma", path="algorithm.gamma", kind=float, default=1.0, at_least=0, meaning="Discount of gae."),
    Setting(name="lam", path="algorithm.lam", kind=float, default=1.0, at_least=0, at_most=1, meaning="Lambda of gae."),
    Setting(
        name="use_kl_in_reward",
        path="algorithm.use_kl_in_reward",
        kind=bool,
        default=False,
        meaning="Subtract the KL from the reward of each token.",
    ),
    Setting(name="kl_penalty", path="algorithm.kl_penalty", kind=_KL, default="kl", meaning="Estimator of that KL."),
    Setting(
        name="kl_ctrl.kl_coef",
        path="algorithm.kl_ctrl.kl_coef",
        kind=float,
        default=0.001,
        at_least=0,
        meaning="Weight of the KL in the reward.",
    ),
    Setting(
        name="kl_ctrl.type",
        path="algorithm.kl_ctrl.type",
        kind=Literal["fixed", "adaptive"],
        default="fixed",
        meaning="Whether that weight is adjusted towards a target.",
    ),
    Setting(
        name="filter_groups.enable",
        path="algorithm.filter_groups.enable",
        kind=bool,
        default=False,
        meaning="Replace groups whose metric has no spread.",
    ),
    Setting(
        name="filter_groups.metric",
        path="algorithm.filter_groups.metric",
        kind=str,
        default="reward",
        meaning="The metric that is looked at; reward is the task's, before any KL.",
    ),
    Setting(
        name="loss_mode",
        path=_ACTOR + "policy_loss.loss_mode",
        kind=_LOSS_MODES,
        default="vanilla",
        meaning="The surrogate.",
    ),
    Setting(
        name="loss_agg_mode",
        path=_ACTOR + "loss_agg_mode",
        kind=Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
        default="token-mean",
        meaning="How the loss is averaged.",
    ),
    Setting(
        name="loss_scale_factor",
        path=_ACTOR + "loss_scale_factor",
        kind=int | None,
        default=None,
        at_least=1,
        meaning="Divisor of seq-mean-token-sum-norm; the padded width where not given.",
    ),
    Setting(
        name="clip_ratio",
        path=_ACTOR + "clip_ratio",
        kind=float,
        default=0.2,
        at_least=0,
        meaning="Read only where clip_ratio_low or clip_ratio_high is none.",
    ),
    Setting(
        name="clip_ratio_low",
        path=_ACTOR + "clip_ratio_low",
        kind=float | None,
        default=0.2,
        at_least=0,
        meaning="Lower bound 1 - clip_ratio_low.",
    ),
    Setting(
        name="clip_ratio_high",
        path=_ACTOR + "clip_ratio_high",
        kind=float | None,
        default=0.2,
        at_least=0,
        meaning="Upper bound 1 + clip_ratio_high, of cispo's weight too.",
    ),
    Setting(
        name="clip_ratio_c",
        path=_ACTOR + "clip_ratio_c",
        kind=float,
        default=3.0,
        meaning="Dual clip, always on with loss_mode vanilla.",
    ),
    Setting(
        name="use_kl_loss",
        path=_ACTOR + "use_kl_loss",
        kind=bool,
        default=False,
        meaning="Add the KL to the loss.",
    ),
    Setting(
        name="kl_loss_coef",
        path=_ACTOR + "kl_loss_coef",
        kind=float,
        default=0.001,
        at_least=0,
        meaning="Weight of the KL in the loss.",
    ),
    Setting(
        name="kl_loss_type",
        path=_ACTOR + "kl_loss_type",
        kind=_KL,
        default="low_var_kl",
        meaning="Estimator of that KL; a + behind it takes k2's gradient.",
    ),
    Setting(
        name="entropy_coeff",
        path=_ACTOR + "entropy_coeff",
        kind=float,
        default=0.0,
        meaning="Weight of an entropy bonus.",
    ),
    Setting(
        name="rollout_correction.rollout_is",
        path="algorithm.rollout_correction.rollout_is",
        kind=Literal["token", "sequence"] | None,
        default=None,
        meaning="Weigh by trainer against sampler: per token, or by the product over the answer.",
    ),
    Setting(
        name="rollout_correction.rollout_is_threshold",
        path="algorithm.rollout_correction.rollout_is_threshold",
        kind=float | str,
        default=2.0,
        meaning="Cut off above this; 'LOW_HIGH' drops what is outside (IcePop).",
    ),
    Setting(
        name="rollout_correction.rollout_is_batch_normalize",
        path="algorithm.rollout_correction.rollout_is_batch_normalize",
        kind=bool,
        default=False,
        meaning="Divide these weights by their mean.",
    ),
    Setting(
        name="rollout_correction.rollout_rs",
        path="algorithm.rollout_correction.rollout_rs",
        kind=str | None,
        default=None,
        meaning="Reject tokens or answers by a divergence.",
    ),
    Setting(
        name="rollout_correction.bypass_mode",
        path="algorithm.rollout_correction.bypass_mode",
        kind=bool,
        default=False,
        meaning="Take the sampler's log-probabilities for the old policy's.",
    ),
    Setting(
        name="rollout_correction.loss_type",
        path="algorithm.rollout_correction.loss_type",
        kind=Literal["ppo_clip", "reinforce"],
        default="ppo_clip",
        meaning="The surrogate in bypass mode.",
    ),
    Setting(
        name="overlong_buffer_cfg.enable",
        path="reward.reward_kwargs.overlong_buffer_cfg.enable",
        kind=bool,
        default=False,
        meaning="DAPO's penalty for long answers.",
    ),
    Setting(
        name="overlong_buffer_cfg.len",
        path="reward.reward_kwargs.overlong_buffer_cfg.len",
        kind=int,
        default=0,
        at_least=0,
        meaning="Tokens before the budget over which it grows.",
    ),
    Setting(
        name="overlong_buffer_cfg.penalty_factor",
        path="reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        kind=float,
        default=1.0,
        meaning="Its largest value.",
    ),
)


def read(reader: Reader) -> None:
    """verl's settings as fields of our objective."""
    _advantage(reader)
    _groups(reader)
    _average(reader)
    if reader.flag("rollout_correction.bypass_mode"):
        _bypass(reader)
    else:
        _surrogate(reader, reader.text("loss_mode"))
        _correction(reader)
    _kl(reader)
    if reader.number("entropy_coeff") != 0:
        reader.miss("entropy_coeff adds an entropy bonus; here there is none")


def _advantage(reader: Reader) -> None:
    name = reader.text("adv_estimator")
    singles = (
        "In a group of one verl takes the reward itself as the advantage; here it is 0, and train refuses such groups"
    )
    if name in ("grpo", "grpo_vectorized"):
        if reader.flag("norm_adv_by_std_in_grpo"):
            sentence = f"adv_estimator={name}: A = (R - mean of the group) / (std of the group + 1e-6), std over n - 1"
            reader.say(sentence, baseline="mean", adv_norm="std", adv_ddof=1, adv_eps=1e-6)
        else:
            sentence = f"adv_estimator={name}, norm_adv_by_std_in_grpo=false: A = R - mean of the group"
            reader.say(sentence, baseline="mean", adv_norm="none")
        reader.miss(singles)
    elif name in ("rloo", "rloo_vectorized"):
        sentence = f"adv_estimator={name}: A = R - mean of the other answers"
        reader.say(sentence, baseline="leave-one-out", adv_norm="none")
        if name == "rloo":
            reader.miss(singles)
    elif name == "gae":
        sentence = (
            "adv_estimator=gae, verl's default, is PPO with a critic; for group baselines give adv_estimator=grpo"
        )
        reader.say(sentence, baseline="critic", gae_lambda=reader.number("lam"))
        reader.miss("verl whitens the critic's advantages over all tokens; here they stay as they are")
        if reader.number("gamma") != 1:
            reader.miss(f"gamma={shown(reader.number('gamma'))}: rewards are not discounted here")
    else:
        way_out = "Its baseline is not built in; the nearest are grpo and rloo."
        reader.refuse("adv_estimator", "one of grpo, grpo_vectorized, rloo, rloo_vectorized or gae", way_out)
    if name != "gae" and (unread := reader.those_given("gamma", "lam")):
        reader.say(f"{unread}: not read by verl with adv_estimator={name}")


def _groups(reader: Reader) -> None:
    if reader.flag("filter_groups.enable"):
        sentence = "filter_groups.enable=true: groups without spread are replaced by freshly sampled ones"
        reader.say(sentence, filter_groups=True, resample=True)
        metric = reader.text("filter_groups.metric")
        if metric != "reward":
            reader.miss(f"filter_groups.metric={metric}: here groups are judged by the task reward")
    else:
        sentence = "filter_groups.enable=false: groups without spread stay in the denominator"
        reader.say(sentence, filter_groups=False, resample=False)
    if not reader.flag("overlong_buffer_cfg.enable"):
        return
    buffer = int(reader.number("overlong_buffer_cfg.len"))
    reader.say("overlong_buffer_cfg: a penalty that grows to -1 at the budget", overlong_buffer=buffer)
    factor = reader.number("overlong_buffer_cfg.penalty_factor")
    if factor != 1:
        reader.miss(f"overlong_buffer_cfg.penalty_factor={shown(factor)}: here the penalty grows to -1")


def _average(reader: Reader) -> None:
    mode = reader.text("loss_agg_mode")
    budget = reader.max_new_tokens
    if mode == "token-sum":
        reader.refuse("loss_agg_mode", "a mean", "A sum grows with the number of tokens; token-mean is the mean of it.")
    if mode == "seq-mean-token-sum":
        sentence = "loss_agg_mode=seq-mean-token-sum: the sum over tokens is divided by the number of answers"
        reader.say(sentence, loss_agg="seq-mean-token-sum-norm")
        times = "max_new_tokens" if budget is None else str(budget)
        reader.miss(f"seq-mean-token-sum has no divisor for the length; here the loss is {times} times smaller")
        return
    reader.say(f"loss_agg_mode={mode}: counted over all micro-batches and ranks of the step", loss_agg=mode)
    if mode != "seq-mean-token-sum-norm":
        return
    factor = reader.values["loss_scale_factor"]
    if factor is None:
        reader.miss(
            "Without loss_scale_factor verl divides by the longest answer of each micro-batch; here by max_new_tokens, "
            "whatever the cut"
        )
    elif budget is None:
        reader.say(f"loss_scale_factor={factor}: set max_new_tokens to it, which is the divisor here")
    elif factor != budget:
        reader.miss(f"loss_scale_factor={factor}: here the divisor is max_new_tokens={budget}")
    else:
        reader.say(f"loss_scale_factor={factor} is max_new_tokens, the divisor here")


def _bounds(reader: Reader) -> tuple[float, float]:
    both = reader.number("clip_ratio")
    low, high = reader.number_or_none("clip_ratio_low"), reader.number_or_none("clip_ratio_high")
    if "clip_ratio" in reader.given and low is not None and high is not None:
        reader.say(
            f"clip_ratio={shown(both)} is not read: clip_ratio_low={shown(low)} and clip_ratio_high={shown(high)} come "
            "first, 0.2 unless given"
        )
    return both if low is None else low, both if high is None else high


def _surrogate(reader: Reader, mode: str) -> None:
    if mode == "gpg":
        sentence = "loss_mode=gpg: A log pi without a ratio, which is CISPO's weight held at 1"
        reader.say(sentence, surrogate="cispo", clip=0.0, clip_high=0.0, ratio_level="token", dual_clip=None)
        return
    if mode not in ("vanilla", "gspo", "cispo"):
        way_out = "Its surrogate is not built in; bypass is rollout_correction.bypass_mode=true."
        reader.refuse("loss_mode", "one of vanilla, gspo, cispo or gpg", way_out)
    low, high = _bounds(reader)
    between = f"bounds {shown(1 - low)} and {shown(1 + high)}"
    if mode == "cispo":
        sentence = f"loss_mode=cispo: {between} of the detached weight, relative to 1 as ours"
        reader.say(sentence, surrogate="cispo", clip=low, clip_high=high, ratio_level="token", dual_clip=None)
    elif mode == "gspo":
        sentence = f"loss_mode=gspo: the geometric mean of an answer's ratios, {between}, no dual clip"
        reader.say(sentence, surrogate="clip", clip=low, clip_high=high, ratio_level="sequence", dual_clip=None)
    else:
        dual = reader.number("clip_ratio_c")
        if dual <= 1:
            reader.refuse("clip_ratio_c", "above 1", "verl has no way to turn dual clip off; a large value does.")
        sentence = f"loss_mode=vanilla: {between}; clip_ratio_c={shown(dual)} is dual clip, always on in verl"
        reader.say(sentence, surrogate="clip", clip=low, clip_high=high, ratio_level="token", dual_clip=dual)


def _threshold(reader: Reader) -> tuple[float | None, float]:
    """The bounds of the sampler's ratio; no lower one for truncation."""
    name = "rollout_correction.rollout_is_threshold"
    parts = str(reader.values[name]).split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    in_range = all(0 < number < math.inf for number in numbers)
    if not 1 <= len(numbers) <= 2 or not in_range or numbers != sorted(numbers):
        reader.refuse(name, "a number above 0, or two as in '0.5_2'", "")
    return (None if len(numbers) == 1 else numbers[0]), numbers[-1]


def _no_rejection(reader: Reader) -> None:
    if reader.values["rollout_correction.rollout_rs"] is not None:
        way_out = "Rejecting by a divergence is not built in; rollout_is_threshold='LOW_HIGH' drops by the ratio."
        reader.refuse("rollout_correction.rollout_rs", "none", way_out)
    if reader.flag("rollout_correction.rollout_is_batch_normalize"):
        reader.miss("rollout_is_batch_normalize=true divides the weights by their mean; here they stay as they are")


def _correction(reader: Reader) -> None:
    _no_rejection(reader)
    level = reader.values["rollout_correction.rollout_is"]
    sentence = "old log-probabilities are those of a forward pass of the trainer"
    if level is None:
        reader.say(f"{sentence}; rollout_is=none: no correction", old_logprobs="recompute", correction="none")
        return
    floor, cap = _threshold(reader)
    kind = "tis" if floor is None else "mis"
    what = "each token's ratio" if level == "token" else "the product of an answer's ratios"
    beyond = "cut off" if floor is None else "dropped"
    reader.say(sentence, old_logprobs="recompute")
    sentence = f"rollout_is={level}: {what}, {beyond} above {shown(cap)}"
    reader.say(sentence, correction=kind, correction_level=level, correction_cap=cap, masked_tokens="keep")
    if floor is not None:
        reader.miss(f"rollout_is_threshold drops ratios below {shown(floor)} too; there is no lower bound here")
    if reader.text("loss_mode") == "gspo" and level == "token":
        reader.miss(
            "verl's GSPO takes the GSPO-token form, so each token keeps its own weight; here an answer's gradient has "
            "the mean of its tokens' weights"
        )
    if reader.flag("use_kl_loss") and kind == "mis":
        reader.miss("verl keeps the KL of tokens that the correction drops; here they have none")


def _bypass(reader: Reader) -> None:
    _no_rejection(reader)
    sentence = "rollout_correction.bypass_mode=true: the sampler's log-probabilities are taken for the old policy's"
    reader.say(sentence, old_logprobs="sampler", correction="none")
    if reader.text("rollout_correction.loss_type") == "ppo_clip":
        _surrogate(reader, "vanilla")
        return
    level = reader.values["rollout_correction.rollout_is"]
    if level is None:
        _surrogate(reader, "gpg")
        return
    floor, cap = _threshold(reader)
    if level == "sequence" or floor is not None or cap < 1:
        way_out = "A detached product over the answer, or a weight that is dropped, is no surrogate here."
        must = "none or token, with one threshold of at least 1, for rollout_correction.loss_type=reinforce"
        reader.refuse("rollout_correction.rollout_is", must, way_out)
    sentence = (
        f"loss_type=reinforce with rollout_is=token: the detached ratio up to {shown(cap)} times log pi, as CISPO's"
    )
    reader.say(sentence, surrogate="cispo", clip=1.0, clip_high=cap - 1, ratio_level="token", dual_clip=None)


def _kl(reader: Reader) -> None:
    in_loss, in_reward = reader.flag("use_kl_loss"), reader.flag("use_kl_in_reward")
    if in_loss and in_reward:
        way_out = "Here the KL has one place, kl_place=loss or kl_place=reward."
        reader.refuse("use_kl_in_reward", "false where use_kl_loss is true", way_out)
    if in_reward:
        coef = reader.number("kl_ctrl.kl_coef")
        sentence = "use_kl_in_reward=true: the answer's KL is subtracted before the group statistics"
        reader.say(sentence, kl_coef=coef, kl_place="reward")
        if reader.text("kl_penalty") not in ("kl", "k1", "kl+", "k1+"):
            reader.miss(f"kl_penalty={reader.text('kl_penalty')}: in the reward the KL is the sum of k1 here")
        if reader.text("kl_ctrl.type") == "adaptive":
            reader.miss("kl_ctrl.type=adaptive adjusts the weight; here it stays")
    elif in_loss:
        _kl_loss(reader)
    else:
        reader.say("use_kl_loss=false, use_kl_in_reward=false: no KL and no reference model", kl_coef=0.0)


def _kl_loss(reader: Reader) -> None:
    name = reader.text("kl_loss_type")
    coef = reader.number("kl_loss_coef")
    if name in ("kl", "k1", "abs"):
        way_out = "As it stands its gradient is not the KL's; k1+ has the reverse KL's."
        reader.refuse("kl_loss_type", "low_var_kl, k3, mse, k2, or one with a + behind it", way_out)
    if name in ("low_var_kl", "k3"):
        sentence = f"kl_loss_type={name}: k3 differentiated as it stands"
        reader.say(sentence, kl_coef=coef, kl_place="loss", kl_estimator="k3", kl_grad="naive")
        reader.miss("verl cuts k3 off at 10, and has no gradient beyond; here it is cut off where the log-ratio is 20")
        return
    sentence = f"kl_loss_type={name}: the gradient of k2, which is the reverse KL's"
    reader.say(sentence, kl_coef=coef, kl_place="loss", kl_estimator="k2", kl_grad="naive")
    if name not in ("mse", "k2", "mse+", "k2+"):
        reader.miss(
            f"kl_loss_type={name} reports the value of {name[:-1]}; here the loss holds k2's, with the same gradient"
        )


VERL = Dialect(name="verl", version="0.9.1", settings=SETTINGS, read=read)
"""verl's PPO trainer, its default (v1) path."""
