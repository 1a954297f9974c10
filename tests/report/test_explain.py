"""`explain` says what is true of an objective: its cases, its lists, its two other forms."""

import json
import re

import pytest

from upweight.objective.presets import PRESETS, preset
from upweight.objective.remarks import remarks
from upweight.objective.spec import Objective
from upweight.report.explain import Explanation, explain
from upweight.report.records import Run, number
from upweight.report.render import WIDTH, as_text


def said(objective: Objective, part: str, run: Run | None = None) -> str:
    explanation = explain(objective, run or Run(minibatches=2))
    return " ".join(next(p for p in explanation.parts if p.name == part).says)


def listed(objective: Objective, name: str, preset: str = "", **run: int) -> str:
    return " ".join(explain(objective, Run(**{"minibatches": 2, **run}), preset=preset).lists()[name])


@pytest.mark.parametrize(
    ("fields", "part", "words"),
    [
        ({}, "special cases", "stays in the denominators, and feels the KL"),
        ({"kl_coef": 0.0}, "special cases", "teaches nothing and costs no backward pass"),
        ({"filter_groups": True}, "special cases", "out of the loss and out of the denominators"),
        ({"filter_groups": True, "resample": True}, "special cases", "Sampling goes on"),
        ({"kl_place": "reward"}, "special cases", "may have spread"),
        ({"truncated": "mask"}, "special cases", "its task reward still counts"),
        ({"overlong_buffer": 4}, "special cases", "less the overlong penalty"),
        ({"truncated": "mask"}, "weight", "answers that used up their budget"),
        ({"filter_groups": True}, "weight", "groups without spread"),
        ({"correction": "mis"}, "correction", "stays in the denominator"),
        ({"correction": "mis", "masked_tokens": "valid"}, "correction", "leaves the denominator"),
        ({"old_logprobs": "sampler"}, "ratio", "sampler's own log-probabilities"),
        ({"old_logprobs": "sampler"}, "correction", "nothing left to correct"),
        ({"correction": "mis"}, "KL", "A token that the correction drops contributes no KL"),
        ({"baseline": "leave-one-out"}, "advantage", "the other scored answers"),
        ({"adv_ddof": 0}, "advantage", "the squares are divided by n."),
    ],
)
def test_special_cases_are_told_as_the_flags_have_them(fields: dict[str, object], part: str, words: str) -> None:
    assert words in said(Objective(**fields), part)  # type: ignore[arg-type]
    plain = Objective(filter_groups=True, kl_coef=0.0) if not fields else Objective()
    assert words not in said(plain, part)


def test_with_one_update_per_batch_the_ratio_is_said_to_be_1() -> None:
    assert "exactly 1" in said(Objective(), "ratio", Run())
    assert "exactly 1" not in said(Objective(), "ratio", Run(epochs_per_batch=2))
    assert "exactly 1" not in said(Objective(old_logprobs="sampler"), "ratio", Run())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss_agg": "seq-mean-token-mean"}, "wrong answers grow"),
        ({"loss_agg": "seq-mean-token-sum-norm"}, "Length: none"),
        ({}, "Difficulty"),
        ({"adv_norm": "none"}, "0.875 with group_size=8"),
        ({"ratio_level": "sequence"}, "no importance weight"),
        ({"correction": "is", "correction_level": "geometric"}, "no importance weight"),
        ({"correction": "tis"}, "one-token answers only"),
        ({}, "its gradient is the forward KL"),
        ({"filter_groups": True}, "Selection"),
        ({"surrogate": "cispo"}, "no token loses its gradient"),
    ],
)
def test_biases_are_named(fields: dict[str, object], words: str) -> None:
    assert words in listed(Objective(**fields), "biases")  # type: ignore[arg-type]


def test_the_bias_by_difficulty_is_given_in_numbers_that_the_advantages_have() -> None:
    from upweight import group_advantages

    text = listed(Objective(), "biases", group_size=6)
    lone = group_advantages([1.0, 0, 0, 0, 0, 0])[0].item()
    half = group_advantages([1.0, 1, 1, 0, 0, 0])[0].item()
    assert f"advantage of {lone:.2f}; where 3 are right, each gets {half:.2f}" in text


@pytest.mark.parametrize(
    ("name", "fields", "differs"),
    [
        ("grpo", {}, {"loss_agg"}),
        ("grpo-paper", {}, set()),
        ("grpo-paper", {"kl_grad": "reverse", "clip_high": 0.3}, {"kl_grad", "clip_high"}),
        ("dr-grpo", {}, set()),
        ("dr-grpo", {"adv_norm": "std", "kl_coef": 0.1}, {"adv_norm", "kl_coef"}),
        ("dapo", {"loss_agg": "group-mean-token-mean"}, set()),
        ("dapo", {"loss_agg": "group-mean-token-mean", "clip_high": 0.2}, {"clip_high"}),
        ("dapo", {"loss_agg": "group-mean-token-mean", "overlong_buffer": 0}, {"overlong_buffer"}),
        ("gspo", {}, set()),
        ("gspo", {"dual_clip": 3.0}, {"dual_clip"}),
        ("cispo", {}, {"loss_agg", "filter_groups", "resample", "overlong_buffer"}),
        ("ppo", {}, {"kl_coef"}),
    ],
)
def test_where_a_preset_leaves_its_paper(name: str, fields: dict[str, object], differs: set[str]) -> None:
    base = {**{f: getattr(preset(name), f) for f in Objective.__slots__}, **fields}
    text = listed(Objective(**base), "differences", preset=name)  # type: ignore[arg-type]
    assert set(re.findall(r"\b(\w+) is [^;:]*; the paper", text)) == differs


def test_dapo_is_told_of_its_papers_average_once() -> None:
    text = listed(preset("dapo"), "differences", preset="dapo")
    assert text.count("group-mean-token-mean") == 1


def test_every_remark_is_in_one_list() -> None:
    objective = Objective(correction="mis", correction_level="geometric", kl_coef=0.0, kl_grad="reverse", clip=0.1)
    explanation = explain(objective, Run(), preset="grpo")
    found = remarks(objective, group_size=8, preset="grpo")
    assert len(found) == len(explanation.no_effect) + len(explanation.biases) + len(explanation.differences)
    assert {remark.kind for remark in found} == {"no effect", "bias", "paper"}


@pytest.fixture(params=sorted(PRESETS))
def explanation(request: pytest.FixtureRequest) -> Explanation:
    name: str = request.param
    odd = ["50% of {it} is_wrong & #1."]
    return explain(preset(name), Run(), preset=name, translation=odd, contradictions=odd)


def test_the_text_fits_a_terminal_and_holds_every_sentence(explanation: Explanation) -> None:
    text = as_text(explanation)
    assert max(map(len, text.splitlines())) <= WIDTH
    flat = re.sub(r"\s+", " ", text)
    sentences = [sentence for part in explanation.parts for sentence in part.says]
    sentences += [sentence for sentences in explanation.lists().values() for sentence in sentences]
    assert [sentence for sentence in sentences if sentence not in flat] == []
    assert explanation.paper is not None
    assert f"arXiv {explanation.paper.arxiv}" in flat


def test_the_json_is_json_and_complete(explanation: Explanation) -> None:
    content = json.loads(json.dumps(explanation.as_json()))
    assert content["flags"]["clip"] == explanation.objective.clip
    assert list(content["parts"]) == [part.name for part in explanation.parts]
    assert content["parts"]["ratio"]["facts"]["low"] == explanation.objective.bounds[0]
    assert content["contradictions"] == ["50% of {it} is_wrong & #1."]


def test_numbers_are_spelled_as_they_are_typed() -> None:
    assert [number(value) for value in (0.04, 1e-6, 3.0)] == ["0.04", "1e-06", "3"]


@pytest.mark.parametrize(
    ("fields", "alike"),
    [
        ({}, ""),
        ({"loss_agg": "seq-mean-token-mean"}, "These are grpo-paper's flags."),
        ({"clip_high": 0.28, "filter_groups": True, "kl_coef": 0.0}, "but for resample=false (dapo: true)."),
        ({"ratio_level": "sequence", "clip": 3e-4, "clip_high": 4e-4}, "(gspo: seq-mean-token-mean)"),
    ],
)
def test_flags_that_are_another_presets_are_recognised(fields: dict[str, object], alike: str) -> None:
    """Typed without a preset they would be held against the paper of the default alone."""
    explanation = explain(Objective(**fields), Run(), preset="grpo")  # type: ignore[arg-type]
    assert alike in explanation.alike
    assert bool(explanation.alike) == bool(alike)
    assert explanation.alike in re.sub(r"\s+", " ", as_text(explanation))


def test_weights_over_kept_tokens_are_told_as_such() -> None:
    objective = Objective(correction="mis", masked_tokens="valid", loss_agg="seq-mean-token-mean")
    weight = next(part for part in explain(objective, Run()).parts if part.name == "weight")
    assert weight.formulas[0].plain == "w_t = 1 / (N K_i)"
    text = " ".join(weight.says)
    assert "kept tokens" in text
    assert "after one pass for pi_old" in text
    assert "tokens that the correction drops" in text


def test_a_kl_in_the_reward_that_is_divided_by_the_std_is_a_bias_said_at_the_start() -> None:
    (remark,) = [r for r in remarks(Objective(kl_place="reward")) if "no fixed weight" in r.text]
    assert remark.at_start
    assert "no fixed weight" not in listed(Objective(kl_place="reward", adv_norm="none"), "biases")


def test_where_pi_old_has_a_pass_of_its_own_the_ratio_is_1_up_to_rounding() -> None:
    for fields in ({"kl_place": "reward"}, {"correction": "mis", "masked_tokens": "valid"}):
        objective = Objective(**fields)  # type: ignore[arg-type]
        assert "up to rounding" in said(objective, "ratio", Run())
        assert "up to rounding 1" in " ".join(explain(objective, Run()).no_effect)
