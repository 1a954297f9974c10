"""Runs verl's own lines on given tensors: advantages, KL in the reward, rollout correction and the actor's loss.

Run by the python of verl's environment: `python drive_verl.py REQUEST.json ANSWER.json`. The loss is
`workers.utils.losses.ppo_loss` on nested tensors, as verl's default trainer hands them over: a micro-batch is padded
to its own longest answer.
"""

import ast
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl import __version__ as version
from verl.trainer.config import AlgoConfig, RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import masked_mean
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

torch.set_default_dtype(torch.float64)


def kl_in_the_reward() -> object:
    """`apply_kl_penalty` of ray_trainer.py, whose other imports start vLLM."""
    home = Path(next(iter(importlib.util.find_spec("verl").submodule_search_locations)))
    tree = ast.parse((home / "trainer" / "ppo" / "ray_trainer.py").read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") == "apply_kl_penalty"]
    names = {"torch": torch, "core_algos": core_algos, "masked_mean": masked_mean, "DataProto": DataProto}
    exec(compile(tree, "ray_trainer.py", "exec"), names)
    return names["apply_kl_penalty"]


apply_kl_penalty = kl_in_the_reward()


def padded(rows: list[list[float]]) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows])


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def advantages_of(settings: dict, batch: dict, group_size: int, mask: torch.Tensor) -> torch.Tensor:
    last = mask.sum(1).long() - 1
    scores = torch.zeros_like(mask).scatter(
        1, last[:, None], torch.tensor(batch["rewards"], dtype=torch.float64)[:, None]
    )
    rewards = scores
    if settings.get("use_kl_in_reward"):
        data = DataProto.from_dict(
            tensors={
                "response_mask": mask,
                "token_level_scores": scores,
                "old_log_probs": padded(batch["old"]),
                "ref_log_prob": padded(batch["ref"]),
            }
        )
        control = core_algos.FixedKLController(settings.get("kl_ctrl.kl_coef", 0.001))
        rewards = apply_kl_penalty(data, control, settings.get("kl_penalty", "kl"))[0].batch["token_level_rewards"]
    estimator = core_algos.get_adv_estimator_fn(settings["adv_estimator"])
    keywords = {}
    if "norm_adv_by_std_in_grpo" in settings:
        keywords["norm_adv_by_std_in_grpo"] = settings["norm_adv_by_std_in_grpo"]
    groups = np.arange(len(mask)) // group_size
    return estimator(token_level_rewards=rewards, response_mask=mask, index=groups, config=AlgoConfig(), **keywords)[0]


def actor_config(settings: dict) -> ActorConfig:
    known = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "loss_scale_factor")
    known += ("use_kl_loss", "kl_loss_coef", "kl_loss_type")
    chosen = {name: settings[name] for name in known if name in settings}
    policy_loss = PolicyLossConfig(loss_mode=settings.get("loss_mode", "vanilla"))
    if settings.get("rollout_correction.bypass_mode"):
        names = ("rollout_is", "rollout_is_threshold", "bypass_mode", "loss_type")
        given = {name: settings.get(f"rollout_correction.{name}") for name in names}
        correction = RolloutCorrectionConfig(**{name: value for name, value in given.items() if value is not None})
        if given["rollout_is"] is None:
            correction = replace(correction, rollout_is=None)
        policy_loss = PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction)
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **chosen)


def correction_of(settings: dict, batch: dict, mask: torch.Tensor) -> torch.Tensor | None:
    level = settings.get("rollout_correction.rollout_is")
    if level is None:
        return None
    weights, _, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=padded(batch["old"]),
        rollout_log_prob=padded(batch["sampler"]),
        response_mask=mask,
        rollout_is=level,
        rollout_is_threshold=settings.get("rollout_correction.rollout_is_threshold", 2.0),
    )
    return weights.batch["rollout_is_weights"]


def run(case: dict, batch: dict) -> dict:
    settings = case["settings"]
    lengths = [len(row) for row in batch["logprobs"]]
    mask = padded([[1.0] * length for length in lengths])
    advantages = advantages_of(settings, batch, case["group_size"], mask)
    bypass = settings.get("rollout_correction.bypass_mode", False)
    weights = None if bypass else correction_of(settings, batch, mask)
    old = batch["sampler" if bypass else "old"]
    config = actor_config(settings)
    live = [torch.tensor(row).requires_grad_() for row in batch["logprobs"]]
    total, size = 0.0, len(live) // case["micro_batches"]
    for start in range(0, len(live), size):
        rows = range(start, start + size)
        fields = {
            "prompts": nested([torch.zeros(1) for _ in rows]),
            "responses": nested([torch.zeros(lengths[i]) for i in rows]),
            "response_mask": nested([torch.ones(lengths[i]) for i in rows]),
            "old_log_probs": nested([torch.tensor(old[i]) for i in rows]),
            "ref_log_prob": nested([torch.tensor(batch["ref"][i]) for i in rows]),
            "advantages": nested([advantages[i, : lengths[i]] for i in rows]),
        }
        if weights is not None:
            fields["rollout_is_weights"] = nested([weights[i, : lengths[i]] for i in rows])
        data = TensorDict(fields, batch_size=size)
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=sum(lengths), global_batch_size=len(live))
        # A forward pass scores prompt and answer; the answer's tokens sit one position early, and the last is unused.
        scored = nested([torch.cat([live[i], torch.zeros(1)]) for i in rows])
        loss, _ = ppo_loss(config, {"log_probs": scored}, data)
        loss.backward()
        total += loss.item()
    return {
        "loss": total,
        "gradient": [row.grad.tolist() for row in live],
        "advantages": advantages[:, 0].tolist(),
    }


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    results = {case["id"]: run(case, request["batches"][case["batch"]]) for case in request["cases"]}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"version": version, "results": results}, file)
