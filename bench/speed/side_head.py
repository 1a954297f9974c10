"""Log-probabilities and entropies with their gradient, ours and the plain ones, in a process of its own."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from speed.channel import Handler, serve
from speed.machine import forget_peak, give_back_free_memory, own_bytes
from upweight.policy.head import head_logprobs
from upweight.policy.logprob import token_logprobs

Scores = tuple[Tensor, Tensor]

REPEATS = 3
"""Calls whose peak memory is measured: how the allocator places blocks differs a little from one to the next."""


def plain(logits: Tensor, targets: Tensor) -> Scores:
    """As a textbook has it; the entropy without a gradient, as ours is."""
    logp = torch.log_softmax(logits.float(), dim=-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(dim=-1)
    return logp.gather(1, targets[:, None]).squeeze(1), entropy


class Problem:
    """Inputs of one size, and the two ways from them to scores."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        noise = torch.Generator().manual_seed(0)
        tokens, width, words = setup["tokens"], setup["width"], setup["vocabulary"]
        dtype = getattr(torch, setup["dtype"])
        self.targets = torch.randint(words, (tokens,), generator=noise)
        self.coefficients = torch.randn(tokens, generator=noise)
        if setup["of"] == "hidden":
            weight = torch.randn(words, width, generator=noise).mul_(2.0 * width**-0.5)
            self.inputs = [torch.randn(tokens, width, generator=noise).to(dtype), weight.to(dtype)]
            self.ways: dict[str, Callable[..., Scores]] = {
                "ours": head_logprobs,
                "plain": lambda hidden, weight, targets: plain(hidden @ weight.t(), targets),
            }
        else:
            self.inputs = [torch.randn(tokens, words, generator=noise).mul_(2.0).to(dtype)]
            self.ways = {"ours": token_logprobs, "plain": plain}
        for given in self.inputs:
            given.requires_grad_()

    def run(self, way: str) -> Scores:
        """Forward and backward; the gradients stay at the inputs."""
        for given in self.inputs:
            given.grad = None
        logprobs, entropy = self.ways[way](*self.inputs, self.targets)
        (logprobs * self.coefficients).sum().backward()
        return logprobs.detach(), entropy

    def differences(self) -> dict[str, float]:
        """Largest ones of log-probability, entropy and gradient, and the gradient's largest entry."""
        logprobs, entropy = self.run("ours")
        grads = [given.grad for given in self.inputs]
        logprobs_2, entropy_2 = self.run("plain")
        apart = [float((a - b.grad).abs().max()) for a, b in zip(grads, self.inputs, strict=True)]
        return {
            "logprob": float((logprobs - logprobs_2).abs().max()),
            "entropy": float((entropy - entropy_2).abs().max()),
            "gradient": max(apart),
            "largest_gradient": max(float(grad.abs().max()) for grad in grads),
        }

    def extra(self, way: str) -> int | None:
        """Bytes at the peak beyond the inputs and their gradients, the most of `REPEATS`; None where it is not told.

        The call before them loads kernels and their scratch, which are there once in a process.
        """
        self.run(way)
        most = 0
        for _ in range(REPEATS):
            for given in self.inputs:
                given.grad = None
            give_back_free_memory()
            before = own_bytes("VmRSS")
            if before is None or not forget_peak():
                return None
            self.run(way)
            gradients = sum(given.numel() * given.element_size() for given in self.inputs)
            most = max(most, (own_bytes("VmHWM") or 0) - before - gradients)
        return most


def make(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    """Requests: {"do": "ours" | "plain"} runs once, "differences" compares, "extra" with a `way` measures memory."""
    problem = Problem(setup)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "differences":
            return dict(problem.differences())
        if request["do"] == "extra":
            return {"bytes": problem.extra(request["way"])}
        problem.run(request["do"])
        return {}

    return {}, handle


if __name__ == "__main__":
    serve(make)
