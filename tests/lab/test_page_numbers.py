"""The page's numbers against the functions that the trainer uses, to 1e-6."""

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from upweight.lab import clip_higher, mismatch, ratio
from upweight.lab.page import defaults
from upweight.lab.parameters import ClipHigherParameters, RatioParameters
from upweight.objective.advantage import group_advantages
from upweight.objective.correction import correction_terms
from upweight.objective.kl import kl_estimate
from upweight.objective.surrogate import cispo_surrogate, clip_surrogate
from upweight.objective.weights import MODES, flat_token_weights

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")

Numbers = Mapping[str, float | bool | None]


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normals(count: int, generator: torch.Generator) -> Tensor:
    """torch.randn to 2e-6 on any processor: its Box and Muller, each step rounded to single precision."""

    def transform(block: Tensor) -> Tensor:
        radius = (-2 * (1 - block[:8]).double().log().float()).double().sqrt().float()
        angle = (torch.tensor(2 * math.pi) * block[8:]).double()
        return torch.cat([radius * angle.cos().float(), radius * angle.sin().float()])

    values = torch.rand(count, generator=generator)
    for start in range(0, count - 15, 16):
        values[start : start + 16] = transform(values[start : start + 16])
    if count % 16:
        values[-16:] = transform(torch.rand(16, generator=generator))
    return values


@pytest.mark.parametrize("count", [16, 200, 1000])
def test_the_generator_of_these_tests_is_that_of_torch(count: int) -> None:
    one, other = (torch.Generator().manual_seed(7) for _ in range(2))
    torch.testing.assert_close(normals(count, one), torch.randn(count, generator=other), rtol=0, atol=2e-6)
    assert torch.equal(one.get_state(), other.get_state())


# ---- what Python says, under the page's own names


def weights_by_python(v: dict[str, Any]) -> Numbers:
    lengths, others = v["lengths"], v["others"]
    advantages = group_advantages(doubles(*v["rewards"]), scale=v["adv_norm"]).tolist()
    seq_id = torch.arange(len(lengths) + len(others)).repeat_interleave(torch.tensor([*lengths, *others]))
    numbers = {f"weights.{i}.advantage": advantage for i, advantage in enumerate(advantages)}
    for mode in MODES:
        weights = flat_token_weights(seq_id, mode, max_length=v["max_length"], group_id=(seq_id >= len(lengths)).long())
        for i, advantage in enumerate(advantages):
            own = weights[seq_id == i]
            numbers[f"weights.{i}.token.{mode}"] = advantage * own[0].item()
            numbers[f"weights.{i}.answer.{mode}"] = advantage * own.sum().item()
    return numbers


def kl_by_python(v: dict[str, Any]) -> Numbers:
    generator = torch.Generator().manual_seed(v["seed"])
    ref = normals(1000, generator).double().softmax(-1)
    policy = (ref.log() + v["noise"] * normals(1000, generator).double()).softmax(-1)
    token = torch.multinomial(policy.float(), v["samples"], replacement=True, generator=generator)
    numbers = {"kl.exact": (policy * (policy / ref).log()).sum().item()}
    for name in ("k1", "k2", "k3"):
        values = kl_estimate(policy.log()[token], ref.log()[token], name)
        numbers[f"kl.{name}.at"] = kl_estimate(doubles(0.0), doubles(math.log(v["r"])), name).item()
        numbers[f"kl.{name}.mean"] = values.mean().item()
        numbers[f"kl.{name}.std"] = values.std().item()
        numbers[f"kl.{name}.negative"] = (values < 0).double().mean().item()
    return numbers


def surrogate(name: str, ratio: float, advantage: float, v: dict[str, Any]) -> dict[str, float]:
    """Value of a surrogate, and its derivative with respect to the log-probability by autograd."""
    logprob = doubles(math.log(ratio * v["p_old"])).requires_grad_()
    rho = (logprob - math.log(v["p_old"])).exp()
    if name == "cispo":
        bounds = {"low": 1 - v["cispo_clip"], "high": 1 + v["cispo_clip_high"]}
        value = cispo_surrogate(rho, doubles(advantage), logprob, **bounds).value
    else:
        dual = v["dual_clip"] if name == "dual" else None
        bounds = {"low": 1 - v["clip"], "high": 1 + v["clip_high"]}
        value = clip_surrogate(rho, doubles(advantage), dual_clip=dual, **bounds).value
    gradient = torch.autograd.grad(value.sum(), logprob, allow_unused=True)[0] if value.requires_grad else None
    return {"value": value.item(), "gradient": 0.0 if gradient is None else gradient.item()}


def clip_by_python(v: dict[str, Any]) -> Numbers:
    return {
        f"clip.{name}.{side}.{part}": value
        for name in ("clip", "dual", "cispo")
        for side, advantage in (("good", 1.0), ("bad", -1.0))
        for part, value in surrogate(name, v["rho"], advantage, v).items()
    }


def higher_by_python(v: dict[str, Any]) -> Numbers:
    tokens, bounds = ("rare", "likely"), ("narrow", "wide")
    parameters = ClipHigherParameters(
        probabilities=tuple(v[name] for name in tokens), clip_high=tuple(v[name] for name in bounds)
    )
    rows = iter(clip_higher.run(parameters).rows)
    numbers: dict[str, float | bool | None] = {}
    for token in tokens:
        for width in bounds:
            row, key = next(rows), f"higher.{token}.{width}"
            numbers[f"{key}.after_one_update"] = row.after_one_update
            numbers[f"{key}.limited"] = row.limited
            numbers[f"{key}.half"] = row.updates_to_half
            numbers[f"{key}.last"] = min(1.0, v[token] * (1 + v[width]) ** v["updates"])
    return numbers


def ratio_by_python(v: dict[str, Any]) -> Numbers:
    sigma, lengths = (v["quiet"], v["noisy"]), tuple(v["lengths"])
    rows = iter(ratio.run(RatioParameters(sigma=sigma, lengths=lengths, answers=v["answers"], seed=v["seed"])).rows)
    numbers: dict[str, float | bool | None] = {}
    for name in ("quiet", "noisy"):
        for place in range(len(lengths)):
            row, key = next(rows), f"ratio.{name}.{place}"
            numbers[f"{key}.clipped"] = row.clipped
            numbers[f"{key}.answers_clipped"] = row.answers_clipped
            for side in (0, 1):
                numbers[f"{key}.product.{side}"] = row.log10_product[side]
                numbers[f"{key}.geometric.{side}"] = row.geometric[side]
    return numbers


def mismatch_by_python(v: dict[str, Any]) -> Numbers:
    generator = torch.Generator().manual_seed(v["seed"])
    logits = (normals(200, generator) * 2.0).double()
    error = v["noise"] * normals(200, generator).double()
    error[logits.argsort()[195 - v["outliers"] : 195]] -= v["outlier_nats"]
    sampler = (logits + error).softmax(-1)
    world = mismatch._World(logits=logits, sampler=sampler, advantages=normals(200, generator).double(), cap=v["cap"])
    policy, everything = logits.softmax(-1), torch.arange(200)
    true = world.gradient(everything, policy, "none")
    sampling = torch.Generator().manual_seed(v["seed"] + 1)
    weights = torch.full((v["batch_size"],), 1 / v["batch_size"], dtype=torch.float64)
    numbers = {}
    for kind in mismatch.KINDS:
        batches = [
            torch.multinomial(sampler.float(), v["batch_size"], replacement=True, generator=sampling)
            for _ in range(v["batches"])
        ]
        estimates = torch.stack([world.gradient(token, weights, kind) for token in batches])
        expected = world.gradient(everything, sampler, kind)
        numbers[f"mismatch.{kind}.bias"] = ((estimates.mean(0) - true).norm() / true.norm()).item()
        numbers[f"mismatch.{kind}.noise"] = ((estimates - estimates.mean(0)).norm(dim=1).mean() / true.norm()).item()
        numbers[f"mismatch.{kind}.expected"] = ((expected - true).norm() / true.norm()).item()
        if kind in ("tis", "mis"):
            over = (policy / sampler)[torch.cat(batches)] > v["cap"]
            numbers[f"mismatch.{kind}.touched"] = over.double().mean().item()
    return numbers


BY_PYTHON = {
    "weights": weights_by_python,
    "kl": kl_by_python,
    "clip": clip_by_python,
    "higher": higher_by_python,
    "ratio": ratio_by_python,
    "mismatch": mismatch_by_python,
}

START = defaults()
AT_START: dict[str, dict[str, Any]] = {
    "weights": {**START["weights"], "others": (), "adv_norm": "std"},
    "kl": {**START["kl"], "r": 1.65},
    "clip": {**START["clip"], "rho": 1.4, "p_old": 0.1},
    "higher": {"rare": 0.01, "likely": 0.9, "narrow": 0.2, "wide": 0.28, "updates": 30},
    "ratio": {**START["ratio"], "quiet": 0.02, "noisy": 0.2},
    "mismatch": START["mismatch"],
}

TYPED = [
    ("weights", {"rewards": [0.25, -1, 3, 0.1, 0], "lengths": [7, 1, 900, 64, 64], "max_length": 1000}),
    ("weights", {"rewards": [1, 0], "lengths": [10, 30], "adv_norm": "none", "others": [100, 2, 50]}),
    ("weights", {"rewards": [0.1, 0.1, 0.1], "lengths": [5, 50, 500]}),
    ("kl", {"r": 0.2, "noise": 1.25, "samples": 5000, "seed": 12}),
    ("kl", {"r": 88.0, "noise": 0.05, "samples": 300000, "seed": 4294967295}),
    ("kl", {"noise": 0.0, "samples": 16}),
    ("clip", {"rho": 0.35, "clip": 0.5, "cispo_clip": 0.4}),
    ("clip", {"rho": 4.5, "dual_clip": 2.5, "cispo_clip_high": 2.0}),
    ("clip", {"rho": 3.2, "dual_clip": None, "p_old": 0.25}),
    ("higher", {"rare": 0.0003, "likely": 0.79, "narrow": 0.25, "wide": 0.0, "updates": 7}),
    ("higher", {"rare": 0.5, "likely": 0.8, "narrow": 1.0, "wide": 0.25, "updates": 1}),
    ("ratio", {"quiet": 0.1, "noisy": 0.45, "lengths": [3, 777], "answers": 33, "seed": 5}),
    ("mismatch", {"cap": 1.1, "noise": 0.6, "outliers": 1, "batch_size": 50, "batches": 12, "seed": 3}),
    ("mismatch", {"cap": 30.0, "outlier_nats": 1.5, "outliers": 0, "batch_size": 1000, "batches": 3}),
]

FIELDS = {
    "weights": ("rewards", "lengths", "others", "adv_norm", "max_length"),
    "kl": ("r", "noise", "samples", "seed"),
    "clip": ("rho", "clip", "clip_high", "dual_clip", "cispo_clip", "cispo_clip_high", "p_old"),
    "higher": ("rare", "likely", "narrow", "wide", "updates"),
    "ratio": ("quiet", "noisy", "lengths", "answers", "seed"),
    "mismatch": ("cap", "noise", "outliers", "outlier_nats", "batch_size", "batches", "seed"),
}

LABELS = {
    "others": "lengths of the other group", "adv_norm": "advantage divided by", "r": "ratio r = p/q",
    "rho": "ratio rho", "cispo_clip": "CISPO's clip", "cispo_clip_high": "CISPO's clip_high",
    "p_old": "old probability", "rare": "rare token's probability", "likely": "likely token's probability",
    "narrow": "clip_high, narrow", "wide": "clip_high, wide", "quiet": "sigma, quiet", "noisy": "sigma, noisy",
}  # fmt: skip


def shown(page: Any, panel: str) -> dict[str, Any]:
    """Every number of a panel, in full."""
    sync_api.expect(page.locator(f"#{panel}[aria-busy=false]")).to_have_count(1, timeout=15_000)
    cells = page.locator(f"#{panel} [data-key]").evaluate_all("cells => cells.map(cell => ({...cell.dataset}))")
    words = {"true": True, "false": False, "null": None}
    return {cell["key"]: words[cell["value"]] if cell["value"] in words else float(cell["value"]) for cell in cells}


def type_in(page: Any, panel: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        field = page.locator(f"#{panel}").get_by_label(LABELS.get(name, name), exact=True)
        if name == "adv_norm":
            field.select_option(value)
        elif isinstance(value, list | tuple):
            field.fill(", ".join(map(str, value)))
        else:
            field.fill("none" if value is None else repr(value))


def tolerance(key: str, value: float, values: dict[str, Any]) -> float:
    if key.startswith("ratio") and key.endswith(".clipped"):
        # torch's normal numbers differ in their last bits from processor to processor: a token may change sides.
        tokens = values["answers"] * values["lengths"][int(key.split(".")[2])]
        return max(1e-6, 1.5 / tokens)
    return 1e-6 * max(1.0, abs(value))


def assert_agree(page: Any, panel: str, values: dict[str, Any]) -> None:
    expected = BY_PYTHON[panel](values)
    got = shown(page, panel)
    assert set(got) == set(expected)
    wrong = {
        key: (got[key], value)
        for key, value in expected.items()
        if got[key] != value and (value is None or abs(got[key] - value) > tolerance(key, value, values))
    }
    assert wrong == {}


@pytest.mark.parametrize("panel", ["weights", "kl", "clip", "higher"])
def test_the_numbers_at_the_start(panel: str, lab_page: Any) -> None:
    lab_page.locator(f"#{panel}").get_by_role("button", name="Reset this panel").click()
    assert_agree(lab_page, panel, AT_START[panel])


@pytest.mark.parametrize(("panel", "typed"), TYPED, ids=lambda item: item if isinstance(item, str) else ",".join(item))
def test_the_numbers_after_typing(panel: str, typed: dict[str, Any], lab_page: Any) -> None:
    values = {**AT_START[panel], **typed}
    type_in(lab_page, panel, {name: value for name, value in values.items() if name in FIELDS[panel]})
    assert_agree(lab_page, panel, values)


def test_the_page_opens_on_the_published_numbers(open_page: Any) -> None:
    page = open_page("")
    rows = {
        panel: [
            " ".join(row.split()).replace("\u2212", "-") for row in page.locator(f"#{panel} tbody tr").all_inner_texts()
        ]
        for panel in BY_PYTHON
    }
    assert [row.split()[2:4] for row in rows["weights"]] == [
        ["+1.08e-03", "+3.27e-04"], ["-4.33e-03", "-3.27e-04"], ["-1.08e-04", "-3.27e-04"], ["+5.41e-04", "+3.27e-04"],
        ["+0.217", "+0.065"], ["-0.217", "-0.016"], ["-0.217", "-0.654"], ["+0.217", "+0.131"],
    ]  # fmt: skip
    assert [row.split()[2:] for row in rows["kl"][:3]] == [
        ["0.0497", "0.3221", "44%"], ["0.0531", "0.0744", "0%"], ["0.0505", "0.0697", "0%"],
    ]  # fmt: skip
    assert rows["kl"][3] == "exact 0.0502"
    assert rows["ratio"][3:] == [
        "0.2, 100 24.0% 2e-03 to 5e+02 0.9392 to 1.0639 98.8%",
        "0.2, 1,000 24.1% 9e-10 to 1e+07 0.9794 to 1.0164 94.1%",
        "0.2, 4,000 24.1% 3e-17 to 5e+22 0.9905 to 1.0132 89.8%",
    ]
    assert [row.split()[1::2][:2] for row in rows["mismatch"]] == [
        ["42.5%", "30.3%"], ["2.4%", "54.8%"], ["23.6%", "30.6%"], ["26.8%", "29.6%"],
    ]  # fmt: skip
    assert "median 0.95, max 19.7, min 0.56" in page.locator("#mismatch caption").inner_text().replace("\u2060", "")
    assert_agree(page, "ratio", AT_START["ratio"])


# ---- the formulas alone, for many inputs


def test_the_surrogates_for_many_ratios(lab_page: Any) -> None:
    chance = random.Random(0)
    inputs = [(0.8, 1.0), (0.8, -1.0), (1.28, 1.0), (3.0, -1.0), (1.0, 0.0), (5.0, 1.0)]
    inputs += [(math.exp(chance.uniform(-3, 2)), chance.choice([-2.5, -1, 0, 0.3, 1])) for _ in range(200)]
    v = {**AT_START["clip"], "p_old": 1.0}
    got = lab_page.evaluate(
        """([inputs, v]) => inputs.map(([ratio, advantage]) => [
            clipSurrogate(ratio, advantage, 1 - v.clip, 1 + v.clip_high, null),
            clipSurrogate(ratio, advantage, 1 - v.clip, 1 + v.clip_high, v.dual_clip),
            cispoSurrogate(ratio, advantage, Math.log(ratio), 1 - v.cispo_clip, 1 + v.cispo_clip_high)])""",
        [inputs, v],
    )
    for (ratio_, advantage), parts in zip(inputs, got, strict=True):
        for name, part in zip(("clip", "dual", "cispo"), parts, strict=True):
            # A hair off the bounds, where exp(log(ratio)) may fall on either side.
            apart = 1e-9 if all(abs(ratio_ - bound) > 1e-9 for bound in (0.8, 1.28, 3.0, 5.0)) else None
            wanted = surrogate(name, ratio_, advantage, v)
            assert part["value"] == pytest.approx(wanted["value"], abs=1e-9)
            assert apart is None or part["gradient"] == pytest.approx(wanted["gradient"], abs=apart)


def test_estimators_and_corrections_for_many_ratios(lab_page: Any) -> None:
    logs = [-30.0, -20.0, -1e-9, 0.0, 1e-9, 20.0, 25.0, *(random.Random(1).uniform(-6, 6) for _ in range(100))]
    got = lab_page.evaluate(
        """logs => logs.map(log => [
            ...ESTIMATORS.map(name => klEstimate(name, log)),
            ...CORRECTIONS.map(kind => correctionWeight(kind, Math.exp(log), 2))])""",
        logs,
    )
    zero, values, seq_id = torch.zeros(len(logs), dtype=torch.float64), doubles(*logs), torch.arange(len(logs))
    wanted = [kl_estimate(zero, values, name) for name in ("k1", "k2", "k3")]
    wanted += [correction_terms(values, zero, seq_id, kind=kind, cap=2.0).weight for kind in mismatch.KINDS]
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), torch.stack(wanted, 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [16, 200, 512])
def test_the_pages_random_numbers_are_those_of_torch(count: int, lab_page: Any) -> None:
    got = lab_page.evaluate(
        "count => { const random = new Twister(11); return [[...random.normals(count)], [...random.doubles(3)]]; }",
        count,
    )
    generator = torch.Generator().manual_seed(11)
    torch.testing.assert_close(torch.tensor(got[0]), torch.randn(count, generator=generator), rtol=0, atol=2e-6)
    assert got[1] == torch.rand(3, dtype=torch.float64, generator=generator).tolist()
