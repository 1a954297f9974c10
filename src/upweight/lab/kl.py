"""The KL to the reference from one sampled token: k1, k2 and k3 against the exact value."""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from upweight.lab.parameters import KLParameters
from upweight.lab.style import COLOURS, DASHES, figure
from upweight.lab.table import Report, print_report
from upweight.objective.kl import kl_estimate

ESTIMATORS = ("k1", "k2", "k3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What an estimator gave over the samples."""

    mean: float
    """Nats."""

    std: float
    """Of one sample, nats."""

    negative: float
    """Share of the samples below 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KLResult:
    """The estimators against the exact value."""

    exact: float
    """KL(q || p), summed over the vocabulary, nats."""

    estimates: dict[str, Estimate]
    """Estimator -> what it gave."""

    log_ratio: Tensor
    """[samples] log p - log q of each sampled token."""


def run(parameters: KLParameters) -> KLResult:
    """Sample tokens from a policy q near a reference p, and estimate KL(q || p) from each by `kl_estimate`.

    p is the softmax of standard normal numbers; log q is log p plus normal noise, normalised.

    Args:
        parameters: vocabulary, noise, samples, seed.

    Returns:
        Mean, std and share of negative samples per estimator, and the exact KL.

    Example:
        >>> result = run(KLParameters(samples=1000))
        >>> result.estimates["k3"].negative
        0.0
    """
    generator = torch.Generator().manual_seed(parameters.seed)
    # In float64, as the page does: in float32 the last bit of a softmax depends on the CPU's vector instructions, which
    # is enough to move a sample to the next token and k1's mean from 0.0497 to 0.0498.
    ref = torch.randn(parameters.vocabulary, generator=generator).double().softmax(-1)
    shift = parameters.noise * torch.randn(parameters.vocabulary, generator=generator).double()
    policy = (ref.log() + shift).softmax(-1)
    token = torch.multinomial(policy.float(), parameters.samples, replacement=True, generator=generator)
    logprobs, ref_logprobs = policy.log()[token], ref.log()[token]
    estimates = {}
    for name in ESTIMATORS:
        values = kl_estimate(logprobs, ref_logprobs, name)
        negative = (values < 0).double().mean().item()
        estimates[name] = Estimate(mean=values.mean().item(), std=values.std().item(), negative=negative)
    exact = (policy * (policy / ref).log()).sum().item()
    return KLResult(exact=exact, estimates=estimates, log_ratio=ref_logprobs - logprobs)


def as_json(result: KLResult) -> dict[str, Any]:
    """`{"exact", "k1": {"mean", "std", "negative"}, "k2": .., "k3": ..}`."""
    rows = {
        name: {"mean": estimate.mean, "std": estimate.std, "negative": estimate.negative}
        for name, estimate in result.estimates.items()
    }
    return {"exact": result.exact, **rows}


def show(result: KLResult, console: Console) -> None:
    """Print the table and what it shows."""
    formulas = {"k1": "-log r", "k2": "(log r)^2 / 2", "k3": "r - 1 - log r"}
    rows = [("exact", "", f"{result.exact:.4f}", "", "")]
    for name, estimate in result.estimates.items():
        rows.append((name, formulas[name], f"{estimate.mean:.4f}", f"{estimate.std:.4f}", f"{estimate.negative:.0%}"))
    k1, k2, k3 = (result.estimates[name] for name in ESTIMATORS)
    count = result.log_ratio.numel()
    sentences = (
        f"k1 and k3 are right on average; k1 is negative for {k1.negative:.0%} of the samples and has a std of "
        f"{k1.std:.4f}, k3 is never negative and has {k3.std:.4f}.",
        f"k2 is never negative either, but biased: {k2.mean - result.exact:+.4f} nats here, where the mean of "
        f"{count:,} samples is good to about {k2.std / count**0.5:.4f}.",
    )
    title = f"KL(q || p) in nats, estimated from single tokens of q; r = p / q ({count:,} samples)"
    columns = ("estimator", "formula", "mean", "std", "negative")
    print_report(Report(title=title, columns=columns, rows=tuple(rows), sentences=sentences), console)


def draw(result: KLResult) -> Figure:
    """Left the three estimators as curves, right what they gave over the samples."""

    def fill(made: Figure) -> None:
        left, right = made.subplots(1, 2)
        _curves(left)
        left.set(title="the estimators")
        _histograms(right, result)

    return figure(fill)


def panel(axes: Any, result: KLResult) -> None:
    """The three curves, with the numbers of the experiment."""
    _curves(axes)
    lines = [f"exact KL {result.exact:.4f}"]
    lines += [f"{name} {item.mean:.4f}, std {item.std:.4f}" for name, item in result.estimates.items()]
    axes.text(0.62, 0.97, "\n".join(lines), transform=axes.transAxes, va="top", ha="right", fontsize=8)


def _curves(axes: Any) -> None:
    log_ratio = torch.linspace(-2, 2, 201)
    for name, colour, dash in zip(ESTIMATORS, COLOURS, DASHES, strict=False):
        values = kl_estimate(torch.zeros_like(log_ratio), log_ratio, name)
        axes.plot(log_ratio.tolist(), values.tolist(), dash, color=colour, label=name, linewidth=2)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="log r = log p - log q of the sampled token (nats)", ylabel="estimate (nats)")
    axes.legend(loc="lower left")


def _histograms(axes: Any, result: KLResult) -> None:
    values = {
        name: kl_estimate(torch.zeros_like(result.log_ratio), result.log_ratio, name).double() for name in ESTIMATORS
    }
    reach = max(4 * result.estimates["k3"].std, 2.5 * result.estimates["k1"].std, 1e-6)
    for name, colour, dash in zip(ESTIMATORS, COLOURS, DASHES, strict=False):
        counts, edges = torch.histogram(values[name], bins=40, range=(-reach, reach))
        axes.stairs(
            (counts / values[name].numel()).tolist(),
            edges.tolist(),
            label=name,
            color=colour,
            linestyle=dash,
            linewidth=1.8,
        )
    axes.axvline(result.exact, color="black", linewidth=1, label=f"exact KL, {result.exact:.4f}")
    axes.set(
        xlabel="estimate from one token (nats)",
        ylabel="share of samples (log scale)",
        yscale="log",
        title="the samples",
    )
    axes.legend()
