"""Against other trainers: their own code's loss and gradient, and ours from `translate` of the same settings.

What they answered is recorded in `peers/` by `bench/peers.py --record`; a slow test asks TRL again.
"""

import json
import sys
from pathlib import Path

import pytest

from upweight.objective.dialects import DIALECTS

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from peers.cases import CUTS, SPLITS, batches, requests
from peers.live import RECORDED, TRAINERS, Comparison, NoEnvironment, compare, recorded

AGREE = 1e-8
"""A hundred times closer than what would already pass for the same number: it tells a std's 1e-9 from 1e-6."""
APART = 1e-4
"""How far the numbers are apart at least where a sentence says that they differ."""


def apart(compared: list[Comparison]) -> list[str]:
    """Requests that should have had the same answer."""
    wrong = []
    for run in compared:
        if run.request["same"] and max(run.difference, run.in_advantages) > AGREE:
            wrong.append(f"{run.request['id']}: {run.in_loss:.1e} {run.in_gradient:.1e} {run.in_advantages:.1e}")
    return wrong


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_same_settings_give_the_recorded_loss_gradient_and_advantages(trainer: str) -> None:
    version, compared = recorded(trainer)
    assert version.split("+")[0] == DIALECTS[trainer].version
    assert len(compared) > 40
    assert apart(compared) == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_where_the_numbers_differ_a_sentence_has_said_so(trainer: str) -> None:
    told = [run for run in recorded(trainer)[1] if not run.request["same"] and run.request["id"].endswith("]")]
    assert len(told) >= 4
    assert [run.request["id"] for run in told if run.difference < APART] == []
    always = set(DIALECTS[trainer].translate(_plain(trainer), None).unmatched)
    silent = [run.request["id"] for run in told if set(run.translation.unmatched) <= always]
    assert [name for name in silent if "an answer without a score" not in name] == []


def _plain(trainer: str) -> dict[str, object]:
    """Settings under which nothing is left unmatched but what always is."""
    group_norm: dict[str, object] = {"algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0.0}
    return {"trl": {}, "verl": {"adv_estimator": "grpo"}, "openrlhf": group_norm}[trainer]


def test_a_straight_through_estimator_has_our_gradient_under_another_value() -> None:
    runs = [run for trainer in ("verl", "openrlhf") for run in recorded(trainer)[1]]
    through = [run for run in runs if run.request["same"] and not run.request["same_value"]]
    assert len(through) == 12
    assert [run.request["id"] for run in through if run.in_gradient > AGREE or run.in_loss < APART] == []


@pytest.mark.parametrize("case", SPLITS, ids=lambda case: f"{case.trainer}, {case.name}")
def test_our_number_does_not_change_with_the_cut_and_theirs_does_where_it_is_said(case: object) -> None:
    runs = {run.request["id"]: run for run in recorded(case.trainer)[1]}  # type: ignore[attr-defined]
    cut = [runs[f"{case.name} in {words}"] for words in CUTS.values()]  # type: ignore[attr-defined]
    assert max(run.ours.loss for run in cut) - min(run.ours.loss for run in cut) < 1e-15
    theirs = max(run.theirs.loss for run in cut) - min(run.theirs.loss for run in cut)
    depends = {("trl", "bnpo"), ("verl", "seq-mean-token-sum-norm")}
    if (case.trainer, case.name) in depends:  # type: ignore[attr-defined]
        assert theirs > 0.1
    else:
        assert theirs < 1e-15


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_recorded_answers_what_would_be_asked_today(trainer: str) -> None:
    stored = json.loads((RECORDED / f"{trainer}.json").read_text(encoding="utf-8"))
    assert stored["requests"] == json.loads(json.dumps(requests(trainer)))
    assert stored["batches"] == json.loads(json.dumps(batches()))


@pytest.mark.slow
def test_trls_own_code_gives_the_same_today() -> None:
    try:
        version, compared = compare("trl")
    except NoEnvironment as error:
        pytest.skip(f"TRL's environment could not be made: {error}")
    assert version == DIALECTS["trl"].version
    assert apart(compared) == []
    again = {run.request["id"]: run.theirs.loss for run in recorded("trl")[1]}
    assert {run.request["id"]: pytest.approx(run.theirs.loss, rel=1e-8) for run in compared} == again
