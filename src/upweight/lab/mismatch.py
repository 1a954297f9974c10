"""Sampler against trainer: bias and noise of the gradient without a correction, and with is, tis, mis."""

from dataclasses import dataclass
from typing import Any, get_args

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from upweight.lab.parameters import MismatchParameters
from upweight.lab.style import COLOURS, DASHES, figure, grouped_bars
from upweight.lab.table import Report, print_report
from upweight.objective.correction import correction_terms
from upweight.objective.loss import policy_loss
from upweight.objective.spec import Correction, Objective

KINDS: tuple[Correction, ...] = get_args(Correction)


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionRow:
    """How a correction's gradient estimates did, relative to the norm of the true gradient."""

    bias: float
    """Distance of their mean from the true gradient; a little of it is noise that has not averaged out."""

    noise: float
    """Mean distance of one batch's estimate from their mean."""

    expected_bias: float
    """Distance of the expected estimate, summed over the vocabulary, from the true gradient."""

    touched: float
    """Share of sampled tokens that the cap changes: cut down by tis, dropped by mis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MismatchResult:
    """What the corrections come to."""

    median: float
    """Of pi / mu over the vocabulary."""

    largest: float
    """Of pi / mu."""

    smallest: float
    """Of pi / mu."""

    rows: dict[Correction, CorrectionRow]
    """Correction -> how it did."""

    batches: int
    """Estimates that were averaged."""

    cap: float
    """Of tis and mis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _World:
    """Two policies over one vocabulary, and an advantage for each token."""

    logits: Tensor
    """[V] of the trainer."""

    sampler: Tensor
    """[V] probabilities mu of the sampler."""

    advantages: Tensor
    """[V]."""

    cap: float
    """Of tis and mis."""

    def gradient(self, token: Tensor, weights: Tensor, kind: Correction) -> Tensor:
        """[V] policy gradient with respect to the logits, by the trainer's own loss; each token is an answer."""
        logits = self.logits.clone().requires_grad_()
        logprobs = logits.log_softmax(-1)[token]
        terms = policy_loss(
            Objective(surrogate="none", kl_coef=0.0, correction=kind, correction_cap=self.cap),
            logprobs=logprobs,
            old_logprobs=None,
            advantages=self.advantages[token],
            weights=weights,
            seq_id=torch.arange(token.numel()),
            sampler_logprobs=self.sampler.log()[token],
        )
        (gradient,) = torch.autograd.grad(terms.loss, logits)
        return -gradient


def run(parameters: MismatchParameters) -> MismatchResult:
    """Estimate a policy gradient from the sampler's tokens, batch by batch, under each correction.

    Logits are normal; the sampler's differ by normal noise, and a few likely tokens are far too rare there. The true
    gradient is E_pi[A grad log pi], summed over the vocabulary.

    Args:
        parameters: vocabulary, noise, outliers, batch size, number of batches, cap, seed.

    Returns:
        Bias and noise of each correction, and the spread of pi / mu.

    Example:
        >>> result = run(MismatchParameters(batches=2, noise=0.0, outliers=0))
        >>> result.largest, result.rows["none"].expected_bias < 1e-5
        (1.0, True)
    """
    world = _world(parameters)
    policy = world.logits.softmax(-1)
    ratio = policy / world.sampler
    everything = torch.arange(parameters.vocabulary)
    true = world.gradient(everything, policy, "none")
    generator = torch.Generator().manual_seed(parameters.seed + 1)
    weights = torch.full((parameters.batch_size,), 1 / parameters.batch_size)
    rows = {}
    for kind in KINDS:
        batches = [
            torch.multinomial(world.sampler, parameters.batch_size, replacement=True, generator=generator)
            for _ in range(parameters.batches)
        ]
        estimates = torch.stack([world.gradient(token, weights, kind) for token in batches])
        mean = estimates.mean(0)
        expected = world.gradient(everything, world.sampler, kind)
        over = ratio[torch.cat(batches)] > parameters.cap
        rows[kind] = CorrectionRow(
            bias=((mean - true).norm() / true.norm()).item(),
            noise=((estimates - mean).norm(dim=1).mean() / true.norm()).item(),
            expected_bias=((expected - true).norm() / true.norm()).item(),
            touched=over.double().mean().item() if kind in ("tis", "mis") else 0.0,
        )
    return MismatchResult(
        median=ratio.median().item(),
        largest=ratio.max().item(),
        smallest=ratio.min().item(),
        rows=rows,
        batches=parameters.batches,
        cap=parameters.cap,
    )


def _world(parameters: MismatchParameters) -> _World:
    generator = torch.Generator().manual_seed(parameters.seed)
    size, safe = parameters.vocabulary, parameters.SAFE
    logits = torch.randn(size, generator=generator) * parameters.spread
    error = parameters.noise * torch.randn(size, generator=generator)
    error[logits.argsort()[size - safe - parameters.outliers : size - safe]] -= parameters.outlier_nats
    advantages = torch.randn(size, generator=generator)
    return _World(logits=logits, sampler=(logits + error).softmax(-1), advantages=advantages, cap=parameters.cap)


def as_json(result: MismatchResult) -> dict[str, Any]:
    """`{"ratio": {"median", "max", "min"}, "none": {"bias", "noise"}, "is": .., "tis": .., "mis": ..}`."""
    ratio = {"median": result.median, "max": result.largest, "min": result.smallest}
    return {"ratio": ratio, **{kind: {"bias": row.bias, "noise": row.noise} for kind, row in result.rows.items()}}


def show(result: MismatchResult, console: Console) -> None:
    """Print the table and what it shows."""
    rows = tuple(
        (kind, f"{row.bias:.1%}", f"{row.expected_bias:.1%}", f"{row.noise:.1%}", _touched(kind, row))
        for kind, row in result.rows.items()
    )
    left_over = result.rows["is"].noise / result.batches**0.5
    sentences = (
        f"Without a correction the gradient is off by {result.rows['none'].expected_bias:.1%} of its length in "
        f"expectation. Importance sampling is exact in expectation: its {result.rows['is'].bias:.1%} are noise that "
        f"{result.batches} batches leave over (about {left_over:.1%}), and its noise is the price.",
        _price(result),
    )
    title = (
        f"error of the policy gradient, as a share of its length; pi / mu has median {result.median:.2f}, "
        f"max {result.largest:.1f}, min {result.smallest:.2f}"
    )
    columns = ("correction", "bias", "expected bias", "noise of one batch", "samples over the cap")
    print_report(Report(title=title, columns=columns, rows=rows, sentences=sentences), console)


def _price(result: MismatchResult) -> str:
    """What the capped corrections gain and cost, in a sentence."""
    tis, mis = result.rows["tis"], result.rows["mis"]
    if result.cap >= result.largest:
        return (
            f"No ratio is above the cap of {result.cap:g}: tis and mis are importance sampling here, and differ from "
            "it by chance alone, as each has samples of its own."
        )
    return (
        f"tis and mis (cap {result.cap:g}) have a noise of {tis.noise:.1%} and {mis.noise:.1%} in one batch, at the "
        f"price of an expected bias of {tis.expected_bias:.1%} and {mis.expected_bias:.1%}."
    )


def _touched(kind: Correction, row: CorrectionRow) -> str:
    return f"{row.touched:.1%}" if kind in ("tis", "mis") else ""


def draw(result: MismatchResult) -> Figure:
    """Left bias and noise of each correction, right the weight that each gives to a ratio."""

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        _bars(left, result)
        left.set(title="error of the gradient")
        _weights(right, result)

    return figure(fill)


def panel(axes: Any, result: MismatchResult) -> None:
    """Bias and noise of each correction."""
    _bars(axes, result)


def _bars(axes: Any, result: MismatchResult) -> None:
    series = [
        ("bias", [100 * row.bias for row in result.rows.values()]),
        ("noise of one batch", [100 * row.noise for row in result.rows.values()]),
    ]
    grouped_bars(axes, list(result.rows), series, ".1f")
    axes.set(xlabel="correction", ylabel="% of the true gradient's length")
    axes.legend(loc="upper right")


def _weights(axes: Any, result: MismatchResult) -> None:
    log_ratio = torch.linspace(-2.5, 3.2, 571)
    ratio = log_ratio.exp()
    for place, kind in enumerate(KINDS):
        terms = correction_terms(
            log_ratio, torch.zeros_like(log_ratio), torch.arange(log_ratio.numel()), kind=kind, cap=result.cap
        )
        axes.plot(
            ratio.tolist(), terms.weight.tolist(), DASHES[place], color=COLOURS[place], linewidth=3.2 - 0.6 * place,
            label=kind,
        )  # fmt: skip
    for at, name in ((result.smallest, "min"), (result.median, "median"), (result.largest, "max")):
        axes.axvline(at, color="black", linewidth=0.7)
        axes.annotate(f"{name} {at:.2f}", (at, 0.98), (-3, 0), xycoords=("data", "axes fraction"),
                      textcoords="offset points", rotation=90, ha="right", va="top", size=8)  # fmt: skip
    axes.set(xscale="log", xlabel="pi / mu of a sampled token (log scale)", ylabel="weight c of that token")
    axes.set(ylim=(-0.1, 2.5 * result.cap), title="what a correction does to a ratio")
    axes.legend(loc="center left")
