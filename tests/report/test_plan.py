"""What fits, what to change where it does not, and how long a step takes."""

import dataclasses
import itertools
from collections.abc import Mapping

import pytest

from upweight.report.footprint import GB, Setup, footprint
from upweight.report.pace import CORE_PEAK, pace
from upweight.report.plan import STEP, Plan, largest_pass, make_plan
from upweight.report.plan_text import as_text
from upweight.report.shapes import SHAPES

SEVEN = Setup(shape=SHAPES["qwen2.5-7b"], dtype="bfloat16", processes=8, shard="full", checkpointing=True)
SMALL = Setup(shape=SHAPES["qwen2.5-0.5b"], dtype="bfloat16")


def plan_of(setup: Setup, gigabytes: float | None) -> Plan:
    memory = None if gigabytes is None else round(gigabytes * GB)
    return make_plan("a model", setup, pace(setup), memory=memory)


def changed(setup: Setup, changes: Mapping[str, str]) -> Setup:
    """The setup with the flags of a remedy."""
    made = {
        "micro_batch_tokens": lambda s, v: dataclasses.replace(s, micro_batch_tokens=int(v)),
        "gradient_checkpointing": lambda s, v: dataclasses.replace(s, checkpointing=v == "true"),
        "shard": lambda s, v: dataclasses.replace(s, shard=v),
        "dtype": lambda s, v: dataclasses.replace(s, dtype=v),
        "kl_coef": lambda s, v: dataclasses.replace(s, has_reference=float(v) > 0),
    }
    for flag, value in changes.items():
        setup = made[flag](setup, value)
    return setup


def test_a_run_that_fits_needs_no_remedy() -> None:
    plan = plan_of(SEVEN, 80)
    assert plan.fits is True
    assert (plan.remedies, plan.processes) == ((), None)


def test_without_a_memory_nothing_is_said_to_fit() -> None:
    plan = plan_of(SMALL, None)
    assert plan.fits is None
    assert {choice.fits for choice in plan.choices} == {None}
    assert "fits" not in as_text(plan)


@pytest.mark.parametrize("gigabytes", [14, 16, 18])
def test_a_remedy_makes_it_fit(gigabytes: int) -> None:
    plan = plan_of(SMALL, gigabytes)
    assert plan.fits is False
    assert plan.remedies
    for remedy in plan.remedies:
        peak = footprint(changed(SMALL, remedy.changes)).peak
        assert peak == remedy.peak
        assert peak <= gigabytes * GB < footprint(SMALL).peak


def test_no_smaller_set_of_changes_would_do() -> None:
    setup = dataclasses.replace(SMALL, dtype="float32", processes=2)
    plan = plan_of(setup, 12)
    (count,) = {len(remedy.changes) for remedy in plan.remedies}
    assert count > 1
    for remedy in plan.remedies:
        for fewer in itertools.combinations(remedy.changes, count - 1):
            changes = {flag: remedy.changes[flag] for flag in fewer if flag != "micro_batch_tokens"}
            least = changed(setup, changes)
            if "micro_batch_tokens" in fewer:
                assert largest_pass(least, 12 * GB) is None
            else:
                assert footprint(least).peak > 12 * GB


def test_a_reference_is_not_given_up_where_there_is_none() -> None:
    setup = dataclasses.replace(SMALL, has_reference=False, checkpointing=True)
    for gigabytes in (8, 10, 12):
        flags = {flag for remedy in plan_of(setup, gigabytes).remedies for flag in remedy.changes}
        assert flags <= {"micro_batch_tokens"}


def test_the_largest_pass_fits_and_a_larger_one_does_not() -> None:
    memory = 14 * GB
    tokens = largest_pass(SMALL, memory)
    assert tokens is not None
    assert footprint(dataclasses.replace(SMALL, micro_batch_tokens=tokens)).peak <= memory
    whole = SMALL.prompt_tokens + SMALL.new_tokens
    assert footprint(dataclasses.replace(SMALL, micro_batch_tokens=tokens + whole + STEP)).peak > memory


def test_the_largest_pass_takes_in_all_of_an_update_where_that_fits_and_is_none_where_one_answer_does_not() -> None:
    few = dataclasses.replace(SMALL, prompts=1, group_size=4)
    assert largest_pass(few, 80 * GB) == 4 * (256 + 512)
    assert largest_pass(dataclasses.replace(few, updates=2), 80 * GB) == 2 * (256 + 512)
    assert largest_pass(few, 5 * GB) is None


def test_where_no_change_helps_the_number_of_gpus_is_named() -> None:
    one = dataclasses.replace(SEVEN, processes=1, shard="none")
    plan = plan_of(one, 40)
    assert plan.remedies == ()
    assert plan.processes is not None
    least = dataclasses.replace(
        one, shard="full", has_reference=False, micro_batch_tokens=1, processes=plan.processes, checkpointing=True
    )
    assert footprint(least).peak <= 40 * GB < footprint(dataclasses.replace(least, processes=plan.processes // 2)).peak
    assert f"it takes {plan.processes} GPUs" in as_text(plan)


def test_where_the_whole_copy_alone_is_too_large_no_number_of_gpus_helps() -> None:
    plan = plan_of(dataclasses.replace(SEVEN, processes=1, shard="none"), 14)
    assert (plan.remedies, plan.processes) == ((), None)
    assert "no number of GPUs" in as_text(plan)


def test_every_way_to_run_it_is_there_once() -> None:
    choices = plan_of(SEVEN, 80).choices
    assert len({tuple(choice.changes.values()) for choice in choices}) == len(choices) == 8
    assert len(plan_of(SMALL, 80).choices) == 4
    (asked,) = [c for c in choices if tuple(c.changes.values()) == ("bfloat16", "full", "true")]
    assert asked.peak == footprint(SEVEN).peak


def test_a_step_of_tiny_by_hand() -> None:
    """2 prompts x 3 answers of 5 tokens to 4: 8 + 30 tokens through the layers, 30 through the head."""
    shape = SHAPES["tiny"]
    setup = Setup(shape=shape, device="cpu", prompts=2, group_size=3, prompt_tokens=4, new_tokens=5, has_reference=True)
    products = 2 * (5 * 200_960 * 38 + 258 * 128 * 30)
    looked_at = 4 * 5 * 128 * (8 * 4 / 2 + 30 * (4 + 5 / 2))
    found = pace(setup, tflops=1e-6, share_of_passes=0.5, share_of_sampling=0.25)
    assert found.sampling == pytest.approx((products + looked_at) / (1e6 * 0.25))
    assert found.scoring == pytest.approx((products + looked_at) / (1e6 * 0.5))
    assert found.training == pytest.approx(3 * found.scoring)
    assert found.seconds == pytest.approx(found.sampling + 4 * found.scoring)


def test_what_costs_time_costs_time() -> None:
    base = pace(SMALL)
    assert pace(dataclasses.replace(SMALL, checkpointing=True)).training == pytest.approx(4 / 3 * base.training)
    assert pace(SMALL, epochs=2).training == pytest.approx(2 * base.training)
    assert pace(SMALL, scored_before=True).scoring == pytest.approx(2 * base.scoring)
    assert pace(dataclasses.replace(SMALL, has_reference=False)).scoring == 0
    assert pace(dataclasses.replace(SMALL, processes=4)).seconds == pytest.approx(base.seconds / 4)


def test_off_the_compact_decoder_every_answer_brings_its_prompt_to_a_pass() -> None:
    long = dataclasses.replace(SMALL, prompt_tokens=4000, new_tokens=100)
    shared = dataclasses.replace(long, device="cpu")
    apart, together = (pace(setup, tflops=1.0, share_of_passes=1.0).training for setup in (long, shared))
    assert apart > 4 * together


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "an A100's published peak, assumed"),
        ({}, "(assumed, not measured)"),
        ({"tflops": 989.0}, "989 TFLOP/s (as given)"),
        ({"share_of_passes": 0.5}, "(the other assumed, not measured)"),
        ({"share_of_passes": 0.5, "share_of_sampling": 0.1}, "passes reach 50% and sampling 10% (as given)"),
    ],
)
def test_what_is_assumed_of_the_time_is_said(given: dict[str, float], says: str) -> None:
    assert says in pace(SMALL, **given).says


def test_a_cpu_has_the_peak_of_its_cores() -> None:
    assert pace(dataclasses.replace(SMALL, device="cpu"), cores=4).peak == 4 * CORE_PEAK[SMALL.dtype]


def test_the_text_names_every_part_and_fits_a_terminal() -> None:
    for plan in (plan_of(SEVEN, 80), plan_of(SMALL, 14), plan_of(dataclasses.replace(SMALL, device="cpu"), 100)):
        text = as_text(plan)
        parts = [*plan.footprint.always, *(part for phase in plan.footprint.phases for part in phase.parts)]
        assert all(part.name in text for part in parts)
        assert max(map(len, text.splitlines())) <= 100
        assert text.count(", the most") == 1


def test_remedies_are_shown_as_they_are_typed() -> None:
    """The switch without a value, a flag with its own."""
    plan = plan_of(dataclasses.replace(SMALL, dtype="float32", processes=2), 12)
    lines = as_text(plan).splitlines()
    first = lines.index("to make it fit, one of") + 1
    shown = lines[first : first + len(plan.remedies)]
    words = [word for line in shown for word in line.partition("  (")[0].split()]
    switches = [place for place, word in enumerate(words) if word == "--gradient_checkpointing"]
    assert switches
    assert all(place + 1 == len(words) or words[place + 1].startswith("--") for place in switches)
    others = [place for place, word in enumerate(words) if word.startswith("--") and place not in switches]
    assert all(not words[place + 1].startswith("--") for place in others)
