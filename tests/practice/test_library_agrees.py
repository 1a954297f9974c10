"""The library gives the right values of the exercises: what is taught is what trains."""

import math
from collections.abc import Callable

import pytest
import torch
from judging.case import Case, Raises, load_sheet
from judging.compare import fault

from upweight import gae, group_advantages
from upweight.objective.advantage import informative_groups
from upweight.objective.correction import correction_terms
from upweight.objective.kl import kl_estimate
from upweight.objective.ratio import ratio_from_log, sequence_log_ratio
from upweight.objective.shaping import overlong_penalty
from upweight.objective.surrogate import cispo_surrogate, clip_surrogate
from upweight.objective.weights import flat_token_weights


def flat(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def library_group_advantages(rewards: list[float], **options: float) -> list[float]:
    return group_advantages(flat(*rewards), **options).tolist()


def library_leave_one_out(rewards: list[float], scale: bool) -> list[float]:
    scaling = "std" if scale else "none"
    return group_advantages(flat(*rewards), baseline="leave-one-out", scale=scaling, eps=0.0).tolist()


def library_weight_table(
    advantages: list[float], lengths: list[int], mode: str, budget: int | None = None
) -> list[float]:
    answer = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    weights = flat_token_weights(answer, mode, max_length=budget)
    of_answer = dict(zip(answer.tolist(), weights.tolist(), strict=True))
    return [advantage * of_answer.get(i, 0.0) for i, advantage in enumerate(advantages)]


def with_gradient(surrogate: Callable[..., object], log_ratio: float, advantage: float) -> tuple[float, float]:
    leaf = flat(log_ratio).requires_grad_()
    value = surrogate(ratio_from_log(leaf), flat(advantage)).value
    value.sum().backward()
    return value.item(), leaf.grad.item()


def library_clip_surrogate(log_ratio: float, advantage: float, clip: float, clip_high: float) -> tuple[float, float]:
    bounds = {"low": 1 - clip, "high": 1 + clip_high}
    return with_gradient(lambda ratio, a: clip_surrogate(ratio, a, **bounds), log_ratio, advantage)


def library_dual_clip(ratio: float, advantage: float, clip: float, ceiling: float) -> tuple[float, float]:
    bounds = {"low": 1 - clip, "high": 1 + clip, "dual_clip": ceiling}
    return with_gradient(lambda rho, a: clip_surrogate(rho, a, **bounds), math.log(ratio), advantage)


def library_cispo(
    logprob: float, old_logprob: float, advantage: float, clip: float, clip_high: float
) -> tuple[float, float]:
    leaf = flat(logprob).requires_grad_()
    ratio = ratio_from_log(leaf - old_logprob)
    loss = -cispo_surrogate(ratio, flat(advantage), leaf, low=1 - clip, high=1 + clip_high).value
    loss.sum().backward()
    return loss.item(), leaf.grad.item()


def library_sequence_ratio(logprobs: list[float], old_logprobs: list[float], mask: list[int]) -> float:
    keep = torch.tensor(mask, dtype=torch.bool)
    ids = torch.zeros(int(keep.sum()), dtype=torch.int64)
    ratios = ratio_from_log(sequence_log_ratio(flat(*logprobs)[keep], flat(*old_logprobs)[keep], ids))
    return ratios[0].item() if len(ids) else 1.0


def library_kl_estimators(logprob: float, ref_logprob: float) -> list[float]:
    return [kl_estimate(flat(logprob), flat(ref_logprob), kind).item() for kind in ("k1", "k2", "k3")]


def library_correction_weights(
    old_logprobs: list[float], sampler_logprobs: list[float], **options: object
) -> list[float]:
    ids = torch.zeros(len(old_logprobs), dtype=torch.int64)
    return correction_terms(flat(*old_logprobs), flat(*sampler_logprobs), ids, **options).weight.tolist()


def library_gae(rewards: list[float], values: list[float], mask: list[int], gamma: float, lam: float) -> list[float]:
    rows = flat(*rewards)[None], flat(*values)[None], torch.tensor(mask, dtype=torch.int64)[None]
    return gae(*rows, gamma=gamma, lam=lam)[0][0].tolist()


def library_overlong_penalty(length: int, max_length: int, buffer: int) -> float:
    return round(overlong_penalty(torch.tensor([length]), max_length, buffer).item(), 6)


LIBRARY = {name.removeprefix("library_"): one for name, one in dict(globals()).items() if name.startswith("library_")}
CASES = [(name, case) for name in LIBRARY for case in load_sheet(name).cases]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}: {case.name}" for name, case in CASES])
def test_the_library_gives_the_right_value(name: str, case: Case) -> None:
    if isinstance(case.right, Raises):
        with pytest.raises(ValueError):
            LIBRARY[name](**case.inputs)
    else:
        assert fault(LIBRARY[name](**case.inputs), case) is None


def test_the_library_keeps_the_groups_that_the_exercise_keeps() -> None:
    for case in load_sheet("fill_batch").cases:
        for group in [group for drawn in case.inputs["rounds"] for group in drawn]:
            scored = [reward for reward in group if not math.isnan(reward)]
            assert informative_groups(flat(*group)).tolist() == [len(set(scored)) > 1] * len(group)
