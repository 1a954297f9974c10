"""Token weights: how the loss is averaged, and that a cut batch adds up to the whole."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from upweight.objective.advantage import group_advantages
from upweight.objective.dense import aggregate_token_loss, grpo_loss, token_weights
from upweight.objective.weights import MODES, flat_token_weights

NAN = float("nan")


def mask_of(*lengths: int, width: int | None = None) -> Tensor:
    width = max(lengths) if width is None else width
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def partial_loss(token_loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """The loss of one micro-batch whose unclipped, on-policy tokens contribute `token_loss`."""
    logprobs = torch.full_like(token_loss, -1.0)
    return grpo_loss(logprobs, None, -token_loss, mask, surrogate="none", weights=weights)[0]


B01_LOSSES = torch.tensor([[3.0, 1.0, NAN, NAN, NAN, NAN], [0.0] * 6])
B01_MASK = mask_of(2, 6)


def test_mean_of_micro_batch_means_is_not_the_token_mean() -> None:
    """B01."""
    assert aggregate_token_loss(B01_LOSSES, B01_MASK).item() == 0.5
    weights = token_weights(B01_MASK)
    parts = [partial_loss(B01_LOSSES[i : i + 1], B01_MASK[i : i + 1], weights[i : i + 1]).item() for i in (0, 1)]
    assert parts == [0.5, 0.0]


@pytest.mark.parametrize("cuts", [(8,), (2, 6), (4, 4), (1,) * 8, (0, 8), (3, 0, 5)])
def test_eight_tokens_have_the_same_loss_however_they_are_cut(cuts: Sequence[int]) -> None:
    """B01."""
    losses, mask = torch.tensor([[3.0], [1.0], *[[0.0]] * 6]), torch.ones(8, 1)
    weights = token_weights(mask)
    parts = zip(losses.split(cuts), mask.split(cuts), weights.split(cuts), strict=True)
    assert sum(partial_loss(*part).item() for part in parts) == 0.5


def test_accumulating_two_micro_batches_divides_once() -> None:
    """B02: value and gradient."""
    weights = token_weights(B01_MASK)
    scale = torch.ones((), requires_grad=True)
    for i in (0, 1):
        logprobs = torch.full((1, 6), -1.0) * scale
        rows = slice(i, i + 1)
        loss, _ = grpo_loss(logprobs, None, -B01_LOSSES[rows], B01_MASK[rows], surrogate="none", weights=weights[rows])
        loss.backward()
    # d loss / d scale = sum_t w_t loss_t d logprob / d scale = 4/8 * -1
    assert scale.grad.item() == -0.5


def test_ranks_of_unequal_size_add_up_to_the_mean_over_all_their_tokens() -> None:
    """B05."""
    losses = torch.tensor([[3.0, NAN, NAN, NAN, NAN], [1.0, 1.0, 1.0, 0.0, 0.0]])
    mask = mask_of(1, 5)
    weights = token_weights(mask)
    ranks = [partial_loss(losses[i : i + 1], mask[i : i + 1], weights[i : i + 1]) for i in (0, 1)]
    assert_close(sum(ranks).item(), 1.0)
    world_size = 2  # data-parallel wrappers average over ranks: each then hands in its share times W
    assert_close(sum(world_size * rank for rank in ranks).item() / world_size, 1.0)


def test_a_truncated_answer_that_is_masked_leaves_the_denominator() -> None:
    """B07."""
    losses = torch.tensor([[0.5] * 6, [7.0, 7.0, 7.0, 7.0, NAN, NAN]])
    assert_close(aggregate_token_loss(losses, mask_of(6, 0, width=6)).item(), 0.5)


def test_an_unscored_answer_with_a_cleared_row_leaves_the_loss() -> None:
    """B22: two answers are left, of advantage +0.5 and -0.5."""
    advantages = group_advantages(torch.tensor([1.0, NAN, 0.0]), scale="none")
    weights = token_weights(mask_of(2, 0, 1), "seq-mean-token-mean")
    assert (advantages[:, None] * weights).tolist() == [[0.125, 0.125], [0.0, 0.0], [-0.25, 0.0]]


def test_the_chapters_weight_table_comes_out() -> None:
    advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    mask = mask_of(200, 50, 2000, 400).double()
    per_token = {
        mode: advantages[:, None] * token_weights(mask, mode) for mode in ("seq-mean-token-mean", "token-mean")
    }
    shown = {mode: [f"{row[0].item():+.2e}" for row in table] for mode, table in per_token.items()}
    assert shown == {
        "seq-mean-token-mean": ["+1.08e-03", "-4.33e-03", "-1.08e-04", "+5.41e-04"],
        "token-mean": ["+3.27e-04", "-3.27e-04", "-3.27e-04", "+3.27e-04"],
    }
    answers = {mode: [f"{total:+.3f}" for total in table.sum(1).tolist()] for mode, table in per_token.items()}
    assert answers == {
        "seq-mean-token-mean": ["+0.217", "-0.217", "-0.217", "+0.217"],
        "token-mean": ["+0.065", "-0.016", "-0.654", "+0.131"],
    }


@pytest.mark.parametrize(
    ("mode", "by_row"),
    [
        ("token-mean", (1 / 6, 0, 1 / 6, 1 / 6)),
        ("seq-mean-token-mean", (1 / 6, 0, 1 / 3, 1 / 9)),  # three answers that have tokens
        ("seq-mean-token-sum-norm", (1 / 30, 0, 1 / 30, 1 / 30)),  # three answers, a budget of ten
        ("group-mean-token-mean", (1 / 4, 0, 1 / 8, 1 / 8)),  # two groups, of two and four tokens
    ],
)
@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("empty_row_in_group", [7, 8, 9])
def test_weights_by_hand_where_an_empty_answer_leaves_every_count(
    mode: str, by_row: tuple[float, ...], width: int, empty_row_in_group: int
) -> None:
    mask = mask_of(2, 0, 1, 3, width=width)
    groups = torch.tensor([7, empty_row_in_group, 9, 9])
    weights = token_weights(mask, mode, max_length=10, group_ids=groups)
    assert_close(weights, torch.where(mask, torch.tensor(by_row)[:, None], 0.0))


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_an_answer_with_holes_are_those_of_its_tokens_alone(mode: str) -> None:
    holes = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0]])
    groups = torch.tensor([0, 1])
    weights = token_weights(holes, mode, max_length=5, group_ids=groups)
    dense = token_weights(torch.tensor([[1, 1], [1, 0]]), mode, max_length=5, group_ids=groups)
    assert weights[holes.bool()].tolist() == dense[dense > 0].tolist()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "group-mean-token-mean"])
def test_the_weights_of_a_mean_sum_to_one(mode: str) -> None:
    weights = token_weights(mask_of(5, 1, 0, 3).double(), mode, group_ids=torch.tensor([1, 1, 2, 2]))
    assert_close(weights.sum().item(), 1.0, atol=1e-14, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_mask_has_weights_zero(mode: str) -> None:
    for rows, width in ((2, 3), (0, 3), (2, 0)):
        mask = torch.zeros(rows, width, dtype=torch.bool)
        groups = torch.zeros(rows, dtype=torch.long)
        weights = token_weights(mask, mode, max_length=4, group_ids=groups)
        assert weights.shape == (rows, width)
        assert not weights.any()
        loss = aggregate_token_loss(torch.full((rows, width), NAN), mask, mode, max_length=4, group_ids=groups)
        assert loss.item() == 0.0


def test_tokens_that_do_not_count_leave_numerator_and_denominator() -> None:
    seq_id, group_id = torch.tensor([5, 5, 6, 8]), torch.tensor([1, 1, 2, 2])
    keep = torch.tensor([True, False, False, True])
    assert flat_token_weights(seq_id, keep=keep).tolist() == [0.5, 0, 0, 0.5]
    assert flat_token_weights(seq_id, "seq-mean-token-mean", keep=keep).tolist() == [0.5, 0, 0, 0.5]
    assert flat_token_weights(seq_id, "seq-mean-token-sum-norm", max_length=4, keep=keep).tolist() == [
        1 / 8,
        0,
        0,
        1 / 8,
    ]
    assert flat_token_weights(seq_id, "group-mean-token-mean", group_id=group_id, keep=keep).tolist() == [
        0.5,
        0,
        0,
        0.5,
    ]


@pytest.mark.parametrize("mode", MODES)
def test_what_masked_slots_hold_does_not_enter_the_aggregate_or_its_gradient(mode: str) -> None:
    mask, options = mask_of(2, 1), {"max_length": 4, "group_ids": torch.tensor([0, 1])}
    for garbage in (NAN, float("inf"), 1e30):
        losses = torch.tensor([[3.0, 1.0], [2.0, garbage]], requires_grad=True)
        aggregate_token_loss(losses, mask, mode, **options).backward()
        assert_close(losses.grad, token_weights(mask, mode, **options))


def test_weights_come_in_the_masks_floating_dtype_or_the_default() -> None:
    assert token_weights(torch.ones(1, 2, dtype=torch.float64)).dtype == torch.float64
    for mask in (torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2, dtype=torch.long)):
        assert token_weights(mask).dtype == torch.float32


def test_a_float64_loss_is_averaged_in_float64() -> None:
    losses = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64)
    assert_close(aggregate_token_loss(losses, torch.ones(1, 3, dtype=torch.bool)).item(), 1.0, atol=1e-15, rtol=0)
