"""The five studies: against every step written out, and the claims that they are there to show."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from upweight.lab.small_world import advantages, averaging, divergence, sampler, staleness
from upweight.lab.small_world.estimate import (
    Source,
    along,
    angle,
    distance,
    expected_gradient,
    interval,
    sample_steps,
)
from upweight.lab.small_world.parameters import SmallWorldParameters
from upweight.lab.small_world.world import World, gradient_of_expected, make_world
from upweight.objective.advantage import group_advantages
from upweight.objective.dense import grpo_loss
from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.objective.weights import MODES, flat_token_weights


def world_of(**asked: object) -> World:
    return make_world(SmallWorldParameters(**asked), torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def near(world: World, seed: int, std: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return world.logits + std * torch.randn(world.logits.shape, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def tiny() -> World:
    """Two prompts with three answers each: 729 steps of two groups of three, 100 up to order."""
    return world_of(vocabulary=2, length=2, difficulties=(0.15, 0.6))


def every_step(world: World, size: int) -> list[tuple[Tensor, float]]:
    """[P, G] answers of every possible step, up to the order within a group, and its probability."""
    probabilities = world.probabilities()
    prompts, answers = world.outcomes
    groups = list(itertools.combinations_with_replacement(range(answers), size))
    steps = []
    for picked in itertools.product(groups, repeat=prompts):
        orders = math.prod(len(set(itertools.permutations(group))) for group in picked)
        chosen = torch.tensor(picked)
        steps.append((chosen, orders * probabilities.gather(1, chosen).prod().item()))
    return steps


def gradient_of_step(world: World, chosen: Tensor, scale: str, baseline: str, mode: str) -> Tensor:
    """[P, S, V] by the public functions alone, times the budget."""
    prompts, size = chosen.shape
    answers, budget = world.answers, world.answers.token.shape[1]
    flat, prompt = chosen.flatten(), torch.arange(prompts).repeat_interleave(size)
    table = world.logits.clone().requires_grad_()
    logprobs = table.log_softmax(-1)[prompt[:, None], answers.prefix[flat], answers.token[flat]]
    pushed = group_advantages(answers.reward[flat], group_size=size, scale=scale, baseline=baseline)
    loss, _ = grpo_loss(
        logprobs, None, pushed, answers.mask[flat], surrogate="none", loss_agg=mode, max_length=budget, group_ids=prompt
    )
    return -budget * torch.autograd.grad(loss, table)[0]


@pytest.mark.parametrize(("scale", "baseline"), advantages.KINDS)
def test_advantages_agree_with_every_step_written_out(tiny: World, scale: str, baseline: str) -> None:
    steps = every_step(tiny, 3)
    assert len(steps) == 100
    each = torch.stack([gradient_of_step(tiny, chosen, scale, baseline, averaging.UNBIASED) for chosen, _ in steps])
    share = torch.tensor([probability for _, probability in steps], dtype=torch.float64)
    assert share.sum().item() == pytest.approx(1.0)
    mean = torch.einsum("n,npsv->psv", share, each)
    true = gradient_of_expected(tiny, tiny.reward)
    variance = (share * each.square().sum((1, 2, 3))).sum() - mean.square().sum()
    result = advantages.run(tiny, (3,), 2, torch.Generator().manual_seed(0))
    row = next(row for row in result.rows if (row.scale, row.baseline) == (scale, baseline))
    weight = (mean * true).sum((1, 2)) / true.square().sum((1, 2))
    assert row.weight == pytest.approx(tuple(weight.tolist()), rel=1e-9)
    assert row.angle == pytest.approx(angle(mean, true), abs=1e-6)
    assert row.noise == pytest.approx((variance.sqrt() / mean.norm()).item(), rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_averaging_agrees_with_every_step_written_out(tiny: World, mode: str) -> None:
    mean = sum(
        probability * gradient_of_step(tiny, chosen, "none", "leave-one-out", mode)
        for chosen, probability in every_step(tiny, 3)
    )
    assert isinstance(mean, Tensor)
    true = gradient_of_expected(tiny, tiny.reward)
    result = averaging.run(tiny, (3,), 2, torch.Generator().manual_seed(0))
    row = next(row for row in result.rows if row.mode == mode)
    assert row.gain == pytest.approx(((mean * true).sum() / true.square().sum()).item(), rel=1e-9)
    assert row.angle == pytest.approx(angle(mean, true), abs=1e-9)
    length = gradient_of_expected(tiny, tiny.answers.length.double())
    assert row.longer == pytest.approx(((mean * length).sum() / (mean * true).sum()).item(), rel=1e-9)


def test_the_length_of_wrong_answers_has_the_gradient_of_the_quotient() -> None:
    world = world_of(difficulties=(0.3,), length=3)
    table = world.logits.clone().requires_grad_()
    wrong = world.probabilities(table) * (1 - world.reward)
    mean = (wrong * world.answers.length).sum(1) / wrong.sum(1)
    (gradient,) = torch.autograd.grad(mean.sum(), table)
    true = gradient_of_expected(world, world.reward)
    result = averaging.run(world, (2,), 2, torch.Generator().manual_seed(0))
    assert result.longer_wrong == pytest.approx(((true * gradient).sum() / true.square().sum()).item(), rel=1e-9)


def test_two_answers_in_a_group_of_two_by_hand() -> None:
    """One right and one wrong with q = 2 p (1 - p): half the difference of the scores, scaled by the advantage."""
    world = world_of(vocabulary=2, length=1, difficulties=(0.2,))
    rows = advantages.run(world, (2,), 2, torch.Generator().manual_seed(0)).rows
    weight = {(row.scale, row.baseline): row.weight[0] for row in rows}
    assert weight["none", "mean"] == pytest.approx(0.5, rel=1e-12)
    assert weight["none", "leave-one-out"] == pytest.approx(1.0, rel=1e-12)
    assert weight["std", "mean"] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6), rel=1e-12)
    assert rows[0].noise == pytest.approx(math.sqrt(0.68 / 0.32), rel=1e-12)


@pytest.fixture(scope="module")
def study() -> advantages.AdvantageResult:
    return advantages.run(world_of(), (2, 16), 300, torch.Generator().manual_seed(1))


def at(study: advantages.AdvantageResult, scale: str, baseline: str, size: int) -> advantages.AdvantageRow:
    return next(row for row in study.rows if (row.scale, row.baseline, row.group_size) == (scale, baseline, size))


def test_leave_one_out_is_unbiased_and_the_mean_shrinks_by_one_answer(study: advantages.AdvantageResult) -> None:
    for size in (2, 16):
        assert at(study, "none", "leave-one-out", size).weight == pytest.approx((1.0,) * 5, rel=1e-12)
        assert at(study, "none", "mean", size).weight == pytest.approx((1 - 1 / size,) * 5, rel=1e-12)
        assert at(study, "none", "mean", size).angle < 1e-9


def test_dividing_by_the_std_favours_hard_and_easy_prompts(study: advantages.AdvantageResult) -> None:
    row = at(study, "std", "mean", 16)
    hard, _, even, _, easy = row.weight
    assert min(hard, easy) > 1.6 * even
    for extreme in (row.sampled[0], row.sampled[4]):
        assert extreme.mean - extreme.half > row.sampled[2].mean + row.sampled[2].half
    assert row.angle > 5
    # In a group of two the std of a mixed group is always the same: there is nothing to be favoured by.
    assert max(at(study, "std", "mean", 2).weight) == pytest.approx(min(at(study, "std", "mean", 2).weight))


def test_the_batchs_std_favours_no_prompt(study: advantages.AdvantageResult) -> None:
    row = at(study, "batch", "mean", 16)
    assert max(row.weight) / min(row.weight) < 1.001
    assert row.angle < 0.02


def test_sampled_steps_find_the_enumerated_weights(study: advantages.AdvantageResult) -> None:
    held, count = advantages.coverage(study)
    assert count == 60
    assert held >= 51
    for row in study.rows:
        for sampled, weight in zip(row.sampled, row.weight, strict=True):
            assert abs(sampled.mean - weight) < 2 * sampled.half


def test_95_percent_of_the_intervals_hold_the_truth() -> None:
    """300 intervals, of which 285 are expected to hold it; the bounds are four standard deviations away."""
    world, generator = world_of(), torch.Generator().manual_seed(3)
    true = gradient_of_expected(world, world.reward)
    held = 0
    for _ in range(60):
        steps = sample_steps(world, 100, 16, generator)
        pushed = group_advantages(steps.reward.flatten(), group_size=16, scale="none", baseline="leave-one-out")
        weights = 100 * flat_token_weights(steps.seq_id, "seq-mean-token-sum-norm", max_length=1)
        draws = along(world, steps, pushed.view(steps.reward.shape), weights, true) / true.square().sum((1, 2))
        held += sum(interval(draws[:, prompt]).holds(1.0) for prompt in range(5))
    assert 270 <= held <= 298


@pytest.fixture(scope="module")
def averaged() -> averaging.AveragingResult:
    return averaging.run(world_of(), (2, 32), 200, torch.Generator().manual_seed(2))


def averaged_at(result: averaging.AveragingResult, mode: str, size: int) -> averaging.AveragingRow:
    return next(row for row in result.rows if (row.mode, row.group_size) == (mode, size))


def test_the_fixed_budget_alone_keeps_the_direction(averaged: averaging.AveragingResult) -> None:
    for size in (2, 32):
        row = averaged_at(averaged, "seq-mean-token-sum-norm", size)
        assert row.angle < 1e-9
        assert row.gain == pytest.approx(1.0)
        assert row.longer_wrong == pytest.approx(averaged.longer_wrong)
        assert averaged_at(averaged, "seq-mean-token-mean", size).angle > 10
        assert averaged_at(averaged, "group-mean-token-mean", size).angle > 4


def test_a_mean_within_each_answer_makes_tokens_of_long_answers_cheap(averaged: averaging.AveragingResult) -> None:
    weight = averaged_at(averaged, "seq-mean-token-mean", 32).token_weight
    assert [weight[0] / each for each in weight] == pytest.approx([1, 2, 3, 4])
    assert averaged_at(averaged, "seq-mean-token-mean", 32).longer_wrong > averaged.longer_wrong + 0.3
    assert averaged_at(averaged, "seq-mean-token-sum-norm", 32).token_weight == pytest.approx((1.0,) * 4)


def test_the_bias_of_a_mean_over_tokens_falls_as_the_step_grows(averaged: averaging.AveragingResult) -> None:
    small, large = (averaged_at(averaged, "token-mean", size).angle for size in (2, 32))
    assert small > 12 * large > 0


def test_sampled_steps_find_the_enumerated_gain(averaged: averaging.AveragingResult) -> None:
    assert len(averaged.rows) == averaging.coverage(averaged)[1] == 8
    for row in averaged.rows:
        assert abs(row.sampled.mean - row.gain) < 2 * row.sampled.half < row.gain


@pytest.fixture(scope="module")
def kl() -> divergence.KLTruth:
    world = world_of()
    return divergence.run(world, near(world, 1))


def test_k1_and_k3_estimate_the_kl_and_k2_does_not(kl: divergence.KLTruth) -> None:
    k1, k2, k3 = kl.values
    assert kl.positions == pytest.approx(kl.exact, rel=1e-12)
    assert k1.mean == pytest.approx(kl.exact, rel=1e-12)
    assert k3.mean == pytest.approx(kl.exact, rel=1e-12)
    assert abs(k2.mean - kl.exact) > 0.01 * kl.exact
    assert k1.negative > 0.3
    assert k2.negative == k3.negative == 0.0
    assert k3.std < 0.5 * k1.std


@pytest.mark.parametrize(
    ("estimator", "use", "target"),
    [
        ("k2", "naive", "reverse"),
        ("k3", "naive", "forward"),
        ("k1", "reverse", "reverse"),
        ("k3", "reverse", "reverse"),
        ("k1", "reward", "answers"),
    ],
)
def test_whose_gradient_an_estimator_has(kl: divergence.KLTruth, estimator: str, use: str, target: str) -> None:
    row = next(row for row in kl.gradients if (row.estimator, row.use) == (estimator, use))
    assert row.same_as == target
    assert row.distance[target] < 1e-10
    assert all(far > 0.05 for other, far in row.distance.items() if other != target)


def test_k1_as_it_stands_has_no_gradient_and_is_refused_as_a_loss(kl: divergence.KLTruth) -> None:
    assert (kl.gradients[0].estimator, kl.gradients[0].use) == ("k1", "naive")
    assert kl.gradients[0].length < 1e-10
    world = world_of()
    objective = Objective(surrogate="none", kl_coef=1.0, kl_estimator="k1")
    source = Source(probabilities=world.probabilities(), advantages=world.reward, ref=world.logprobs())
    with pytest.raises(UsageError, match="Its expected gradient is 0"):
        expected_gradient(world, objective, source)


def test_the_reverse_gradient_survives_stale_answers_and_the_naive_one_does_not() -> None:
    """With prefixes reached by the old policy, the ratio makes each position's expectation the current policy's."""
    world = world_of()
    ref, old = near(world, 1), near(world, 2)
    reached = World(answers=world.answers, logits=old).visits()
    table = world.logits.clone().requires_grad_()
    policy, reference = table.log_softmax(-1), ref.log_softmax(-1)
    reverse = (reached * (policy.exp() * (policy - reference)).sum(-1)).sum(1).mean()
    forward = (reached * (reference.exp() * (reference - policy)).sum(-1)).sum(1).mean()
    true = {name: torch.autograd.grad(value, table, retain_graph=True)[0] for name, value in
            (("reverse", reverse), ("naive", forward))}  # fmt: skip
    found = {}
    for grad in ("reverse", "naive"):
        objective = Objective(surrogate="none", kl_coef=1.0, kl_grad=grad)  # type: ignore[arg-type]
        source = Source(
            probabilities=world.probabilities(old), advantages=torch.zeros_like(world.reward),
            old=world.logprobs(old), ref=world.logprobs(ref),
        )  # fmt: skip
        found[grad] = distance(-expected_gradient(world, objective, source), true[grad])
    assert found["reverse"] < 1e-10
    assert found["naive"] > 0.05


def test_only_the_product_of_ratios_stays_exact_as_answers_grow_stale() -> None:
    result = staleness.run(world_of(), 8, 0.5)
    by = {(row.updates, row.ratio): row for row in result.rows}
    assert len(by) == 9 * 4
    for name in staleness.RATIOS:
        assert by[0, name].bias < 1e-10
    for done in range(9):
        assert by[done, "product"].bias < 1e-10
    for name in ("none", "token", "geometric"):
        assert 0.01 < by[1, name].bias < by[4, name].bias < by[8, name].bias
    assert by[8, "none"].bias > 2 * by[8, "token"].bias
    assert by[8, "product"].noise > 1.3 * by[8, "token"].noise
    assert all(later > earlier for earlier, later in itertools.pairwise(result.kl))
    assert all(later > earlier for earlier, later in itertools.pairwise(result.reward))


def find(result: sampler.SamplerResult, kind: str, level: str | None, cap: float | None) -> sampler.SamplerRow:
    return next(row for row in result.rows if (row.kind, row.level, row.cap) == (kind, level, cap))


def test_importance_sampling_of_whole_answers_is_unbiased_and_noisier_than_its_truncation() -> None:
    world = world_of()
    result = sampler.run(world, near(world, 3), (1.5, 2.0, 1e6), 64)
    assert find(result, "none", None, None).bias > 0.1
    exact = find(result, "is", "sequence", None)
    assert exact.bias < 1e-10
    for level in ("token", "geometric"):
        assert find(result, "is", level, None).bias > 0.02
    for kind in ("tis", "mis"):
        assert find(result, kind, "sequence", 1e6).bias < 1e-10
        assert find(result, kind, "sequence", 1e6).touched == 0.0
        assert find(result, kind, "sequence", 1.5).bias > find(result, kind, "sequence", 2.0).bias > 1e-3
        assert find(result, kind, "sequence", 1.5).noise < exact.noise
        assert find(result, kind, "sequence", 1.5).touched > find(result, kind, "sequence", 2.0).touched > 0


def test_with_one_token_every_level_is_the_importance_weight() -> None:
    world = world_of(length=1)
    result = sampler.run(world, near(world, 3), (2.0,), 64)
    assert all(find(result, "is", level, None).bias < 1e-10 for level in sampler.LEVELS)
    assert find(result, "none", None, None).bias > 0.05


def test_a_sampler_that_is_the_trainer_leaves_nothing_to_correct() -> None:
    world = world_of(difficulties=(0.3, 0.6))
    result = sampler.run(world, world.logits, (1.5,), 8)
    assert all(row.bias < 1e-10 and row.touched == 0 for row in result.rows)
    assert result.rows[0].error(4) == pytest.approx(result.rows[0].noise / 2)
