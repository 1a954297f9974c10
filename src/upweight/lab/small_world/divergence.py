"""k1, k2 and k3: what they estimate, and whose gradient each of them has. Exact."""

from dataclasses import dataclass

import torch
from torch import Tensor

from upweight.lab.small_world.estimate import PLAIN, Source, distance, expected_gradient
from upweight.lab.small_world.world import World, kl_of_answers, kl_of_positions
from upweight.lab.table import Report
from upweight.objective.kl import kl_estimate
from upweight.objective.spec import KLEstimator, KLGrad, Objective

ESTIMATORS: tuple[KLEstimator, ...] = ("k1", "k2", "k3")

EQUAL = 1e-10
"""Relative distance below which two gradients are called the same."""

TARGETS = {
    "reverse": "KL(pi || ref) per position, prefix held fixed",
    "forward": "KL(ref || pi) per position, prefix held fixed",
    "answers": "KL(pi || ref) of whole answers",
}
"""The true gradients that an estimator's is compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueRow:
    """What an estimator gives, summed over the tokens of an answer, in nats."""

    estimator: str
    """"k1", "k2" or "k3"."""

    mean: float
    """Over all answers to all prompts."""

    std: float
    """Of one answer."""

    negative: float
    """Probability that a token's estimate is below 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientRow:
    """The expected gradient of a way to use an estimator."""

    estimator: str
    """"k1", "k2" or "k3"."""

    use: str
    """"naive", "reverse" (kl_grad), or "reward": subtracted from the reward."""

    length: float
    """As a multiple of the length of the gradient of the KL of whole answers."""

    distance: dict[str, float]
    """Target -> length of the difference, as a multiple of the target's length."""

    @property
    def same_as(self) -> str | None:
        """The target that it equals, to 1e-10; None for none."""
        return next((target for target, far in self.distance.items() if far < EQUAL), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class KLTruth:
    """The estimators against the truth."""

    exact: float
    """KL(pi || ref) of whole answers, mean over prompts, nats."""

    positions: float
    """The sum over positions of KL(pi || ref) at a prefix, by how often it is reached; the same number."""

    values: tuple[ValueRow, ...]
    """One per estimator."""

    gradients: tuple[GradientRow, ...]
    """One per estimator and use."""


def run(world: World, ref: Tensor) -> KLTruth:
    """Compare every estimator's expected value and gradient with the exact KL's.

    Answers are the policy's own, so the ratio is 1. `policy_loss` refuses k1 as a naive loss term, because its
    expected gradient is 0; that one is `kl_estimate` with the same weights.

    Args:
        world: prompts and policy.
        ref: [P, S, V] logits of the reference.
    """
    truth = _true_gradients(world, ref)
    probabilities = world.probabilities()
    ref_logprobs = world.logprobs(ref)
    values = tuple(_value(world, probabilities, ref_logprobs, name) for name in ESTIMATORS)
    found: list[tuple[KLEstimator, str, Tensor]] = [("k1", "naive", _naive_k1(world, ref_logprobs))]
    uses: tuple[tuple[KLEstimator, KLGrad], ...] = (
        ("k2", "naive"), ("k3", "naive"), ("k1", "reverse"), ("k2", "reverse"), ("k3", "reverse")
    )  # fmt: skip
    for name, grad in uses:
        objective = Objective(surrogate="none", kl_coef=1.0, kl_estimator=name, kl_grad=grad)
        source = Source(probabilities=probabilities, advantages=torch.zeros_like(probabilities), ref=ref_logprobs)
        found.append((name, grad, -expected_gradient(world, objective, source)))
    penalty = _per_answer(world, kl_estimate(world.logprobs(), ref_logprobs, "k1"))
    source = Source(probabilities=probabilities, advantages=-penalty)
    found.append(("k1", "reward", -expected_gradient(world, PLAIN, source)))
    gradients = tuple(
        GradientRow(
            estimator=name,
            use=use,
            length=(gradient.norm() / truth["answers"].norm()).item(),
            distance={target: distance(gradient, true) for target, true in truth.items()},
        )
        for name, use, gradient in found
    )
    return KLTruth(
        exact=kl_of_answers(world, ref).mean().item(),
        positions=kl_of_positions(world, ref, world.logits).mean().item(),
        values=values,
        gradients=gradients,
    )


def _true_gradients(world: World, ref: Tensor) -> dict[str, Tensor]:
    """[P, S, V] of each target, by differentiating the sums that define them."""
    table = world.logits.clone().requires_grad_()
    sums = {
        "reverse": kl_of_positions(world, ref, table),
        "forward": kl_of_positions(world, ref, table, forward=True),
        "answers": kl_of_answers(world, ref, table),
    }
    return {name: torch.autograd.grad(value.mean(), table, retain_graph=True)[0] for name, value in sums.items()}


def _naive_k1(world: World, ref_logprobs: Tensor) -> Tensor:
    table = world.logits.clone().requires_grad_()
    weights = (world.probabilities().detach() / world.prompts).flatten()[world.seq_id]
    loss = (weights * kl_estimate(world.logprobs(table), ref_logprobs, "k1")).sum()
    return torch.autograd.grad(loss, table)[0]


def _per_answer(world: World, per_token: Tensor) -> Tensor:
    """[P, A] sum over an answer's tokens."""
    prompts, answers = world.outcomes
    total = torch.zeros(prompts * answers, dtype=torch.float64)
    return total.index_add(0, world.seq_id, per_token).view(prompts, answers)


def _value(world: World, probabilities: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> ValueRow:
    per_token = kl_estimate(world.logprobs(), ref_logprobs, estimator)
    per_answer = _per_answer(world, per_token)
    share = probabilities / world.prompts
    mean = (share * per_answer).sum()
    token_share = share.flatten()[world.seq_id]
    return ValueRow(
        estimator=estimator,
        mean=mean.item(),
        std=(share * (per_answer - mean).square()).sum().sqrt().item(),
        negative=(token_share[per_token < 0].sum() / token_share.sum()).item(),
    )


def reports(result: KLTruth) -> tuple[Report, Report]:
    """The table of values and the table of gradients."""
    rows = tuple(
        (row.estimator, f"{row.mean:.6f}", f"{row.mean - result.exact:+.1e}", f"{row.std:.4f}", f"{row.negative:.1%}")
        for row in result.values
    )
    values = Report(
        title=f"KL of whole answers to the reference: {result.exact:.6f} nats, exact; estimates summed over an answer",
        columns=("estimator", "mean", "bias", "std of an answer", "negative tokens"),
        rows=rows,
        sentences=_value_sentences(result),
        left=(0,),
    )
    gradient_rows = tuple(
        (
            row.estimator, row.use, f"{row.length:.4f}", *(f"{row.distance[target]:.1e}" for target in TARGETS),
            "0" if row.length < EQUAL else row.same_as or "none of them",
        )
        for row in result.gradients
    )  # fmt: skip
    gradients = Report(
        title="gradients of the KL: length, and distance to the true gradients ("
        + "; ".join(f"{name}: {meaning}" for name, meaning in TARGETS.items())
        + ")",
        columns=("estimator", "use", "length", *TARGETS, "equals"),
        rows=gradient_rows,
        sentences=_gradient_sentences(result),
        left=(0, 1, 6),
    )
    return values, gradients


def _value_sentences(result: KLTruth) -> tuple[str, ...]:
    unbiased = [row.estimator for row in result.values if abs(row.mean - result.exact) < EQUAL]
    biased = [
        f"{row.estimator} is off by {row.mean - result.exact:+.4f} nats ({row.mean / result.exact - 1:+.1%})"
        for row in result.values
        if row.estimator not in unbiased
    ]
    quietest = min(result.values, key=lambda row: row.std)
    exact, off = ", ".join(unbiased) or "none", ", ".join(biased) or "none is biased"
    return (
        f"Exact in expectation to {EQUAL:.0e}: {exact}; {off}. "
        f"The least noisy is {quietest.estimator}, with a std of {quietest.std:.4f} nats.",
    )


def _gradient_sentences(result: KLTruth) -> tuple[str, ...]:
    lines = []
    for row in result.gradients:
        who = f"{row.estimator} {'in the reward' if row.use == 'reward' else f'({row.use})'}"
        if row.length < EQUAL:
            lines.append(f"{who} has no gradient in expectation ({row.length:.0e} of the true one's length).")
        elif row.same_as:
            lines.append(f"{who} has the gradient of {TARGETS[row.same_as]}, to {row.distance[row.same_as]:.0e}.")
        else:
            near = min(row.distance, key=lambda target: row.distance[target])
            lines.append(f"{who} has none of these gradients: {row.distance[near]:.0%} from that of {TARGETS[near]}.")
    return tuple(lines)
