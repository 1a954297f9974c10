"""The small world's truth: by hand, by finite differences, and against one backward pass per answer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from upweight.lab.small_world.estimate import (
    PLAIN,
    Source,
    along,
    angle,
    answer_gradients,
    distance,
    expected_gradient,
    interval,
    noise,
    sample_steps,
)
from upweight.lab.small_world.parameters import SmallWorldParameters, count_answers
from upweight.lab.small_world.world import (
    World,
    enumerate_answers,
    expected,
    gradient_of_expected,
    kl_of_answers,
    kl_of_positions,
    make_world,
)
from upweight.objective.dense import grpo_loss
from upweight.objective.spec import Objective
from upweight.objective.weights import flat_token_weights


def world_of(seed: int = 0, **asked: object) -> World:
    return make_world(SmallWorldParameters(**asked), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def near(world: World, seed: int, std: float = 0.5) -> Tensor:
    """Logits of another policy."""
    generator = torch.Generator().manual_seed(seed)
    return world.logits + std * torch.randn(world.logits.shape, generator=generator, dtype=torch.float64)


def centred(world: World) -> Source:
    return Source(probabilities=world.probabilities(), advantages=world.reward - expected(world, world.reward)[:, None])


def padded(world: World, logits: Tensor, prompt: int, chosen: Tensor) -> Tensor:
    """[B, T] log-probs of some answers, as a trainer lays them out."""
    answers = world.answers
    return logits[prompt].log_softmax(-1)[answers.prefix[chosen], answers.token[chosen]]


@settings(max_examples=20, deadline=None)
@given(vocabulary=st.integers(2, 4), length=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_probabilities_of_all_answers_add_up_to_1(vocabulary: int, length: int, seed: int) -> None:
    world = world_of(seed, vocabulary=vocabulary, length=length)
    assert world.outcomes[1] == count_answers(vocabulary, length)
    torch.testing.assert_close(world.probabilities().sum(1), torch.ones(5, dtype=torch.float64))


def test_every_answer_is_listed_once_and_ends_or_is_cut() -> None:
    answers = enumerate_answers(3, 3)
    runs = [tuple(row[kept].tolist()) for row, kept in zip(answers.token, answers.mask, strict=True)]
    assert len(set(runs)) == len(runs) == 1 + 2 + 4 + 8
    assert all((run[-1] == 0 or len(run) == 3) and 0 not in run[:-1] for run in runs)
    assert answers.prefixes == 1 + 2 + 4


def test_each_prompt_is_answered_right_as_often_as_asked() -> None:
    world = world_of(vocabulary=4, difficulties=(0.01, 0.5, 0.99))
    torch.testing.assert_close(
        expected(world, world.reward), torch.tensor([0.01, 0.5, 0.99], dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_the_two_answer_world_by_hand() -> None:
    """Right with p = 0.2: dp/dz = p (1 - p) for the right answer's logit, its negative for the other's."""
    world = world_of(vocabulary=2, length=1, difficulties=(0.2,))
    gradient = gradient_of_expected(world, world.reward)
    assert gradient.flatten().tolist() == pytest.approx([-0.16, 0.16], rel=1e-12)
    even = torch.zeros_like(world.logits)
    assert kl_of_answers(world, even).item() == pytest.approx(0.2 * math.log(0.4) + 0.8 * math.log(1.6), rel=1e-12)
    source = centred(world)
    assert distance(expected_gradient(world, PLAIN, source), gradient) < 1e-12
    # A grad log pi is 0.8 (-0.8, 0.8) for the right answer and -0.2 (0.2, -0.2) for the wrong one.
    variance = 2 * (0.2 * 0.8**4 + 0.8 * 0.2**4 - 0.16**2)
    each = answer_gradients(world, PLAIN, source)
    assert noise(each, source.probabilities) == pytest.approx(math.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize("quantity", ["reward", "answers", "positions", "forward"])
def test_gradients_agree_with_finite_differences(quantity: str) -> None:
    world = world_of(difficulties=(0.3, 0.8), length=3)
    ref = near(world, 1)
    visits = world.visits()

    def value(logits: Tensor) -> Tensor:
        if quantity == "reward":
            return expected(world, world.reward, logits).mean()
        if quantity == "answers":
            return kl_of_answers(world, ref, logits).mean()
        policy, reference = logits.log_softmax(-1), ref.log_softmax(-1)
        left, right = (reference, policy) if quantity == "forward" else (policy, reference)
        return (visits * (left.exp() * (left - right)).sum(-1)).sum(1).mean()

    table = world.logits.clone().requires_grad_()
    if quantity in ("reward", "answers"):
        (gradient,) = torch.autograd.grad(value(table), table)
    else:
        total = kl_of_positions(world, ref, table, forward=quantity == "forward").mean()
        (gradient,) = torch.autograd.grad(total, table)
    if quantity == "reward":
        torch.testing.assert_close(gradient, gradient_of_expected(world, world.reward))
    for place in range(0, world.logits.numel(), 5):
        bump = torch.zeros(world.logits.numel(), dtype=torch.float64)
        bump[place] = 1e-5
        bump = bump.view_as(world.logits)
        slope = (value(world.logits + bump) - value(world.logits - bump)) / 2e-5
        assert gradient.flatten()[place].item() == pytest.approx(slope.item(), abs=1e-9)


def test_the_kl_of_answers_is_the_sum_over_positions() -> None:
    world = world_of(vocabulary=4, length=3)
    ref, other = near(world, 1), near(world, 2)
    torch.testing.assert_close(kl_of_answers(world, ref, other), kl_of_positions(world, ref, other))


def test_a_prefix_is_reached_as_often_as_the_answers_through_it() -> None:
    world = world_of()
    assert world.visits()[:, 0].tolist() == pytest.approx([1.0] * 5)
    first = world.logits[:, 0].softmax(-1)
    torch.testing.assert_close(world.visits()[:, 1:3], first[:, 1:])


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"ratio_level": "sequence"},
        {"correction": "tis", "correction_level": "token", "correction_cap": 1.1},
        {"correction": "mis", "correction_level": "sequence", "correction_cap": 1.3},
    ],
)
def test_an_answers_gradient_is_that_of_a_backward_pass_of_its_own(choice: dict[str, object]) -> None:
    world = world_of(difficulties=(0.3, 0.7))
    old = near(world, 3)
    objective = Objective(surrogate="none", kl_coef=0.0, **choice)  # type: ignore[arg-type]
    source = Source(
        probabilities=world.probabilities(old),
        advantages=world.reward - 0.4,
        old=world.logprobs(old),
        sampler=world.logprobs(near(world, 4)) if "correction" in choice else None,
    )
    each = answer_gradients(world, objective, source)
    for prompt, answer in ((0, 0), (0, 7), (1, 12), (1, 30)):
        chosen = torch.tensor([answer])
        table = world.logits.clone().requires_grad_()
        loss, _ = grpo_loss(
            padded(world, table, prompt, chosen), padded(world, old, prompt, chosen),
            source.advantages[prompt, chosen], world.answers.mask[chosen], surrogate="none",
            weights=torch.ones_like(world.answers.mask[chosen], dtype=torch.float64),
            sampler_logprobs=padded(world, near(world, 4), prompt, chosen) if "correction" in choice else None,
            **choice,
        )  # type: ignore[arg-type]  # fmt: skip
        torch.testing.assert_close(each[prompt, answer], -torch.autograd.grad(loss, table)[0][prompt])
    together = torch.einsum("pa,pasv->psv", source.probabilities, each) / world.prompts
    torch.testing.assert_close(together, expected_gradient(world, objective, source))


def test_a_sampled_steps_slope_is_that_of_its_backward_pass() -> None:
    world = world_of(difficulties=(0.3, 0.7), length=3)
    direction = gradient_of_expected(world, world.answers.length.double())
    steps = sample_steps(world, 3, 4, torch.Generator().manual_seed(5))
    advantages = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    weights = flat_token_weights(steps.seq_id, "seq-mean-token-mean")
    slopes = along(world, steps, advantages, weights, direction)
    for step in range(3):
        table = world.logits.clone().requires_grad_()
        tokens = steps.step == step
        logprobs = table.log_softmax(-1).flatten()[steps.slot[tokens]]
        total = (weights[tokens] * advantages.flatten()[steps.seq_id[tokens]] * logprobs).sum()
        (gradient,) = torch.autograd.grad(total, table)
        torch.testing.assert_close(slopes[step], (gradient * direction).sum((1, 2)))


def test_answers_are_sampled_as_often_as_they_are_likely() -> None:
    world = world_of(difficulties=(0.1, 0.6), length=3)
    steps = sample_steps(world, 2000, 8, torch.Generator().manual_seed(0))
    share = steps.reward.mean((0, 2))
    assert share[0].item() == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / 16000))
    assert share[1].item() == pytest.approx(0.6, abs=4 * math.sqrt(0.24 / 16000))
    slots = torch.bincount(steps.slot, minlength=world.logits.numel()).double().view(world.logits.shape) / 16000
    wanted = world.visits()[:, :, None] * world.logits.softmax(-1)
    assert (slots - wanted).abs().max() < 4 * math.sqrt(0.25 / 16000)


def test_an_interval_holds_its_mean_and_not_what_is_far() -> None:
    found = interval(torch.tensor([1.0, 2.0, 3.0]))
    assert (found.mean, found.std) == (2.0, 1.0)
    assert found.half == pytest.approx(1.959964 / math.sqrt(3), rel=1e-6)
    assert found.holds(3.1)
    assert not found.holds(3.2)


def test_an_angle_is_exact_near_0_and_at_90_degrees() -> None:
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert angle(one, 3 * one) == 0.0
    assert angle(one, torch.tensor([0.0, 2.0], dtype=torch.float64)) == pytest.approx(90.0)
    assert angle(one, torch.tensor([1.0, 1e-9], dtype=torch.float64)) == pytest.approx(math.degrees(1e-9))
