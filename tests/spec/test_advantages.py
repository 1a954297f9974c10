"""What is known before the loss: advantages, weights, corrections, shaping, each against its formula alone."""

import math
import random
from collections.abc import Sequence

import formulas
import pytest
import torch
from torch.testing import assert_close

from upweight.objective.advantage import (
    gae,
    group_advantages,
    informative_groups,
    terminal_rewards,
    uninformative_share,
)
from upweight.objective.correction import correction_terms
from upweight.objective.dense import aggregate_token_loss, token_weights
from upweight.objective.kl import kl_estimate
from upweight.objective.shaping import kl_in_reward, overlong_penalty
from upweight.objective.surrogate import cispo_surrogate, clip_surrogate
from upweight.objective.weights import MODES

NAN = math.nan
SEEDS = range(12)


def doubles(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_specified(got: torch.Tensor, wanted: Sequence[float]) -> None:
    """To a relative 1e-10; 1e-13 where the parts cancel, all of them being of size 1."""
    assert_close(got, doubles(wanted), rtol=1e-10, atol=1e-13)


def random_groups(seed: int) -> tuple[list[float], list[int]]:
    """Uneven groups in any order, some answers unscored, some groups without spread."""
    rng = random.Random(f"groups {seed}")
    group = [g for g in (5, -2, 9, 0) for _ in range(rng.randint(1, 5))]
    rng.shuffle(group)
    level = {g: rng.choice([0.1, 0.3]) for g in group}
    rewards = [rng.choice([NAN, level[g], level[g], rng.uniform(-2, 2), 1.0]) for g in group]
    return [level[g] if g == 9 else r for r, g in zip(rewards, group, strict=True)], group


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
@pytest.mark.parametrize("ddof", [0, 1, 2])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.3])
def test_advantages_are_the_specified_ones(scale: str, baseline: str, ddof: int, eps: float) -> None:
    for seed in SEEDS:
        rewards, group = random_groups(seed)
        got = group_advantages(doubles(rewards), group, scale=scale, baseline=baseline, ddof=ddof, eps=eps)
        assert_specified(got, formulas.advantages(rewards, group, scale, baseline, ddof, eps))


@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equal_rewards_have_an_advantage_of_exactly_zero(scale: str, baseline: str, dtype: torch.dtype) -> None:
    rewards = [0.1, 0.1, 0.1, NAN, 0.0, 1.0]
    got = group_advantages(torch.tensor(rewards, dtype=dtype), [0, 0, 0, 0, 1, 1], scale=scale, baseline=baseline)
    assert got[:4].tolist() == [0.0] * 4
    assert got[5] > 0


def test_the_defaults_are_the_specified_ones() -> None:
    rewards, group = random_groups(1)
    assert_specified(group_advantages(doubles(rewards), group), formulas.advantages(rewards, group, "std", "mean"))
    blocks = [i // 4 for i in range(8)]
    got = group_advantages(doubles([0, 1, 1, 1, 0, 0, 1, 0]), group_size=4)
    assert_specified(got, formulas.advantages([0, 1, 1, 1, 0, 0, 1, 0], blocks, "std", "mean"))


def test_informative_groups_are_the_specified_ones() -> None:
    answers = 0
    for seed in SEEDS:
        rewards, group = random_groups(seed)
        wanted = formulas.informative(rewards, group)
        assert informative_groups(doubles(rewards), group).tolist() == wanted
        answers += wanted.count(True) * wanted.count(False)
    assert answers > 0
    assert uninformative_share(0.3, 6) == pytest.approx(formulas.silent_share(0.3, 6), rel=1e-12)


def random_mask(rng: random.Random) -> list[list[bool]]:
    return [[rng.random() < share for _ in range(6)] for share in (0.6, 0.0, 0.9, 0.4, 1.0)]


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_gae_is_the_specified_sum_over_the_masked_in_tokens(gamma: float, lam: float) -> None:
    rng = random.Random(f"gae {gamma} {lam}")
    for _ in SEEDS:
        mask = random_mask(rng)
        rewards, values = ([[rng.gauss(0, 1) if slot else NAN for slot in row] for row in mask] for _ in range(2))
        advantages, returns = gae(doubles(rewards), doubles(values), torch.tensor(mask), gamma=gamma, lam=lam)
        assert not advantages[~torch.tensor(mask)].any()
        for row, slots in enumerate(mask):
            own_rewards = [r for r, slot in zip(rewards[row], slots, strict=True) if slot]
            own_values = [v for v, slot in zip(values[row], slots, strict=True) if slot]
            wanted = formulas.gae(own_rewards, own_values, gamma, lam)
            kept = torch.tensor(slots)
            assert_specified(advantages[row][kept], wanted)
            assert_specified(returns[row][kept], [a + v for a, v in zip(wanted, own_values, strict=True)])


def test_a_terminal_reward_lies_on_the_last_masked_in_token() -> None:
    mask = random_mask(random.Random("terminal"))
    got = terminal_rewards(doubles([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor(mask)).tolist()
    for row, slots in enumerate(mask):
        last = max((t for t, slot in enumerate(slots) if slot), default=None)
        assert got[row] == [row + 1.0 if t == last else 0.0 for t in range(len(slots))]


@pytest.mark.parametrize(("longest", "buffer"), [(100, 20), (7, 7), (10, 0), (16384, 4096)])
def test_the_overlong_penalty_is_the_specified_ramp(longest: int, buffer: int) -> None:
    lengths = sorted({0, 1, longest - buffer, longest - buffer + 1, longest - 1, longest, longest + 1, 3 * longest})
    got = overlong_penalty(torch.tensor(lengths), longest, buffer)
    wanted = [formulas.overlong(length, longest, buffer) for length in lengths]
    assert_close(got, torch.tensor(wanted), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_token_weights_are_the_specified_ones(mode: str) -> None:
    rng = random.Random(f"weights {mode}")
    for _ in SEEDS:
        mask = random_mask(rng)
        groups = [rng.choice([3, -1]) for _ in mask]
        answer = [row for row, slots in enumerate(mask) for slot in slots if slot]
        wanted = formulas.weights(answer, mode, [groups[a] for a in answer], 9)
        inside = torch.tensor(mask)
        got = token_weights(inside.double(), mode, max_length=9, group_ids=groups)
        assert not got[~inside].any()
        assert_specified(got[inside], wanted)
        losses = torch.where(inside, torch.randn(inside.shape, dtype=torch.float64), torch.nan)
        total = math.fsum(w * x for w, x in zip(wanted, losses[inside].tolist(), strict=True))
        assert aggregate_token_loss(losses, inside, mode, max_length=9, group_ids=groups).item() == pytest.approx(
            total, rel=1e-10, abs=1e-13
        )


@pytest.mark.parametrize("kind", ["none", "is", "tis", "mis"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_corrections_are_the_specified_ones(kind: str, level: str) -> None:
    rng = random.Random(f"correction {kind} {level}")
    answer = [4, 4, 1, 1, 1, 0]
    for _ in SEEDS:
        old = [rng.uniform(-2, 0) for _ in answer]
        sampler = [rng.choice([NAN, x - rng.gauss(0, 0.5), x - rng.uniform(-40, 40)]) for x in old]
        got = correction_terms(doubles(old), doubles(sampler), torch.tensor(answer), kind=kind, level=level, cap=1.4)
        gaps = [formulas.mismatch(x, y) for x, y in zip(old, sampler, strict=True)]
        for t, a in enumerate(answer):
            own = [i for i, other in enumerate(answer) if other == a]
            log = formulas.log_correction_ratio([gaps[i] for i in own], own.index(t), level)
            wanted = formulas.correction(formulas.exp_within_limit(log), kind, 1.4)
            assert got.rejected[t].item() is (wanted is None)
            assert got.weight[t].item() == pytest.approx(wanted or 0.0, rel=1e-10)


def test_a_ratio_of_exactly_the_cap_is_kept() -> None:
    terms = correction_terms(doubles([-1.0]), doubles([-1.0]), torch.tensor([0]), kind="mis", cap=1.0)
    assert (terms.weight.tolist(), terms.rejected.tolist()) == ([1.0], [False])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates_are_the_specified_ones(estimator: str) -> None:
    log_ratios = [-200.0, -25.0, -0.7, 0.0, 0.3, 19.0, 25.0, 200.0]
    got = kl_estimate(doubles([-1.0] * len(log_ratios)), doubles(log_ratios) - 1, estimator)
    assert_specified(got, [formulas.kl(-1.0, x - 1, estimator) for x in log_ratios])


def test_the_kl_in_the_reward_is_the_specified_sum() -> None:
    rng = random.Random("kl")
    old, reference = ([rng.uniform(-3, 0) for _ in range(6)] for _ in range(2))
    got = kl_in_reward(doubles(old), doubles(reference), torch.tensor([0, 0, 2, 2, 2, 3]), 4)
    spans = [(0, 2), (2, 2), (2, 5), (5, 6)]
    assert_specified(got, [formulas.kl_of_answer(old[i:j], reference[i:j]) for i, j in spans])


RATIOS = [0.01, 0.5, 0.85, 0.9, 1.0, 1.1, 1.25, 1.5, 2.9, 3.1, 40.0]


@pytest.mark.parametrize("advantage", [-1.3, 0.0, 0.8])
def test_surrogates_are_the_specified_ones(advantage: float) -> None:
    ratios, advantages = doubles(RATIOS), doubles([advantage] * len(RATIOS))
    clipped = clip_surrogate(ratios, advantages, low=0.9, high=1.25)
    assert_specified(clipped.value, [formulas.clip(r, advantage, 0.9, 1.25) for r in RATIOS])
    dual = clip_surrogate(ratios, advantages, low=0.9, high=1.25, dual_clip=3.0)
    assert_specified(dual.value, [formulas.dual_clip(r, advantage, 0.9, 1.25, 3.0) for r in RATIOS])
    weighted = cispo_surrogate(ratios, advantages, advantages - 2, low=0.9, high=1.25)
    assert_specified(weighted.value, [formulas.cispo(r, advantage, advantage - 2, 0.9, 1.25) for r in RATIOS])
