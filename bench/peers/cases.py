"""The tensors and the settings that every trainer is run on. Needs torch for its random numbers alone."""

from dataclasses import dataclass, field, replace

import torch

GROUP_SIZE = 4
MAX_NEW_TOKENS = 8
LENGTHS = ([7, 3, 1, 5, 2, 6, 4, 7], [1, 1, 6, 2, 7, 3, 5, 4], [5, 7, 2, 2, 3, 1, 7, 6])
REWARDS = ([1, 0, 0, 1, 0, 0, 1, 0], [0.25, 1, 0.5, -1, 2, 0, 0.75, 0.1], [0.1, 0.1, 0.1, 0.1, 1, 0, 1, 1])
CUTS = {1: "1 x 8", 2: "2 x 4", 8: "8 x 1"}
"""Micro-batches -> how the eight answers are cut."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trainer's settings, and what is expected of them."""

    trainer: str
    name: str
    settings: dict[str, object] = field(default_factory=dict)
    same: bool = True
    """Ours is the same number; where false, `translate` says in a sentence why not."""
    batch: int | None = None
    """The batch it is run on; all of them where None."""
    micro_batches: int = 1
    minibatches: int = 1
    """Micro-batches of the batch, and the optimiser steps that they make up."""


def batches() -> list[dict[str, object]]:
    """Three batches of two groups of four answers of unequal lengths, with ratios far outside the bounds."""
    made = []
    for seed, (lengths, rewards) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        generator = torch.Generator().manual_seed(seed)

        def noise(length: int, scale: float, generator: torch.Generator = generator) -> torch.Tensor:
            return scale * torch.randn(length, generator=generator, dtype=torch.float64)

        rows: dict[str, list[list[float]]] = {name: [] for name in ("logprobs", "old", "ref", "sampler")}
        for length in lengths:
            old = -noise(length, 1.5).abs() - 1
            tensors = {
                "old": old,
                "logprobs": old + noise(length, 0.7),
                "ref": old + noise(length, 0.6),
                "sampler": old + noise(length, 0.6),
            }
            for name, tensor in tensors.items():
                rows[name].append([round(value, 4) for value in tensor.tolist()])
        truncated = [length == max(lengths) for length in lengths]
        made.append({**rows, "rewards": rewards, "truncated": truncated})
    # One token whose k3 is above 10, where two trainers cut it off; one answer without a score; both by themselves.
    far = {**made[0], "ref": [[value + 3 * (i == 1) for value in row] for i, row in enumerate(made[0]["ref"])]}
    return [*made, far, {**made[0], "rewards": [None, *REWARDS[0][1:]]}]


FAR, UNSCORED = 3, 4
"""Batches with a large KL, and with an answer that could not be scored; for cases that ask for them alone."""


Settings = dict[str, object]

TRL_SURROGATES: dict[str, Settings] = {
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "sequence level, dapo": {"loss_type": "dapo", "importance_sampling_level": "sequence"},
}
K3: Settings = {"beta": 0.04, "use_bias_correction_kl": False}


def _vllm(mode: str, **bounds: object) -> Settings:
    """TRL's correction in a mode, with vllm_importance_sampling_clip_max or _min."""
    named = {f"vllm_importance_sampling_clip_{end}": value for end, value in bounds.items()}
    return {"use_vllm": True, "vllm_importance_sampling_mode": mode, **named}


def _trl() -> list[Case]:
    same: dict[str, Settings] = {}
    for name, settings in TRL_SURROGATES.items():
        same |= {name: settings, f"{name}, KL k3": {**settings, **K3}}
        if "sequence" not in settings.values():
            same[f"{name}, KL with the ratio"] = {**settings, "beta": 0.04}
    same |= {
        "dapo, token_truncate": _vllm("token_truncate", max=1.5),
        "dapo, token_mask": _vllm("token_mask", max=1.5),
        "dapo, sequence_truncate": _vllm("sequence_truncate"),
        "dapo, sequence_mask": _vllm("sequence_mask"),
        "dapo, token_truncate, KL k3": {**_vllm("token_truncate", max=1.5), **K3},
        "cispo, sequence_mask": {**TRL_SURROGATES["cispo"], "use_vllm": True},
        "dapo, no cap": _vllm("token_mask", max=None),
        "dapo, delta 1.5": {"delta": 1.5},
        "dapo, delta 1.1 below the bound": {"delta": 1.1},
        "dapo, scale_rewards batch": {"scale_rewards": "batch"},
        "dapo, truncated ones left out": {"mask_truncated_completions": True},
    }
    differ: list[tuple[str, int, Settings]] = [
        ("grpo, truncated ones left out", 0, {"loss_type": "grpo", "mask_truncated_completions": True}),
        ("gspo, KL with the ratio", 0, {**TRL_SURROGATES["gspo"], "beta": 0.04}),
        ("dapo, sequence_mask, KL k3", 1, {**_vllm("sequence_mask"), **K3}),
        ("dapo, token_truncate, KL with the ratio", 0, {**_vllm("token_truncate", max=1.5), "beta": 0.04}),
        ("dapo, token_mask with a floor", 0, _vllm("token_mask", min=0.5)),
        ("dapo, an answer without a score", UNSCORED, {}),
    ]
    parts: Settings = {"loss_type": "bnpo", "gradient_accumulation_steps": 2}
    bnpo = Case(trainer="trl", name="bnpo, 2 micro-batches", settings=parts, same=False, batch=0, micro_batches=2)
    steps: Settings = {"steps_per_generation": 2}
    dapo = replace(bnpo, name="dapo, 2 optimiser steps", settings=steps, minibatches=2)
    return [*_cases("trl", {}, same, differ), bnpo, dapo]


def _cases(
    trainer: str, common: Settings, same: dict[str, Settings], differ: list[tuple[str, int, Settings]]
) -> list[Case]:
    """Those that are the same number, and those that `translate` says are not, each of these on one batch."""
    return [
        *(Case(trainer=trainer, name=name, settings={**common, **given}) for name, given in same.items()),
        *(
            Case(trainer=trainer, name=name, settings={**common, **given}, same=False, batch=batch)
            for name, batch, given in differ
        ),
    ]


def _rollout(**settings: object) -> Settings:
    return {f"rollout_correction.{name}": value for name, value in settings.items()}


def _verl() -> list[Case]:
    norm: Settings = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": MAX_NEW_TOKENS}
    gspo: Settings = {"loss_mode": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    kl: Settings = {"use_kl_loss": True, "kl_loss_coef": 0.04}
    bypass = _rollout(bypass_mode=True)
    reinforce = _rollout(bypass_mode=True, loss_type="reinforce")
    same: dict[str, Settings] = {
        "token-mean, dual clip 3": {},
        "token-mean, dual clip 1.1": {"clip_ratio_c": 1.1},
        "DAPO's bounds": {"clip_ratio_high": 0.28, "clip_ratio_c": 10.0},
        "clip_ratio is not read": {"clip_ratio": 0.05},
        "seq-mean-token-mean": {"loss_agg_mode": "seq-mean-token-mean"},
        "seq-mean-token-sum-norm": norm,
        "dr_grpo": {"norm_adv_by_std_in_grpo": False, **norm},
        "rloo": {"adv_estimator": "rloo"},
        "rloo_vectorized": {"adv_estimator": "rloo_vectorized"},
        "gspo": {**gspo, "loss_agg_mode": "seq-mean-token-mean"},
        "gspo, token-mean": gspo,
        "cispo": {"loss_mode": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
        "cispo, default bounds": {"loss_mode": "cispo"},
        "gpg": {"loss_mode": "gpg"},
        **{f"KL {kind}": {**kl, "kl_loss_type": kind} for kind in ("low_var_kl", "k3+", "k2", "k1+", "abs+")},
        "KL in the reward": {"use_kl_in_reward": True, "kl_ctrl.kl_coef": 0.04},
        "rollout_is token, TIS": _rollout(rollout_is="token", rollout_is_threshold=2.0),
        "rollout_is token, IcePop from 0.0001": _rollout(rollout_is="token", rollout_is_threshold="0.0001_2"),
        "rollout_is sequence, TIS": _rollout(rollout_is="sequence", rollout_is_threshold=2.0),
        "rollout_is sequence, IcePop from 0.0001": _rollout(rollout_is="sequence", rollout_is_threshold="0.0001_2"),
        "bypass, ppo_clip": bypass,
        "bypass, reinforce": reinforce,
        "bypass, reinforce, rollout_is token": {**reinforce, **_rollout(rollout_is="token")},
    }
    differ: list[tuple[str, int, Settings]] = [
        ("seq-mean-token-sum-norm, no factor", 0, {"loss_agg_mode": "seq-mean-token-sum-norm"}),
        ("seq-mean-token-sum", 0, {"loss_agg_mode": "seq-mean-token-sum"}),
        ("KL low_var_kl above 10", FAR, kl),
        ("gspo, rollout_is token", 0, {**gspo, **_rollout(rollout_is="token")}),
        ("rollout_is token, IcePop, KL", 0, {**kl, **_rollout(rollout_is="token", rollout_is_threshold="0.0001_2")}),
        ("rollout_is token, IcePop from 0.5", 0, _rollout(rollout_is="token", rollout_is_threshold="0.5_2")),
    ]
    return _cases("verl", {"adv_estimator": "grpo"}, same, differ)


def _openrlhf() -> list[Case]:
    by_answer: Settings = {"actor.loss_agg_mode": "seq-mean-token-mean"}
    gspo: Settings = {"actor.policy_loss_type": "gspo"}
    kl: Settings = {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.04, "algo.kl.estimator": "k3"}
    gate: Settings = {"algo.advantage.is_correction_level": "token"}
    no_floor: Settings = {**gate, "algo.advantage.is_correction_threshold": [0.0, 1.5]}
    same: dict[str, Settings] = {
        "group_norm, token-mean": {},
        "group_norm, seq-mean-token-mean": by_answer,
        "dr_grpo": {"algo.advantage.estimator": "dr_grpo"},
        "rloo": {"algo.advantage.estimator": "rloo"},
        "DAPO's bounds": {"actor.eps_clip_low_high": [0.2, 0.28]},
        "dual clip 1.5": {"actor.dual_clip": 1.5},
        "gspo": {**gspo, "actor.eps_clip_low_high": [3e-4, 4e-4]},
        "gspo, correction on": {**gspo, **gate},
        "correction: token mask": no_floor,
        "correction: token clip": {**no_floor, "algo.advantage.is_correction_mode": "clip"},
        "KL k2 in the loss": {**kl, "algo.kl.estimator": "k2"},
        "KL k3 in the loss": kl,
        "KL in the loss, unbiased gradient": {**kl, "algo.kl.unbiased_gradient": True},
    }
    differ: list[tuple[str, int, Settings]] = [
        ("KL in the reward", 0, {"algo.kl.init_coef": 0.04}),
        ("KL k3 in the loss, seq-mean-token-mean", 0, {**kl, **by_answer}),
        ("KL k3 above 10", FAR, kl),
        ("correction: token mask from 0.5", 0, gate),
    ]
    return _cases("openrlhf", {"algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0.0}, same, differ)


VALUE_DIFFERS = {
    ("verl", "KL k3+"),
    ("verl", "KL k1+"),
    ("verl", "KL abs+"),
    ("openrlhf", "KL in the loss, unbiased gradient"),
}
"""Straight-through estimators: the gradient is the same, the reported value is of another estimator on purpose."""

CASES = [*_trl(), *_verl(), *_openrlhf()]
SPLITS = (
    [Case(trainer="trl", name=name, settings={"loss_type": name}) for name in ("grpo", "bnpo", "dr_grpo", "dapo")]
    + [
        Case(
            trainer="verl",
            name=mode,
            settings={"adv_estimator": "grpo", "loss_agg_mode": mode},
            same=mode != "seq-mean-token-sum-norm",
        )
        for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    ]
    + [
        Case(
            trainer="openrlhf",
            name=mode,
            settings={"algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0.0, "actor.loss_agg_mode": mode},
        )
        for mode in ("token-mean", "seq-mean-token-mean")
    ]
)
"""Run on the first batch in each of the cuts, with the trainer's own rule of accumulation."""


def requests(trainer: str) -> list[dict[str, object]]:
    """What a trainer's driver is asked: every case on its batches, and every split in its cuts."""
    asked: list[dict[str, object]] = []

    def ask(case: Case, ending: str, batch: int, micro_batches: int, same: bool) -> None:
        asked.append(
            {
                "id": f"{case.name} {ending}",
                "settings": case.settings,
                "batch": batch,
                "micro_batches": micro_batches,
                "minibatches": case.minibatches,
                "group_size": GROUP_SIZE,
                "max_new_tokens": MAX_NEW_TOKENS,
                "same": same,
                "same_value": same and (case.trainer, case.name) not in VALUE_DIFFERS,
            }
        )

    for case in (case for case in CASES if case.trainer == trainer):
        for batch in range(len(LENGTHS)) if case.batch is None else (case.batch,):
            ask(case, f"[{batch}]", batch, case.micro_batches, case.same)
    for case in (case for case in SPLITS if case.trainer == trainer):
        for cut, words in CUTS.items():
            ask(case, f"in {words}", 0, cut, case.same and (cut == 1 or case.name != "bnpo"))
    return asked
