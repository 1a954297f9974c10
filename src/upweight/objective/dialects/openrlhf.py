"""OpenRLHF's conventions, read from models/loss.py, models/utils.py, trainer/ray/ppo_actor.py and
trainer/ppo_utils/experience_maker.py of release 0.11.2. Imports no torch."""

from typing import Literal

from upweight.objective.dialects.base import Dialect, Reader, Setting, shown, two_numbers

SETTINGS = (
    Setting(
        name="algo.advantage.estimator",
        kind=Literal["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"],
        default="gae",
        meaning="How advantages are made; gae needs a critic.",
    ),
    Setting(
        name="algo.advantage.no_std_norm",
        kind=bool,
        default=False,
        meaning="gae, reinforce and reinforce_baseline: do not divide by the std over all tokens.",
    ),
    Setting(name="algo.advantage.gamma", kind=float, default=1.0, at_least=0, meaning="Discount of gae and reinforce."),
    Setting(name="algo.advantage.lambd", kind=float, default=1.0, at_least=0, at_most=1, meaning="Lambda of gae."),
    Setting(
        name="algo.advantage.is_correction_level",
        kind=Literal["off", "token", "seq"],
        default="off",
        meaning="Gate by trainer against sampler, per token or per answer.",
    ),
    Setting(
        name="algo.advantage.is_correction_mode",
        kind=Literal["mask", "clip"],
        default="mask",
        meaning="Drop what is outside the threshold, or clamp the ratio to it.",
    ),
    Setting(
        name="algo.advantage.is_correction_gating",
        kind=Literal["ratio", "binary_kl", "tv"],
        default="ratio",
        meaning="What is held against the threshold.",
    ),
    Setting(
        name="algo.advantage.is_correction_threshold",
        kind=str,
        default="0.5 5.0",
        meaning="LOW HIGH, or HIGH alone.",
    ),
    Setting(name="actor.policy_loss_type", kind=Literal["ppo", "gspo"], default="ppo", meaning="The surrogate."),
    Setting(
        name="actor.loss_agg_mode",
        kind=Literal["token-mean", "seq-mean-token-mean"],
        default="token-mean",
        meaning="How the policy loss is averaged; gspo always takes seq-mean-token-mean.",
    ),
    Setting(
        name="actor.eps_clip", kind=float, default=0.2, at_least=0, meaning="Bounds 1 - eps_clip and 1 + eps_clip."
    ),
    Setting(name="actor.eps_clip_low_high", kind=str | None, default=None, meaning="Both bounds apart, LOW HIGH."),
    Setting(name="actor.dual_clip", kind=float | None, default=None, meaning="Dual clip, off where not given."),
    Setting(name="actor.entropy_coef", kind=float | None, default=None, meaning="Weight of an entropy bonus."),
    Setting(
        name="algo.kl.init_coef",
        kind=float,
        default=0.01,
        at_least=0,
        meaning="Weight of the KL; at 0 there is no reference model.",
    ),
    Setting(
        name="algo.kl.use_loss", kind=bool, default=False, meaning="The KL goes into the loss; else into the reward."
    ),
    Setting(name="algo.kl.estimator", kind=Literal["k1", "k2", "k3"], default="k1", meaning="Estimator of the KL."),
    Setting(
        name="algo.kl.unbiased_gradient",
        kind=bool,
        default=False,
        meaning="With use_loss: the reverse KL's gradient, whatever the estimator.",
    ),
    Setting(name="algo.kl.target", kind=float | None, default=None, meaning="Adjust the weight towards this KL."),
    Setting(
        name="algo.dynamic_filtering_enable",
        kind=bool,
        default=False,
        meaning="Replace groups whose mean reward is outside the range.",
    ),
    Setting(
        name="algo.dynamic_filtering_range",
        kind=str,
        default="0 1",
        meaning="That range, without its ends.",
    ),
    Setting(
        name="reward.overlong_buffer_len",
        kind=float | None,
        default=None,
        at_least=0,
        meaning="Tokens before the budget over which DAPO's penalty grows.",
    ),
    Setting(name="reward.overlong_penalty_factor", kind=float, default=1.0, meaning="Its largest value."),
    Setting(
        name="reward.stop_properly_penalty_coef",
        kind=float | None,
        default=None,
        meaning="Scale or replace the reward of truncated answers.",
    ),
    Setting(
        name="reward.clip_range",
        kind=str,
        default="-10 10",
        meaning="Bounds put on the reward after the group's baseline.",
    ),
)


def read(reader: Reader) -> None:
    """OpenRLHF's settings as fields of our objective."""
    _advantage(reader)
    _rewards(reader)
    _surrogate(reader)
    _correction(reader)
    _kl(reader)
    if reader.values["actor.entropy_coef"] not in (None, 0, 0.0):
        reader.miss("actor.entropy_coef adds an entropy bonus; here there is none")


def _advantage(reader: Reader) -> None:
    name = reader.text("algo.advantage.estimator")
    if name == "group_norm":
        sentence = "estimator=group_norm: A = (R - mean of the group) / (std of the group + 1e-9), std over n - 1"
        reader.say(sentence, baseline="mean", adv_norm="std", adv_ddof=1, adv_eps=1e-9)
    elif name == "dr_grpo":
        reader.say("estimator=dr_grpo: A = R - mean of the group", baseline="mean", adv_norm="none")
    elif name == "rloo":
        reader.say("estimator=rloo: A = R - mean of the other answers", baseline="leave-one-out", adv_norm="none")
    elif name == "gae":
        sentence = "estimator=gae, OpenRLHF's default, is PPO with a critic; for group baselines give group_norm"
        reader.say(sentence, baseline="critic", gae_lambda=reader.number("algo.advantage.lambd"))
        reader.miss("OpenRLHF normalises the critic's advantages over all tokens; here they stay as they are")
        if reader.number("algo.advantage.gamma") != 1:
            reader.miss("algo.advantage.gamma: rewards are not discounted here")
    else:
        way_out = "Means and stds over the whole batch are no baseline here; group_norm is the nearest."
        reader.refuse("algo.advantage.estimator", "one of group_norm, dr_grpo, rloo or gae", way_out)
    if name != "gae" and (unread := reader.those_given("algo.advantage.gamma", "algo.advantage.lambd")):
        reader.say(f"{unread}: not read by OpenRLHF with estimator={name}")


def _rewards(reader: Reader) -> None:
    low, high = two_numbers(reader, "reward.clip_range")
    reader.miss(
        f"OpenRLHF clamps what is left of the reward after the baseline to {shown(low)}..{shown(high)}; here it is not "
        "clamped"
    )
    if reader.flag("algo.dynamic_filtering_enable"):
        sentence = "dynamic_filtering_enable=true: groups are replaced by freshly sampled ones"
        reader.say(sentence, filter_groups=True, resample=True)
        ends = " and ".join(shown(end) for end in two_numbers(reader, "algo.dynamic_filtering_range"))
        reader.miss(
            f"OpenRLHF replaces groups whose mean reward is not between {ends}; here those without spread, which is "
            "the same for rewards of 0 and 1 and that range"
        )
    else:
        sentence = "dynamic_filtering_enable=false: groups without spread stay in the denominator"
        reader.say(sentence, filter_groups=False, resample=False)
    buffer = reader.number_or_none("reward.overlong_buffer_len")
    if buffer is not None:
        if buffer != int(buffer):
            reader.refuse("reward.overlong_buffer_len", "a whole number of tokens", "")
        sentence = f"overlong_buffer_len={shown(buffer)}: a penalty that grows to -1 at the budget"
        reader.say(sentence, overlong_buffer=int(buffer))
        factor = reader.number("reward.overlong_penalty_factor")
        if factor != 1:
            reader.miss(f"overlong_penalty_factor={shown(factor)}: here the penalty grows to -1")
    if reader.values["reward.stop_properly_penalty_coef"] is not None:
        reader.miss("stop_properly_penalty_coef changes the reward of truncated answers; here it stays")


def _surrogate(reader: Reader) -> None:
    low = high = reader.number("actor.eps_clip")
    if reader.values["actor.eps_clip_low_high"] is not None:
        low, high = two_numbers(reader, "actor.eps_clip_low_high")
        if min(low, high) < 0:
            reader.refuse("actor.eps_clip_low_high", "at least 0", "")
    dual = reader.number_or_none("actor.dual_clip")
    if dual is not None and dual <= 1:
        reader.refuse("actor.dual_clip", "above 1", "Leave it out to turn dual clip off.")
    bounds = f"bounds {shown(1 - low)} and {shown(1 + high)}"
    fields: dict[str, object] = {"surrogate": "clip", "clip": low, "clip_high": high, "dual_clip": dual}
    mode = reader.text("actor.loss_agg_mode")
    if reader.text("actor.policy_loss_type") == "gspo":
        sentence = (
            f"policy_loss_type=gspo: the geometric mean of an answer's ratios, {bounds}, whatever loss_agg_mode says"
        )
        reader.say(sentence, ratio_level="sequence", loss_agg="seq-mean-token-mean", **fields)
    else:
        reader.say(f"policy_loss_type=ppo: one ratio per token, {bounds}", ratio_level="token", **fields)
        reader.say(f"loss_agg_mode={mode}: counted over all micro-batches and ranks of the step", loss_agg=mode)


def _correction(reader: Reader) -> None:
    level = reader.text("algo.advantage.is_correction_level")
    if level == "off":
        reader.say(
            "is_correction_level=off: no correction for the sampler", old_logprobs="recompute", correction="none"
        )
        return
    if reader.text("actor.policy_loss_type") == "gspo":
        sentence = (
            f"is_correction_level={level} with gspo: the ratio starts from the sampler's log-probabilities, uncorrected"
        )
        reader.say(sentence, old_logprobs="sampler", correction="none")
        return
    if level == "seq" or reader.text("algo.advantage.is_correction_gating") != "ratio":
        way_out = (
            "A gate by the answer's mean or by a divergence, with each token's own weight behind it, is not built in; "
            "the nearest is --correction mis --correction_level sequence."
        )
        reader.refuse("algo.advantage.is_correction_level", "off or token, with is_correction_gating=ratio", way_out)
    floor, cap = two_numbers(reader, "algo.advantage.is_correction_threshold")
    if cap <= 0 or floor > cap:
        reader.refuse("algo.advantage.is_correction_threshold", "LOW HIGH in that order, with HIGH above 0", "")
    drops = reader.text("algo.advantage.is_correction_mode") == "mask"
    sentence = f"is_correction_level=token: each token's ratio, {'dropped' if drops else 'cut off'} above {shown(cap)}"
    fields: dict[str, object] = {"correction_level": "token", "correction_cap": cap, "masked_tokens": "keep"}
    reader.say(sentence, old_logprobs="recompute", correction="mis" if drops else "tis", **fields)
    if floor > 0:
        what = "drops ratios below" if drops else "raises ratios to"
        reader.miss(f"is_correction_threshold {what} {shown(floor)}; there is no lower bound here")
    if drops and reader.flag("algo.kl.use_loss") and reader.number("algo.kl.init_coef") > 0:
        reader.miss("OpenRLHF keeps the KL of tokens that the correction drops; here they have none")


def _kl(reader: Reader) -> None:
    coef = reader.number("algo.kl.init_coef")
    if coef == 0:
        reader.say("kl.init_coef=0: no KL and no reference model", kl_coef=0.0)
        return
    estimator = reader.text("algo.kl.estimator")
    if reader.flag("algo.kl.use_loss"):
        _kl_loss(reader, coef, estimator)
    else:
        sentence = f"kl.use_loss=false, kl.init_coef={shown(coef)}: the KL goes into the reward"
        reader.say(sentence, kl_coef=coef, kl_place="reward")
        reader.miss(
            "OpenRLHF subtracts the KL after the group's baseline, at each token the KL of the tokens from there on; "
            "here the answer's KL is subtracted from its reward before the group statistics"
        )
        if estimator != "k1":
            reader.miss(f"kl.estimator={estimator}: in the reward the KL is the sum of k1 here")
    if reader.values["algo.kl.target"] is not None:
        reader.miss("kl.target adjusts the weight; here it stays")


def _kl_loss(reader: Reader, coef: float, estimator: str) -> None:
    if reader.flag("algo.kl.unbiased_gradient"):
        sentence = "kl.unbiased_gradient=true: the gradient of ratio times k3, which is the reverse KL's, at each token"
        reader.say(sentence, kl_coef=coef, kl_place="loss", kl_estimator="k3", kl_grad="reverse")
        reader.miss(
            f"kl.unbiased_gradient=true reports {estimator} without the ratio, and its gradient's ratio stops at 10; "
            "here the loss holds ratio times k3"
        )
        if reader.fields["correction"] != "none":
            reader.miss(
                "OpenRLHF leaves the correction's weight off the KL; here kl_grad=reverse multiplies the KL by it too"
            )
    elif estimator == "k1":
        way_out = "Its expected gradient is 0; kl.unbiased_gradient=true has the reverse KL's."
        reader.refuse("algo.kl.estimator", "k2 or k3 with kl.use_loss=true", way_out)
    else:
        sentence = f"kl.use_loss=true, kl.estimator={estimator}: differentiated as it stands"
        reader.say(sentence, kl_coef=coef, kl_place="loss", kl_estimator=estimator, kl_grad="naive")
        reader.miss(f"OpenRLHF cuts {estimator} off at 10, and has no gradient beyond; here it is not cut off there")
    if reader.fields["loss_agg"] != "token-mean":
        reader.miss(
            "OpenRLHF averages the KL over all tokens even where the policy loss is averaged by answers; here both are "
            "averaged by answers"
        )


OPENRLHF = Dialect(name="openrlhf", version="0.11.2", settings=SETTINGS, read=read)
"""OpenRLHF's PPO trainer (train_ppo_ray)."""
