"""The formulas that `explain` prints are run, and give what the functions of the objective give."""

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from matplotlib.mathtext import MathTextParser

from upweight.objective.advantage import group_advantages
from upweight.objective.correction import correction_terms
from upweight.objective.kl import kl_estimate
from upweight.objective.presets import PRESETS, preset
from upweight.objective.shaping import overlong_penalty
from upweight.objective.spec import Objective
from upweight.objective.surrogate import cispo_surrogate, clip_surrogate, unclipped_surrogate
from upweight.objective.weights import flat_token_weights
from upweight.report import parts, parts_of_policies
from upweight.report.explain import explain
from upweight.report.records import Formula, Part, Run

FUNCTIONS: dict[str, Any] = {
    "min": min,
    "max": max,
    "log": math.log,
    "clip": lambda value, low, high: min(max(value, low), high),
}


def evaluate(formula: Formula | str, **names: Any) -> float:
    """The right side of a printed formula: `a b` multiplies, `x where c, else y` chooses, ^ is a power."""
    text = (formula.plain if isinstance(formula, Formula) else formula).partition(" = ")[2]
    text = text.replace("sg[", "(").replace("]", ")").replace("log pi(o_t)", "logprob").replace("log r_t", "log(r_t)")
    text = text.replace(" where ", " if ").replace(", else ", " else ").replace("^", "**")
    text = re.sub(r"\((pi_old|pi_ref|pi|mu)\(o_t\) / (pi_old|pi_ref|pi|mu)\(o_t\)\)", r"(\1/\2)", text)
    text = re.sub(r"(?<=[\w)]) (?=[\w(])(?!if |else )(?<!if )(?<!else )", "*", text)
    result: float = eval(text, {"__builtins__": {}}, {**FUNCTIONS, **names})
    return result


def first(part: Part) -> Formula:
    return part.formulas[0]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("fields", "function"),
    [
        ({}, clip_surrogate),
        ({"clip": 0.1, "clip_high": 0.4}, clip_surrogate),
        ({"dual_clip": 1.7}, clip_surrogate),
        ({"surrogate": "none"}, unclipped_surrogate),
        ({"surrogate": "cispo", "clip": 0.5, "clip_high": 0.28}, cispo_surrogate),
    ],
)
def test_the_printed_surrogate_is_the_one_that_is_maximised(
    level: str, fields: dict[str, Any], function: Callable[..., Any]
) -> None:
    objective = Objective(ratio_level=level, **fields)  # type: ignore[arg-type]
    low, high = objective.bounds
    formula = first(parts.surrogate(objective, Run()))
    for rho, value in itertools.product((0.3, 0.85, 1.0, 1.15, 1.9, 4.0), (-1.5, 0.0, 2.0)):
        ratio, advantages = torch.tensor([rho], dtype=torch.float64), torch.tensor([value], dtype=torch.float64)
        extra: dict[str, Any] = {} if function is unclipped_surrogate else {"low": low, "high": high}
        if function is clip_surrogate:
            extra["dual_clip"] = objective.dual_clip
        if function is cispo_surrogate:
            extra["logprobs"] = torch.tensor([-0.7], dtype=torch.float64)
        ours = function(ratio, advantages, **extra).value.item()
        assert evaluate(formula, rho_t=rho, s_i=rho, A_i=value, logprob=-0.7) == pytest.approx(ours, rel=1e-12)


def others(rewards: list[float], i: int) -> list[float]:
    return rewards[:i] + rewards[i + 1 :]


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("scale", ["std", "none", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_the_printed_advantage_is_the_one_that_is_used(scale: str, baseline: str, ddof: int) -> None:
    objective = Objective(adv_norm=scale, baseline=baseline, adv_ddof=ddof, adv_eps=0.01)  # type: ignore[arg-type]
    group, rest = [1.0, 0.25, 0.0, 0.5], [3.0, 1.0]
    ours = group_advantages(
        torch.tensor(group + rest, dtype=torch.float64),
        [0, 0, 0, 0, 1, 1],
        scale=scale,
        baseline=baseline,
        ddof=ddof,
        eps=0.01,
    )

    def std(values: list[float]) -> float:
        mean = sum(values) / len(values)
        return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - ddof))

    part = parts.advantage(objective, Run())
    formula = first(part).plain.replace("{j in g, j != i}", "others")
    for i, reward in enumerate(group):
        whom = {"others": others(group, i), "g": group, "batch": group + rest}
        names = {f"mean_{name}": lambda r, v=values: sum(v) / len(v) for name, values in whom.items()}
        names |= {f"std_{name}": lambda r, v=values: std(v) for name, values in whom.items()}
        assert evaluate(formula, R_i=reward, R=None, **names) == pytest.approx(ours[i].item(), rel=1e-12)
    assert part.facts["ddof"] == (None if scale == "none" else ddof)


@pytest.mark.parametrize(
    "mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean"]
)
def test_the_printed_weight_is_the_one_that_is_used(mode: str) -> None:
    lengths, groups = [3, 1, 2, 5], [0, 0, 0, 1]
    seq_id = torch.tensor([i for i, length in enumerate(lengths) for _ in range(length)])
    ours = flat_token_weights(seq_id, mode, max_length=64, group_id=torch.tensor(groups)[seq_id])
    formula = first(parts.weight(Objective(loss_agg=mode), Run(max_new_tokens=64))).plain  # type: ignore[arg-type]
    for answer, weight in zip(seq_id.tolist(), ours.tolist(), strict=True):
        group = sum(length for length, g in zip(lengths, groups, strict=True) if g == groups[answer])
        text = formula.replace("sum_j L_j", str(sum(lengths))).replace("sum_{j in g} L_j", str(group))
        assert evaluate(text, N=4, P=2, L_i=lengths[answer]) == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize(("estimator", "grad"), list(itertools.product(("k1", "k2", "k3"), ("naive", "reverse"))))
def test_the_printed_kl_is_the_one_in_the_loss(estimator: str, grad: str) -> None:
    objective = Objective(kl_estimator=estimator, kl_grad=grad)  # type: ignore[arg-type]
    formula = parts_of_policies.kl_formula(objective)
    ratio = {"pi": 0.3, "pi_old": 0.2} if grad == "reverse" else {}
    for now, reference in ((-0.4, -1.3), (-2.0, -0.1)):
        ours = kl_estimate(*torch.tensor([[now], [reference]], dtype=torch.float64), estimator).item()
        expected = ours * (1.5 if ratio else 1.0)
        assert evaluate(formula, r_t=math.exp(reference - now), **ratio) == pytest.approx(expected, rel=1e-12)


def expected_gradients(logits: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradient of each divergence at one position, and of each KL term in expectation, by enumeration."""
    probabilities = logits.log_softmax(-1)
    live, frozen = probabilities, probabilities.detach()
    terms = {
        "reverse KL(pi || pi_ref)": (live.exp() * (live - reference)).sum(),
        "forward KL(pi_ref || pi)": (reference.exp() * (reference - live)).sum(),
    }
    for estimator in ("k1", "k2", "k3"):
        k = kl_estimate(live, reference, estimator)
        terms[f"naive {estimator}"] = (frozen.exp() * k).sum()
        terms[f"reverse {estimator}"] = (frozen.exp() * (live - frozen).exp() * k).sum()
    return {name: torch.autograd.grad(term, logits, retain_graph=True)[0] for name, term in terms.items()}


@pytest.mark.parametrize(("estimator", "grad"), list(itertools.product(("k1", "k2", "k3"), ("naive", "reverse"))))
def test_the_divergence_that_a_kl_is_said_to_descend_is_the_one_it_descends(estimator: str, grad: str) -> None:
    """B40: over a vocabulary of three, where everything can be summed."""
    logits = torch.tensor([0.3, -1.0, 0.6], dtype=torch.float64, requires_grad=True)
    found = expected_gradients(logits, torch.tensor([-0.2, 0.5, 0.1], dtype=torch.float64).log_softmax(-1))
    ours = found[f"{grad} {estimator}"]
    same = {name for name in found if "||" in name and torch.allclose(found[name], ours, atol=1e-12)}
    objective = Objective(kl_estimator=estimator, kl_grad=grad)  # type: ignore[arg-type]
    descends = str(parts_of_policies.kl(objective, Run()).facts["descends"])
    assert {descends} & {name for name in found if "||" in name} == same
    if not same:
        assert descends.startswith("nothing") == bool(torch.allclose(ours, torch.zeros(3).double(), atol=1e-12))


@pytest.mark.parametrize(
    ("kind", "level"), list(itertools.product(("is", "tis", "mis"), ("token", "sequence", "geometric")))
)
def test_the_printed_correction_is_the_one_that_is_used(kind: str, level: str) -> None:
    noise = random.Random(3)
    old = [[noise.uniform(-2, 0) for _ in range(n)] for n in (1, 3, 4)]
    mu = [[lp - noise.uniform(-0.6, 0.9) for lp in answer] for answer in old]
    flat_old, flat_mu = list(itertools.chain(*old)), list(itertools.chain(*mu))
    seq_id = torch.tensor([i for i, answer in enumerate(old) for _ in answer])
    terms = correction_terms(
        *torch.tensor([flat_old, flat_mu], dtype=torch.float64), seq_id, kind=kind, level=level, cap=1.2
    )
    weight, ratio = parts_of_policies.correction(
        Objective(correction=kind, correction_level=level, correction_cap=1.2),  # type: ignore[arg-type]
        Run(),
    ).formulas
    product = "prod_{u in i} pi_old(o_u) / mu(o_u)"
    for t, answer in enumerate(seq_id.tolist()):
        whole = math.exp(sum(old[answer]) - sum(mu[answer]))
        text = ratio.plain.replace(product, str(whole)).replace("pi_old(o_t) / mu(o_t)", "pi_old / mu")
        q = evaluate(text, pi_old=math.exp(flat_old[t]), mu=math.exp(flat_mu[t]), L_i=len(old[answer]))
        printed = weight.plain.replace("the token is dropped", "0")
        assert evaluate(printed, q_t=q) == pytest.approx(terms.weight[t].item(), rel=1e-12)
    if kind == "mis":
        assert 0 < int(terms.rejected.sum()) < len(flat_old)


def test_the_printed_overlong_penalty_is_the_one_that_is_given() -> None:
    part = parts.reward(Objective(overlong_buffer=20), Run(max_new_tokens=100))
    formula, _, buffer = part.formulas[1].plain.partition(",  B = ")
    for length in (70, 80, 81, 90, 100, 101):
        ours = overlong_penalty(torch.tensor([length]), 100, int(buffer)).item()
        assert evaluate(formula, L_i=length, B=int(buffer)) == pytest.approx(ours, abs=1e-7)


def everything() -> Iterator[tuple[Objective, Run]]:
    for name in PRESETS:
        yield preset(name), Run(buffer_share=5)
    axes: dict[str, tuple[object, ...]] = {
        "adv_norm": ("std", "none", "batch"),
        "baseline": ("mean", "leave-one-out", "critic"),
        "surrogate": ("clip", "cispo", "none"),
        "dual_clip": (None, 3.0),
        "kl_place": ("loss", "reward"),
        "kl_grad": ("naive", "reverse"),
        "correction": ("none", "is", "tis", "mis"),
        "correction_level": ("token", "sequence", "geometric"),
    }
    for n, values in enumerate(itertools.product(*axes.values())):
        if n % 7 == 0:
            fields = dict(zip(axes, values, strict=True))
            yield Objective(**fields, overlong_buffer=4, gae_lambda=0.9), Run(max_new_tokens=64)  # type: ignore[arg-type]


def test_every_latex_formula_is_well_formed() -> None:
    parser = MathTextParser("path")
    seen = set()
    for objective, run in everything():
        explanation = explain(objective, run)
        seen.add(explanation.loss.latex)
        seen |= {formula.latex for part in explanation.parts for formula in part.formulas}
    assert len(seen) > 40
    for latex in seen:
        parser.parse("$" + latex.replace(r"\tfrac", r"\frac") + "$")


def test_both_spellings_hold_the_same_numbers() -> None:
    """A bound or a coefficient that was changed in one of them only would show."""

    def numbers(text: str) -> list[str]:
        bare = re.sub(r"\\frac\{1\}\{2\}|\\tfrac\{1\}\{2\}", "/ 2", text)
        bare = re.sub(r"(?:(\d+) \\cdot )?10\^\{(-?\d+)\}", lambda m: f"{m[1] or 1}e{int(m[2]):03d}", bare)
        return sorted(set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", bare)) - {"0", "1"})

    for objective, run in everything():
        explanation = explain(objective, run)
        for formula in (explanation.loss, *(f for part in explanation.parts for f in part.formulas)):
            assert numbers(formula.plain) == numbers(formula.latex), formula


def test_a_setting_that_has_an_effect_is_in_the_explanation() -> None:
    """B43: none of the objective's fields is read by training and left out by explain."""
    elsewhere = {
        "baseline": "leave-one-out",
        "kl_estimator": "k2",
        "correction": "tis",
        "loss_agg": "seq-mean-token-mean",
        "surrogate": "cispo",
        "correction_level": "geometric",
        "old_logprobs": "sampler",
        "adv_norm": "batch",
    }
    start = {
        "gae_lambda": Objective(baseline="critic"),
        "correction_level": Objective(correction="tis"),
        "correction_cap": Objective(correction="tis"),
        "masked_tokens": Objective(correction="mis"),
        "resample": Objective(filter_groups=True),
    }
    for field in dataclasses.fields(Objective):
        base = start.get(field.name, Objective())
        value = getattr(base, field.name)
        other = elsewhere.get(field.name)
        if other is None:
            choices = {"kl_grad": "reverse", "kl_place": "reward", "ratio_level": "sequence", "masked_tokens": "valid"}
            other = choices.get(field.name, "mask" if field.name == "truncated" else None)
        if other is None:
            other = (not value) if isinstance(value, bool) else 0 if value == 1 and field.name == "adv_ddof" else 3.5
        if field.name == "overlong_buffer":
            other = 8
        moved = dataclasses.replace(base, **{field.name: other})
        run = Run(minibatches=2)
        before, after = explain(base, run).as_json(), explain(moved, run).as_json()
        assert before.pop("flags") != after.pop("flags")
        assert (before["loss"], before["parts"]) != (after["loss"], after["parts"]), field.name
