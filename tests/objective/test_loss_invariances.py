"""The same number however the batch is cut, padded, ordered or packed; and metrics that add up."""

import functools
import inspect
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.objective.advantage import group_advantages
from upweight.objective.dense import grpo_loss, token_weights
from upweight.objective.loss import LossTerms, policy_loss
from upweight.objective.metrics import add_sums, metric_means
from upweight.objective.presets import PRESETS, preset
from upweight.objective.spec import Objective
from upweight.objective.weights import flat_token_weights

NAMES = [name for name in PRESETS if name != "ppo"]
CORRECTIONS = [("none", "token"), ("tis", "token"), ("mis", "token"), ("mis", "sequence"), ("is", "geometric")]
CUTS = [[(0, 1, 2, 3, 4, 5)], [(i,) for i in range(6)], [(2, 0), (1,), (5, 3, 4)], [(4, 1, 5), (0, 3, 2)]]

LENGTHS = torch.tensor([4, 1, 6, 0, 3, 2])
GROUPS = torch.tensor([11, 11, 11, 4, 4, 4])
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
WIDTH = 6
MASK = torch.arange(WIDTH) < LENGTHS[:, None]


def wave(phase: float, size: float) -> Tensor:
    return size * (torch.arange(6 * WIDTH, dtype=torch.float64) * 2.3 + phase).sin().view(6, WIDTH)


@functools.cache
def step_tensors(spread: float) -> dict[str, Tensor]:
    """Log-probs of one step. The ratios lie about as far from 1 as the bounds do."""
    now = -1.5 + wave(0.0, 1.0)
    return {
        "logprobs": now,
        "old_logprobs": now - wave(1.0, spread),
        "ref_logprobs": now - wave(2.0, 0.5),
        "sampler_logprobs": now - wave(1.0, spread) - wave(3.0, 0.9),
    }


def objective_of(name: str, correction: tuple[str, str]) -> Objective:
    fields = {field: getattr(preset(name), field) for field in Objective.__slots__}
    return Objective(**{**fields, "correction": correction[0], "correction_level": correction[1]})


def tensors_of(objective: Objective) -> dict[str, Tensor]:
    return step_tensors({"sequence": 3e-3}.get(objective.ratio_level, 0.5 if objective.surrogate == "clip" else 2.0))


def options_of(objective: Objective) -> dict[str, object]:
    """The keywords of `grpo_loss` that are fields of an objective; `old_logprobs` is one by name alone."""
    names = inspect.signature(grpo_loss).parameters.keys() & set(Objective.__slots__) - {"old_logprobs"}
    return {name: getattr(objective, name) for name in names}


def whole_weights(objective: Objective) -> Tensor:
    return token_weights(MASK.double(), objective.loss_agg, max_length=WIDTH, group_ids=GROUPS)


def run(
    objective: Objective, rows: tuple[int, ...], weights: Tensor | None, garbage: float = 0.0, extra: int = 0
) -> tuple[float, Tensor, Mapping[str, float]]:
    """Loss, gradient in the step's own [6, WIDTH] places and metrics of some rows, padded to their longest + extra."""
    order = torch.tensor(rows)
    width = int(LENGTHS[order].max()) + extra
    mask = torch.arange(width) < LENGTHS[order, None]

    def padded(tensor: Tensor) -> Tensor:
        wide = torch.cat([tensor, torch.zeros(6, extra, dtype=tensor.dtype)], dim=1)[order, :width]
        return torch.where(mask, wide, garbage)

    tensors = {name: padded(tensor) for name, tensor in tensors_of(objective).items()}
    leaf = tensors.pop("logprobs").requires_grad_()
    advantages = group_advantages(REWARDS, GROUPS, scale=objective.adv_norm)[order]
    loss, metrics = grpo_loss(
        leaf,
        advantages=torch.where(LENGTHS[order] > 0, advantages, garbage),
        mask=mask,
        weights=None if weights is None else padded(weights),
        max_length=WIDTH,
        group_ids=GROUPS[order],
        **tensors,
        **options_of(objective),
    )
    loss.backward()
    gradient = torch.zeros(6, WIDTH, dtype=torch.float64)
    narrow = min(width, WIDTH)
    gradient[order, :narrow] = leaf.grad[:, :narrow]
    assert not leaf.grad[:, narrow:].any()
    return loss.item(), gradient, metrics


@pytest.mark.parametrize("correction", CORRECTIONS, ids="-".join)
@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_to_the_step_however_it_is_cut_padded_and_ordered(
    name: str, correction: tuple[str, str]
) -> None:
    """B02: with the KL where the preset has one."""
    objective = objective_of(name, correction)
    weights = whole_weights(objective)
    loss, gradient, _ = run(objective, tuple(range(6)), weights)
    assert abs(loss) > 1e-6
    for cut in CUTS:
        parts = [run(objective, rows, weights, extra=extra) for extra, rows in enumerate(cut)]
        assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-12)
        assert_close(sum(part[1] for part in parts), gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_weights_handed_in_whole_give_the_loss_that_the_mode_gives(name: str) -> None:
    objective = objective_of(name, ("mis", "sequence"))
    rows = tuple(range(6))
    assert_close(run(objective, rows, whole_weights(objective))[:2], run(objective, rows, None)[:2])


@pytest.mark.parametrize("correction", CORRECTIONS, ids="-".join)
@pytest.mark.parametrize("name", NAMES)
def test_garbage_under_the_mask_changes_nothing(name: str, correction: tuple[str, str]) -> None:
    """B28: loss, gradient and every metric to the last bit."""
    objective = objective_of(name, correction)
    loss, gradient, metrics = run(objective, tuple(range(6)), None)
    for garbage in (float("nan"), float("inf"), -float("inf"), -200.0):
        for extra in (0, 3):
            other_loss, other_gradient, other_metrics = run(objective, tuple(range(6)), None, garbage, extra)
            assert (other_loss, other_metrics) == (loss, metrics)
            assert torch.equal(other_gradient, gradient)


def packed(objective: Objective, rows: tuple[int, ...], id_of_row: tuple[int, ...]) -> LossTerms:
    """The flat core on the tokens of some answers, interleaved as a packed batch might hold them."""
    places = [(i, t) for t in range(WIDTH) for i in rows if t < LENGTHS[i]]
    row, column = (torch.tensor(axis, dtype=torch.long) for axis in zip(*places, strict=True))
    flat = {name: tensor[row, column] for name, tensor in tensors_of(objective).items()}
    advantages = group_advantages(REWARDS, GROUPS, scale=objective.adv_norm)
    return policy_loss(
        objective,
        advantages=advantages[row],
        weights=whole_weights(objective)[row, column],
        seq_id=torch.tensor(id_of_row)[row],
        **flat,
    )


@pytest.mark.parametrize("correction", CORRECTIONS, ids="-".join)
@pytest.mark.parametrize("name", NAMES)
def test_packed_tokens_give_the_loss_of_the_padded_ones_and_metrics_that_add_up(
    name: str, correction: tuple[str, str]
) -> None:
    objective = objective_of(name, correction)
    loss, _, metrics = run(objective, tuple(range(6)), None)
    whole = packed(objective, tuple(range(6)), (40, 30, 20, 10, 0, -10))
    parts = [packed(objective, rows, (1, 2, 3, 4, 5, 6)) for rows in ((2, 0), (1,), (5, 3, 4))]
    assert whole.loss.item() == pytest.approx(loss, rel=1e-12)
    assert sum(part.loss.item() for part in parts) == pytest.approx(loss, rel=1e-12)
    summed = metric_means(functools.reduce(add_sums, [part.metrics for part in parts]))
    assert summed == pytest.approx(metric_means(whole.metrics), rel=1e-12)
    assert summed == pytest.approx({name: metrics[name] for name in summed}, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_some_tokens_are_clipped_in_these_batches_and_some_are_not(name: str) -> None:
    """Otherwise the comparisons above would say little."""
    metrics = run(objective_of(name, ("mis", "token")), tuple(range(6)), None)[2]
    assert 0.0 < metrics["clipfrac"] < 1.0
    assert 0.0 < metrics["rejected"] < 1.0


@pytest.mark.parametrize(
    "mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean"]
)
def test_flat_weights_do_not_depend_on_the_order_or_the_names_of_answers(mode: str) -> None:
    seq_id, group_id = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 0, 0, 0, 1, 1])
    weights = flat_token_weights(seq_id, mode, max_length=7, group_id=group_id)
    order = torch.tensor([4, 0, 3, 5, 2, 1])
    renamed = flat_token_weights(9 - seq_id[order] * 4, mode, max_length=7, group_id=-group_id[order])
    assert renamed.tolist() == weights[order].tolist()


def test_metrics_that_one_side_lacks_add_up_as_well() -> None:
    total = add_sums({"kl": (1.0, 4.0)}, add_sums({"kl": (2.0, 2.0)}, {"mismatch": (3.0, 2.0)}))
    assert metric_means(total) == {"kl": 0.5, "mismatch": 1.5}
    assert metric_means({"kl": (0.0, 0.0)}) == {"kl": 0.0}


def test_ratio_tails_are_those_of_the_masked_in_tokens() -> None:
    ratios = torch.arange(1, 102, dtype=torch.float64)[None, :]  # 1 to 101: the 99th percentile is the 100th of them
    logprobs = torch.cat([ratios.log(), torch.full((1, 1), 999.0).double()], dim=1)
    mask = torch.cat([torch.ones(1, 101), torch.zeros(1, 1)], dim=1)
    _, metrics = grpo_loss(logprobs, torch.zeros(1, 102).double(), torch.ones(1).double(), mask)
    assert metrics["ratio_p99"] == pytest.approx(100.0)
    assert metrics["ratio_max"] == pytest.approx(101.0)
    assert metrics["ratio_mean"] == pytest.approx(51.0)
