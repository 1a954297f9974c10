"""The tensors and the settings that every trainer is run on. Needs torch for its random numbers alone."""

import itertools
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


def _trl() -> list[Case]:
    made = []

    def case(name: str, same: bool = True, batch: int | None = None, **settings: object) -> None:
        made.append(Case(trainer="trl", name=name, settings=settings, same=same, batch=batch))

    surrogates: dict[str, dict[str, object]] = {
        "grpo": {"loss_type": "grpo"},
        "bnpo": {"loss_type": "bnpo"},
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
        "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
        "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        "sequence level, dapo": {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    }
    for name, settings in surrogates.items():
        case(name, **settings)
        case(f"{name}, KL k3", **settings, beta=0.04, use_bias_correction_kl=False)
        if "sequence" not in settings.values():
            case(f"{name}, KL with the ratio", **settings, beta=0.04)
    vllm = {"use_vllm": True, "vllm_importance_sampling_mode": ""}
    for level, kind in itertools.product(("token", "sequence"), ("truncate", "mask")):
        mode = f"{level}_{kind}"
        cap = {"vllm_importance_sampling_clip_max": 1.5} if level == "token" else {}
        case(f"dapo, {mode}", **{**vllm, "vllm_importance_sampling_mode": mode, **cap})
    case(
        "dapo, token_truncate at 1.5, KL k3",
        **{
            **vllm,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.5,
            "beta": 0.04,
            "use_bias_correction_kl": False,
        },
    )
    case("cispo, sequence_mask", **surrogates["cispo"], use_vllm=True)
    case(
        "dapo, no cap",
        use_vllm=True,
        vllm_importance_sampling_mode="token_mask",
        vllm_importance_sampling_clip_max=None,
    )
    case("dapo, delta 1.5", delta=1.5)
    case("dapo, delta 1.1 below the bound", delta=1.1)
    case("dapo, scale_rewards batch", scale_rewards="batch")
    case("dapo, truncated ones left out", mask_truncated_completions=True)
    # What `translate` says cannot be matched:
    case("grpo, truncated ones left out", same=False, batch=0, loss_type="grpo", mask_truncated_completions=True)
    case("gspo, KL with the ratio", same=False, batch=0, **surrogates["gspo"], beta=0.04)
    case("dapo, sequence_mask, KL k3", same=False, batch=1, use_vllm=True, beta=0.04, use_bias_correction_kl=False)
    case(
        "dapo, token_truncate, KL with the ratio",
        same=False,
        batch=0,
        **{
            **vllm,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.5,
            "beta": 0.04,
        },
    )
    case(
        "dapo, token_mask with a floor",
        same=False,
        batch=0,
        **{
            **vllm,
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.5,
        },
    )
    case("dapo, an answer without a score", same=False, batch=UNSCORED)
    parts = {"loss_type": "bnpo", "gradient_accumulation_steps": 2}
    made.append(Case(trainer="trl", name="bnpo, 2 micro-batches", settings=parts, same=False, batch=0, micro_batches=2))
    steps = Case(
        trainer="trl", name="dapo, 2 optimiser steps", settings={"steps_per_generation": 2}, same=False, batch=0
    )
    made.append(replace(steps, micro_batches=2, minibatches=2))
    return made


def _verl() -> list[Case]:
    made = []

    def case(name: str, same: bool = True, batch: int | None = None, **settings: object) -> None:
        settings = {"adv_estimator": "grpo", **{key.replace("__", "."): value for key, value in settings.items()}}
        made.append(Case(trainer="verl", name=name, settings=settings, same=same, batch=batch))

    case("token-mean, dual clip 3")
    case("token-mean, dual clip 1.1", clip_ratio_c=1.1)
    case("DAPO's bounds", clip_ratio_high=0.28, clip_ratio_c=10.0)
    case("clip_ratio is not read", clip_ratio=0.05)
    case("seq-mean-token-mean", loss_agg_mode="seq-mean-token-mean")
    case("seq-mean-token-sum-norm", loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=MAX_NEW_TOKENS)
    case(
        "dr_grpo",
        norm_adv_by_std_in_grpo=False,
        loss_agg_mode="seq-mean-token-sum-norm",
        loss_scale_factor=MAX_NEW_TOKENS,
    )
    case("rloo", adv_estimator="rloo")
    case("rloo_vectorized", adv_estimator="rloo_vectorized")
    gspo: dict[str, object] = {"loss_mode": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    case("gspo", **gspo, loss_agg_mode="seq-mean-token-mean")
    case("gspo, token-mean", **gspo)
    case("cispo", loss_mode="cispo", clip_ratio_low=1.0, clip_ratio_high=4.0)
    case("cispo, default bounds", loss_mode="cispo")
    case("gpg", loss_mode="gpg")
    for kind in ("low_var_kl", "k3+", "k2", "k1+", "abs+"):
        # With a + the reported value is another estimator's, so there only the gradient is compared.
        case(f"KL {kind}", use_kl_loss=True, kl_loss_coef=0.04, kl_loss_type=kind)
    case("KL in the reward", use_kl_in_reward=True, kl_ctrl__kl_coef=0.04)
    for level, threshold in itertools.product(("token", "sequence"), (2.0, "0.0001_2")):
        name = f"rollout_is {level}, {'TIS' if threshold == 2.0 else 'IcePop from 0.0001'}"
        case(name, rollout_correction__rollout_is=level, rollout_correction__rollout_is_threshold=threshold)
    case("bypass, ppo_clip", rollout_correction__bypass_mode=True)
    case("bypass, reinforce", rollout_correction__bypass_mode=True, rollout_correction__loss_type="reinforce")
    case(
        "bypass, reinforce, rollout_is token",
        rollout_correction__bypass_mode=True,
        rollout_correction__loss_type="reinforce",
        rollout_correction__rollout_is="token",
    )
    # What `translate` says cannot be matched:
    norm = "seq-mean-token-sum-norm"
    case("seq-mean-token-sum-norm, no factor", same=False, batch=0, loss_agg_mode=norm)
    case("seq-mean-token-sum", same=False, batch=0, loss_agg_mode="seq-mean-token-sum")
    case("KL low_var_kl above 10", same=False, batch=FAR, use_kl_loss=True, kl_loss_coef=0.04)
    case("gspo, rollout_is token", same=False, batch=0, **gspo, rollout_correction__rollout_is="token")
    case(
        "rollout_is token, IcePop, KL",
        same=False,
        batch=0,
        use_kl_loss=True,
        kl_loss_coef=0.04,
        rollout_correction__rollout_is="token",
        rollout_correction__rollout_is_threshold="0.0001_2",
    )
    case(
        "rollout_is token, IcePop from 0.5",
        same=False,
        batch=0,
        rollout_correction__rollout_is="token",
        rollout_correction__rollout_is_threshold="0.5_2",
    )
    return made


def _openrlhf() -> list[Case]:
    made = []

    def case(name: str, settings: dict[str, object] | None = None, same: bool = True, batch: int | None = None) -> None:
        chosen = {"algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0.0, **(settings or {})}
        made.append(Case(trainer="openrlhf", name=name, settings=chosen, same=same, batch=batch))

    by_answer = {"actor.loss_agg_mode": "seq-mean-token-mean"}
    kl = {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.04, "algo.kl.estimator": "k3"}
    gate = {"algo.advantage.is_correction_level": "token"}
    case("group_norm, token-mean")
    case("group_norm, seq-mean-token-mean", by_answer)
    case("dr_grpo", {"algo.advantage.estimator": "dr_grpo"})
    case("rloo", {"algo.advantage.estimator": "rloo"})
    case("DAPO's bounds", {"actor.eps_clip_low_high": [0.2, 0.28]})
    case("dual clip 1.5", {"actor.dual_clip": 1.5})
    case("gspo", {"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [3e-4, 4e-4]})
    case("gspo, correction on", {"actor.policy_loss_type": "gspo", **gate})
    case("correction: token mask", {**gate, "algo.advantage.is_correction_threshold": [0.0, 1.5]})
    clip = {"algo.advantage.is_correction_mode": "clip"}
    case("correction: token clip", {**gate, **clip, "algo.advantage.is_correction_threshold": [0.0, 1.5]})
    case("KL k2 in the loss", {**kl, "algo.kl.estimator": "k2"})
    case("KL k3 in the loss", kl)
    case("KL in the loss, unbiased gradient", {**kl, "algo.kl.unbiased_gradient": True})
    # What `translate` says cannot be matched:
    case("KL in the reward", {"algo.kl.init_coef": 0.04}, same=False, batch=0)
    case("KL k3 in the loss, seq-mean-token-mean", {**kl, **by_answer}, same=False, batch=0)
    case("KL k3 above 10", kl, same=False, batch=FAR)
    case("correction: token mask from 0.5", gate, same=False, batch=0)
    return made


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
