"""Other trainers' settings: what they mean here, what cannot be matched, and which sentence a wrong one gets."""

import dataclasses
import subprocess
import sys

import pytest

from upweight.objective.dialects import DIALECTS, translate
from upweight.objective.errors import UsageError
from upweight.objective.fields import must_be
from upweight.objective.rules import OWNER, conflicts, out_of_range
from upweight.objective.spec import Objective

VLLM = {"use_vllm": True}
GRPO = {"adv_estimator": "grpo"}
IS = "rollout_correction.rollout_is"
IS_BOUND = "rollout_correction.rollout_is_threshold"
GROUP_NORM = {"algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0.0}
GATE = {"algo.advantage.is_correction_level": "token"}
GATE_BOUND = "algo.advantage.is_correction_threshold"
KL_LOSS = {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.01}


def fields(trainer: str, settings: dict[str, object]) -> dict[str, object]:
    """What the translation decides, where it is not our own default."""
    objective, ours = translate(trainer, settings).objective, Objective()
    names = [field.name for field in dataclasses.fields(Objective)]
    return {name: getattr(objective, name) for name in names if getattr(objective, name) != getattr(ours, name)}


def test_trl_starts_from_its_own_defaults_dapo_and_no_kl() -> None:
    assert fields("trl", {}) == {"adv_eps": 1e-4, "kl_coef": 0.0}


def test_verl_starts_from_a_critic_and_always_has_dual_clip() -> None:
    assert fields("verl", {}) == {"baseline": "critic", "clip_high": 0.2, "dual_clip": 3.0, "kl_coef": 0.0}
    assert fields("verl", GRPO) == {"clip_high": 0.2, "dual_clip": 3.0, "kl_coef": 0.0}


def test_openrlhf_starts_from_a_critic_and_a_kl_in_the_reward() -> None:
    made = {"baseline": "critic", "clip_high": 0.2, "kl_coef": 0.01, "kl_place": "reward"}
    assert fields("openrlhf", {}) == made


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({"loss_type": "grpo"}, {"loss_agg": "seq-mean-token-mean"}),
        ({"loss_type": "dr_grpo"}, {"loss_agg": "seq-mean-token-sum-norm"}),
        ({"scale_rewards": False}, {"adv_norm": "none", "adv_eps": 1e-6}),
        ({"scale_rewards": "none"}, {"adv_norm": "none", "adv_eps": 1e-6}),
        ({"scale_rewards": True}, {"adv_norm": "std"}),
        ({"scale_rewards": "batch"}, {"adv_norm": "batch"}),
        ({"epsilon": 0.1, "epsilon_high": 0.28}, {"clip": 0.1, "clip_high": 0.28}),
        ({"loss_type": "cispo", "epsilon_high": 5}, {"surrogate": "cispo", "clip": 1.0, "clip_high": 4.0}),
        ({"delta": 4.0}, {"dual_clip": 4.0}),
        ({"delta": 1.1}, {"clip_high": pytest.approx(0.1), "dual_clip": 1.2}),
        ({"importance_sampling_level": "sequence"}, {"ratio_level": "sequence"}),
        ({"beta": 0.01}, {"kl_coef": 0.01, "kl_grad": "reverse"}),
        ({"beta": 0.01, "use_bias_correction_kl": False}, {"kl_coef": 0.01}),
        ({"mask_truncated_completions": True}, {"truncated": "mask"}),
        (VLLM, {"correction": "mis", "correction_level": "sequence", "correction_cap": 3.0}),
        ({**VLLM, "vllm_importance_sampling_correction": False}, {}),
        ({"vllm_importance_sampling_mode": "token_truncate"}, {}),
        (
            {**VLLM, "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 1.5},
            {"correction": "tis", "correction_cap": 1.5},
        ),
        (
            {**VLLM, "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": None},
            {"correction": "is"},
        ),
    ],
)
def test_trls_names_mean_here_what_they_mean_there(settings: dict[str, object], made: dict[str, object]) -> None:
    expected = {"adv_eps": 1e-4, "kl_coef": 0.0, **made}
    ours = dataclasses.asdict(Objective())
    assert fields("trl", settings) == {name: value for name, value in expected.items() if value != ours[name]}


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({"norm_adv_by_std_in_grpo": False}, {"adv_norm": "none"}),
        ({"adv_estimator": "rloo"}, {"baseline": "leave-one-out", "adv_norm": "none"}),
        ({"actor_rollout_ref.actor.clip_ratio_high": 0.28}, {"clip_high": 0.28}),
        ({"clip_ratio": 0.1}, {}),
        ({"clip_ratio": 0.1, "clip_ratio_low": None, "clip_ratio_high": None}, {"clip": 0.1, "clip_high": 0.1}),
        ({"clip_ratio_c": 10}, {"dual_clip": 10.0}),
        ({"loss_mode": "gspo"}, {"ratio_level": "sequence", "dual_clip": None}),
        ({"loss_mode": "cispo"}, {"surrogate": "cispo", "dual_clip": None}),
        ({"loss_mode": "gpg"}, {"surrogate": "cispo", "clip": 0.0, "clip_high": 0.0, "dual_clip": None}),
        ({"loss_agg_mode": "seq-mean-token-mean"}, {"loss_agg": "seq-mean-token-mean"}),
        ({"use_kl_loss": True}, {"kl_coef": 0.001}),
        ({"use_kl_loss": True, "kl_loss_type": "k1+"}, {"kl_coef": 0.001, "kl_estimator": "k2"}),
        ({"use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.1}, {"kl_coef": 0.1, "kl_place": "reward"}),
        ({"filter_groups.enable": True}, {"filter_groups": True, "resample": True}),
        ({"overlong_buffer_cfg.enable": True, "overlong_buffer_cfg.len": 4096}, {"overlong_buffer": 4096}),
        ({IS: "sequence"}, {"correction": "tis", "correction_level": "sequence"}),
        ({IS: "token", IS_BOUND: "0.5_5"}, {"correction": "mis", "correction_cap": 5.0}),
        ({"rollout_correction.bypass_mode": True}, {"old_logprobs": "sampler"}),
    ],
)
def test_verls_names_mean_here_what_they_mean_there(settings: dict[str, object], made: dict[str, object]) -> None:
    expected = {"clip_high": 0.2, "dual_clip": 3.0, "kl_coef": 0.0, **made}
    ours = dataclasses.asdict(Objective())
    shown = {name: value for name, value in expected.items() if value != ours[name]}
    assert fields("verl", {**GRPO, **settings}) == shown


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({}, {"adv_eps": 1e-9}),
        ({"algo.advantage.estimator": "dr_grpo"}, {"adv_norm": "none"}),
        ({"algo.advantage.estimator": "rloo"}, {"baseline": "leave-one-out", "adv_norm": "none"}),
        ({"actor.eps_clip_low_high": [0.2, 0.28]}, {"adv_eps": 1e-9, "clip_high": 0.28}),
        ({"actor.eps_clip_low_high": "0.2 0.28"}, {"adv_eps": 1e-9, "clip_high": 0.28}),
        ({"actor.dual_clip": 3.0}, {"adv_eps": 1e-9, "dual_clip": 3.0}),
        (
            {"actor.policy_loss_type": "gspo"},
            {"adv_eps": 1e-9, "ratio_level": "sequence", "loss_agg": "seq-mean-token-mean"},
        ),
        (
            {"actor.policy_loss_type": "gspo", **GATE},
            {
                "adv_eps": 1e-9,
                "ratio_level": "sequence",
                "loss_agg": "seq-mean-token-mean",
                "old_logprobs": "sampler",
            },
        ),
        (GATE, {"adv_eps": 1e-9, "correction": "mis", "correction_cap": 5.0}),
        ({**GATE, "algo.advantage.is_correction_threshold": [2.0]}, {"adv_eps": 1e-9, "correction": "mis"}),
        ({**KL_LOSS, "algo.kl.estimator": "k2"}, {"adv_eps": 1e-9, "kl_coef": 0.01, "kl_estimator": "k2"}),
        ({**KL_LOSS, "algo.kl.unbiased_gradient": True}, {"adv_eps": 1e-9, "kl_coef": 0.01, "kl_grad": "reverse"}),
        ({"algo.dynamic_filtering_enable": True}, {"adv_eps": 1e-9, "filter_groups": True, "resample": True}),
    ],
)
def test_openrlhfs_names_mean_here_what_they_mean_there(settings: dict[str, object], made: dict[str, object]) -> None:
    expected = {"clip_high": 0.2, "kl_coef": 0.0, **made}
    assert fields("openrlhf", {**GROUP_NORM, **settings}) == expected


@pytest.mark.parametrize(
    ("trainer", "settings", "words"),
    [
        ("trl", {}, ["no reward function could score"]),
        ("trl", {"loss_type": "bnpo", "gradient_accumulation_steps": 4}, ["each micro-batch's own"]),
        ("trl", {"steps_per_generation": 4}, ["its own"]),
        ("trl", {"loss_type": "grpo", "mask_truncated_completions": True}, ["truncated answers"]),
        ("trl", {"beta": 0.1, "importance_sampling_level": "sequence"}, ["the answer's ratio"]),
        ("trl", {"beta": 0.1, **VLLM}, ["off the KL"]),
        ("trl", {"beta": 0.1, "use_bias_correction_kl": False, **VLLM}, ["keeps the KL of tokens"]),
        ("trl", {"vllm_importance_sampling_clip_min": 0.5, **VLLM}, ["no lower bound"]),
        ("trl", {"beta": 0.1, "sync_ref_model": True}, ["stays as it was loaded"]),
        ("trl", {"top_entropy_quantile": 0.2}, ["every token is trained on"]),
        ("trl", {"entropy_coef": 0.01}, ["entropy bonus"]),
        ("trl", {"off_policy_mask_threshold": 0.5}, ["none is dropped"]),
        ("verl", GRPO, ["group of one"]),
        ("verl", {}, ["whitens"]),
        ("verl", {"gamma": 0.9}, ["not discounted"]),
        ("verl", {**GRPO, "loss_agg_mode": "seq-mean-token-sum-norm"}, ["longest answer of each micro-batch"]),
        ("verl", {**GRPO, "loss_agg_mode": "seq-mean-token-sum"}, ["64 times smaller"]),
        (
            "verl",
            {**GRPO, "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 32},
            ["loss_scale_factor=32", "max_new_tokens=64"],
        ),
        ("verl", {**GRPO, "use_kl_loss": True}, ["cuts k3 off at 10"]),
        ("verl", {**GRPO, "use_kl_loss": True, "kl_loss_type": "k3+"}, ["reports the value of k3"]),
        ("verl", {**GRPO, "use_kl_in_reward": True, "kl_penalty": "abs"}, ["the sum of k1"]),
        ("verl", {**GRPO, "use_kl_in_reward": True, "kl_ctrl.type": "adaptive"}, ["here it stays"]),
        ("verl", {**GRPO, "entropy_coeff": 0.01}, ["entropy bonus"]),
        ("verl", {**GRPO, "filter_groups.enable": True, "filter_groups.metric": "acc"}, ["task reward"]),
        ("verl", {**GRPO, IS: "token", "loss_mode": "gspo"}, ["GSPO-token"]),
        ("verl", {**GRPO, IS: "token", IS_BOUND: "0.5_5", "use_kl_loss": True}, ["below 0.5", "keeps the KL"]),
        ("openrlhf", GROUP_NORM, ["-10..10"]),
        ("openrlhf", {"algo.advantage.estimator": "rloo"}, ["after the group's baseline"]),
        ("openrlhf", {**GROUP_NORM, **GATE}, ["no lower bound"]),
        ("openrlhf", {**GROUP_NORM, "algo.dynamic_filtering_enable": True}, ["mean reward"]),
        (
            "openrlhf",
            {**GROUP_NORM, **KL_LOSS, "algo.kl.estimator": "k3", "actor.loss_agg_mode": "seq-mean-token-mean"},
            ["cuts k3 off at 10", "over all tokens even where"],
        ),
        ("openrlhf", {**GROUP_NORM, **GATE, **KL_LOSS, "algo.kl.unbiased_gradient": True}, ["off the KL"]),
    ],
)
def test_what_cannot_be_matched_is_said_and_nothing_else(
    trainer: str, settings: dict[str, object], words: list[str]
) -> None:
    told = translate(trainer, settings, max_new_tokens=64).unmatched
    assert [word for word in words if word not in " ".join(told)] == []
    assert [sentence for sentence in told if not sentence.endswith(".") or "\n" in sentence] == []


def test_a_bound_of_zero_and_a_matching_divisor_leave_nothing_unsaid() -> None:
    mask = {**GATE, "algo.advantage.is_correction_threshold": [0.0, 5.0]}
    assert len(translate("openrlhf", {**GROUP_NORM, **mask}).unmatched) == 1
    norm = {**GRPO, "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 64}
    assert len(translate("verl", norm, max_new_tokens=64).unmatched) == 1
    assert len(translate("trl", {"loss_type": "bnpo", "steps_per_generation": 4}).unmatched) == 1


@pytest.mark.parametrize(
    ("trainer", "settings", "words"),
    [
        ("trk", {}, ["one of trl, verl, openrlhf", "'trk'", "Did you mean 'trl'"]),
        ("trl", {"loss_typ": "grpo"}, ["--like trl", "'loss_typ'", "Did you mean 'loss_type'"]),
        ("verl", {"actor.clip_ratio_high": 0.28}, ["Did you mean 'clip_ratio_high'"]),
        ("verl", {"actor.policy_loss.lossmode": "gspo"}, ["Did you mean 'loss_mode'"]),
        ("verl", {"trainer.nnodes": 1}, ["'trainer.nnodes'", "It knows adv_estimator", "leave out what is none"]),
        ("verl", {"overlong_buffer.enabled": True}, ["Did you mean 'overlong_buffer_cfg.enable'"]),
        ("openrlhf", {"algo.kl.coef": 0.1}, ["'algo.kl.coef'", "Did you mean 'algo.kl"]),
        ("trl", {"temperature": 1.0}, ["decides the objective", "'temperature'"]),
        ("trl", {"epsilon": "a"}, ["'epsilon'", "a number", "'a'"]),
        ("trl", {"epsilon": -0.1}, ["'epsilon'", "at least 0", "-0.1"]),
        ("trl", {"loss_type": "daop"}, ["'loss_type'", "one of grpo, dr_grpo", "'daop'"]),
        ("trl", {"loss_type": "sapo"}, ["'loss_type'", "not built in", "'sapo'"]),
        ("trl", {"loss_type": "cispo"}, ["'epsilon_high'", "at least 1", "ScaleRL uses 5"]),
        ("trl", {"epsilon": float("nan")}, ["'epsilon'", "a finite number", "nan"]),
        ("trl", {"beta": float("inf")}, ["'beta'", "a finite number", "inf"]),
        ("trl", {**VLLM, "vllm_importance_sampling_clip_max": 0.0}, ["'vllm_importance_sampling_clip_max'", "above 0"]),
        ("trl", {**VLLM, "vllm_importance_sampling_cap": -1.0}, ["'vllm_importance_sampling_cap'", "above 0", "-1"]),
        ("trl", {"loss_type": "DAPO"}, ["'loss_type'", "Did you mean 'dapo'"]),
        ("trl", {"delta": 0.5}, ["'delta'", "above 1", "0.5"]),
        ("trl", {"multi_objective_aggregation": "normalize_then_sum"}, ["sum_then_normalize"]),
        ("verl", {"adv_estimator": "remax"}, ["'adv_estimator'", "not built in"]),
        ("verl", {**GRPO, "loss_mode": "clip_cov"}, ["'loss_mode'", "not built in"]),
        ("verl", {**GRPO, "loss_agg_mode": "token-sum"}, ["'loss_agg_mode'", "token-mean"]),
        ("verl", {**GRPO, "clip_ratio_c": 1.0}, ["'clip_ratio_c'", "above 1"]),
        ("verl", {**GRPO, "use_kl_loss": True, "kl_loss_type": "kl"}, ["'kl_loss_type'", "k1+"]),
        ("verl", {**GRPO, "use_kl_loss": True, "use_kl_in_reward": True}, ["one place"]),
        ("verl", {**GRPO, "rollout_correction.rollout_rs": "token_k1"}, ["not built in"]),
        ("verl", {**GRPO, IS: "token", IS_BOUND: "5_0.5"}, ["'0.5_2'", "'5_0.5'"]),
        ("verl", {**GRPO, IS: "token", IS_BOUND: "nan"}, ["'rollout_correction.rollout_is_threshold'", "'nan'"]),
        ("verl", {**GRPO, IS: "token", IS_BOUND: float("nan")}, ["'rollout_correction.rollout_is_threshold'", "nan"]),
        ("verl", {**GRPO, IS: "token", IS_BOUND: "0.5_inf"}, ["'rollout_correction.rollout_is_threshold'", "_inf"]),
        ("verl", {"lam": 7}, ["'lam' parameter of --like verl", "between 0 and 1", "7"]),
        ("verl", {"lam": -0.5}, ["'lam' parameter of --like verl", "between 0 and 1", "-0.5"]),
        ("openrlhf", {"algo.advantage.lambd": 1.5}, ["'algo.advantage.lambd'", "between 0 and 1"]),
        ("openrlhf", {**GROUP_NORM, "actor.eps_clip_low_high": "0.2 nan"}, ["two numbers", "'0.2 nan'"]),
        ("openrlhf", {**GROUP_NORM, "reward.clip_range": [float("-inf"), 10]}, ["'reward.clip_range'", "-inf"]),
        ("openrlhf", {**GROUP_NORM, **GATE, GATE_BOUND: "0"}, ["HIGH above 0", "'0'"]),
        ("openrlhf", {**GROUP_NORM, **GATE, GATE_BOUND: "5 0.5"}, ["in that order", "'5 0.5'"]),
        ("openrlhf", {"algo.advantage.estimator": "reinforce_baseline"}, ["group_norm is the nearest"]),
        ("openrlhf", {**GROUP_NORM, "actor.eps_clip_low_high": "wide"}, ["two numbers", "'wide'"]),
        ("openrlhf", {**GROUP_NORM, "actor.dual_clip": 1.0}, ["above 1"]),
        ("openrlhf", {**GROUP_NORM, **KL_LOSS}, ["'algo.kl.estimator'", "expected gradient is 0"]),
        ("openrlhf", {**GROUP_NORM, "algo.advantage.is_correction_level": "seq"}, ["not built in"]),
    ],
)
def test_a_setting_that_cannot_be_read_gets_one_sentence(
    trainer: str, settings: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        translate(trainer, settings)
    assert [word for word in words if word not in str(raised.value)] == []
    assert "\n" not in str(raised.value)


def test_every_default_fits_its_own_setting_and_no_name_is_one_of_our_flags() -> None:
    ours = {field.name for field in dataclasses.fields(Objective)}
    for dialect in DIALECTS.values():
        names = [setting.name for setting in dialect.settings]
        assert len(names) == len(set(names))
        assert ours.isdisjoint(names)
        assert [s.name for s in dialect.settings if must_be(s.kind, s.default) is not None] == []
        assert [s.name for s in dialect.settings if not s.meaning.endswith(".") or "\n" in s.meaning] == []


@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        ("trl", {}),
        ("trl", {**VLLM, "beta": 0.1}),
        ("verl", GRPO),
        ("openrlhf", GROUP_NORM),
        ("openrlhf", {**GROUP_NORM, **GATE}),
    ],
)
def test_a_translation_is_sound(trainer: str, settings: dict[str, object]) -> None:
    objective = translate(trainer, settings).objective
    assert out_of_range(objective, OWNER) + conflicts(objective, group_size=8, max_new_tokens=64) == []


@pytest.mark.parametrize(
    ("trainer", "settings", "sentence"),
    [
        ("verl", {**GRPO, "lam": 0.9}, "lam=0.9: not read by verl with adv_estimator=grpo."),
        (
            "verl",
            {"adv_estimator": "rloo", "lam": 0.9, "gamma": 0.5},
            "gamma=0.5 and lam=0.9: not read by verl with adv_estimator=rloo.",
        ),
        (
            "openrlhf",
            {**GROUP_NORM, "algo.advantage.lambd": 0.9},
            "algo.advantage.lambd=0.9: not read by OpenRLHF with estimator=group_norm.",
        ),
    ],
)
def test_a_setting_that_the_trainer_does_not_read_is_said_to_be_unread(
    trainer: str, settings: dict[str, object], sentence: str
) -> None:
    assert sentence in translate(trainer, settings).says
    estimator = "adv_estimator" if trainer == "verl" else "algo.advantage.estimator"
    assert "not read" not in " ".join(translate(trainer, {**settings, estimator: "gae"}).says)


def test_every_sentence_that_names_fields_names_what_was_decided() -> None:
    translation = translate("trl", {"loss_type": "cispo", "epsilon_high": 5})
    told = " ".join(translation.says)
    assert "epsilon_high=5 is CISPO's absolute ceiling" in told
    assert "(surrogate=cispo, clip=1, clip_high=4)" in told
    assert "adv_norm=std, adv_ddof=1, adv_eps=0.0001" in told


def test_translating_imports_no_torch() -> None:
    code = "import sys, upweight.objective.dialects as d; d.translate('trl'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
