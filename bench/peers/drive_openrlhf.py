"""Runs OpenRLHF's own lines on given tensors: advantages, loss normalisers, policy loss and KL loss.

Run by the python of OpenRLHF's environment: `python drive_openrlhf.py REQUEST.json ANSWER.json`. Its packages import
flash-attn and vLLM when they are entered, which a CPU has no use for. So the modules are imported past their
packages' `__init__`, and the class that makes advantages is read from its file alone. No line of them is changed; the
two lines that join policy loss and KL (`training_step` of trainer/ray/ppo_actor.py) are written out here.
"""

import __future__

import ast
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch

torch.set_default_dtype(torch.float64)
HOME = Path(next(iter(importlib.util.find_spec("openrlhf").submodule_search_locations)))
for package in ("models", "utils"):
    module = types.ModuleType(f"openrlhf.{package}")
    module.__path__ = [str(HOME / package)]
    sys.modules[module.__name__] = module
loss_module = importlib.import_module("openrlhf.models.loss")
kl_module = importlib.import_module("openrlhf.models.utils")
norm_module = importlib.import_module("openrlhf.utils.loss_utils")


def experience_maker() -> type:
    """RemoteExperienceMaker without the imports of its module, which start vLLM."""
    tree = ast.parse((HOME / "trainer" / "ppo_utils" / "experience_maker.py").read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names = {"torch": torch, "itertools": itertools}
    names |= {"compute_reward": kl_module.compute_reward, "apply_length_penalties": lambda *_: None}
    exec(compile(tree, "experience_maker.py", "exec", __future__.annotations.compiler_flag), names)
    return names["RemoteExperienceMaker"]


MAKER = experience_maker()


def padded(rows: list[list[float]]) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows])


def advantages_of(settings: dict, batch: dict, group_size: int, mask: torch.Tensor) -> torch.Tensor:
    estimator = settings["algo.advantage.estimator"]
    use_loss = settings.get("algo.kl.use_loss", False)
    coef = settings.get("algo.kl.init_coef", 0.01)
    maker = object.__new__(MAKER)
    maker.advantage_estimator = estimator
    maker.kl_ctl = SimpleNamespace(value=coef)
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=group_size),
        algo=SimpleNamespace(advantage=advantage),
        reward=SimpleNamespace(clip_range=(-10, 10)),
    )
    maker.strategy = SimpleNamespace(args=args)
    kl = torch.zeros_like(mask)
    if not use_loss and coef > 0:
        kl = kl_module.compute_approx_kl(padded(batch["old"]), padded(batch["ref"]), kl_estimator="k1").double() * mask
    experience = SimpleNamespace(
        rewards=torch.tensor(batch["rewards"], dtype=torch.float64),
        index=list(range(len(mask))),
        info={},
        kl=kl,
        action_mask=mask.bool(),
        values=None,
    )
    maker.compute_advantages_and_returns([experience])
    return experience.advantages


def policy_loss(settings: dict) -> torch.nn.Module:
    low, high = settings.get("actor.eps_clip_low_high", [settings.get("actor.eps_clip", 0.2)] * 2)
    return loss_module.PolicyLoss(
        clip_eps_low=low,
        clip_eps_high=high,
        dual_clip=settings.get("actor.dual_clip"),
        token_level_loss=settings.get("actor.loss_agg_mode", "token-mean") == "token-mean",
        policy_loss_type=settings.get("actor.policy_loss_type", "ppo"),
        is_correction_level=settings.get("algo.advantage.is_correction_level", "off"),
        is_correction_mode=settings.get("algo.advantage.is_correction_mode", "mask"),
        is_correction_threshold=settings.get("algo.advantage.is_correction_threshold", [0.5, 5.0]),
    )


def run(case: dict, batch: dict) -> dict:
    settings, cut = case["settings"], case["micro_batches"]
    lengths = [len(row) for row in batch["logprobs"]]
    mask = padded([[1.0] * length for length in lengths])
    live = padded(batch["logprobs"]).requires_grad_()
    old, ref, sampler = (padded(batch[name]) for name in ("old", "ref", "sampler"))
    advantages = advantages_of(settings, batch, case["group_size"], mask)
    loss_of, size = policy_loss(settings), len(live) // cut
    parts = [slice(start, start + size) for start in range(0, len(live), size)]
    norms = norm_module.iter_grad_accum_global_norm(parts, None, cut, lambda part: mask[part])
    coef = settings.get("algo.kl.init_coef", 0.01) if settings.get("algo.kl.use_loss") else 0.0
    total = 0.0
    for part, norm in norms:
        rollout = {"action_mask": mask[part], "rollout_log_probs": sampler[part]}
        loss = loss_of(live[part], old[part], advantages[part], **rollout, **norm)[0]
        if coef:
            kl = kl_module.compute_approx_kl(
                live[part],
                ref[part],
                log_probs_old=old[part],
                kl_estimator=settings.get("algo.kl.estimator", "k1"),
                unbiased_gradient=settings.get("algo.kl.unbiased_gradient", False),
            )
            loss = loss + loss_module.aggregate_loss(kl, mask[part], **norm) * coef
        loss = loss / cut  # DeepSpeed's backward divides by the number of micro-batches
        loss.backward()
        total += loss.item()
    gradient = [row[:length] for row, length in zip(live.grad.tolist(), lengths, strict=True)]
    return {"loss": total, "gradient": gradient, "advantages": advantages[:, 0].tolist()}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    results = {case["id"]: run(case, request["batches"][case["batch"]]) for case in request["cases"]}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"version": importlib.metadata.version("openrlhf"), "results": results}, file)
