"""What an objective may not be, and what is said about one that may."""

import dataclasses
import math
from typing import Any

import pytest

from upweight.objective.fields import must_be
from upweight.objective.presets import PRESETS, preset
from upweight.objective.remarks import notes
from upweight.objective.rules import OWNER, conflicts, out_of_range, wrong_types
from upweight.objective.spec import Objective


def forced(**fields: object) -> Objective:
    """An objective with values that its own types would not let through, as a file or another program may hold."""
    objective = Objective()
    for name, value in fields.items():
        object.__setattr__(objective, name, value)
    return objective


def refusals(objective: Objective, **run: Any) -> list[str]:
    """Everything that an objective is refused for, as a run checks it: its values first, then how they go together."""
    return wrong_types(objective, OWNER) or out_of_range(objective, OWNER) + conflicts(objective, **run)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "ppo"])
def test_every_preset_is_sound(name: str) -> None:
    objective = preset(name, max_new_tokens=64)
    assert refusals(objective, group_size=8, max_new_tokens=64) == []


def test_ppo_says_that_the_critic_is_not_there_yet() -> None:
    (problem,) = refusals(preset("ppo"), group_size=8)
    assert "not built in yet" in problem
    assert "--baseline mean" in problem


@pytest.mark.parametrize(
    ("fields", "run", "words"),
    [
        ({"kl_estimator": "k1"}, {}, ["kl_estimator=k1", "--kl_place reward"]),
        ({"correction": "tis"}, {"has_sampler_logprobs": False}, ["correction=tis", "--correction none"]),
        ({"correction": "is", "old_logprobs": "sampler"}, {}, ["corrects twice", "--old_logprobs recompute"]),
        ({"overlong_buffer": 65}, {"max_new_tokens": 64}, ["overlong_buffer=65", "max_new_tokens=64", "at most 64"]),
        ({"overlong_buffer": 8}, {"max_new_tokens": None}, ["there is none", "--max_new_tokens"]),
        ({"overlong_buffer": -1}, {}, ["'overlong_buffer'", "at least 0", "Got -1"]),
        ({"loss_agg": "seq-mean-token-sum-norm"}, {"max_new_tokens": None}, ["there is none", "--max_new_tokens"]),
        ({}, {"group_size": 1}, ["group_size=1", "baseline=mean", "--group_size to 2"]),
        ({"baseline": "leave-one-out"}, {"group_size": 1}, ["group_size=1", "baseline=leave-one-out"]),
        ({"adv_ddof": 4}, {"group_size": 4}, ["adv_ddof=4", "--adv_ddof below 4"]),
        ({"resample": True}, {}, ["filter_groups is false", "--filter_groups true"]),
        ({}, {"top_p": 0.9, "replays_kept_set": False}, ["top_p=0.9", "--top_p 1 --top_k 0"]),
        ({}, {"top_k": 5, "replays_kept_set": False}, ["top_k=5"]),
        ({"clip": -0.1}, {}, ["'clip'", "at least 0", "Got -0.1"]),
        ({"clip_high": -0.1}, {}, ["'clip_high'", "at least 0", "Got -0.1"]),
        ({"kl_coef": -0.1}, {}, ["'kl_coef'", "at least 0", "Got -0.1"]),
        ({"dual_clip": 1.0}, {}, ["'dual_clip'", "above 1", "Got 1.0"]),
        ({"correction_cap": 0.0}, {}, ["'correction_cap'", "above 0", "Got 0.0"]),
        ({"adv_eps": -1e-6}, {}, ["'adv_eps'", "at least 0"]),
        ({"adv_ddof": -1}, {}, ["'adv_ddof'", "at least 0"]),
        ({"gae_lambda": 1.1}, {}, ["'gae_lambda'", "between 0 and 1"]),
        ({"kl_coef": math.nan}, {}, ["'kl_coef'", "finite", "nan"]),
        ({"clip_high": math.inf}, {}, ["'clip_high'", "finite", "inf"]),
        ({"loss_agg": "mean"}, {}, ["'loss_agg'", "one of token-mean, seq-mean-token-mean", "'mean'"]),
        ({"resample": "yes"}, {}, ["'resample'", "true or false", "'yes'"]),
        ({"clip": "0.2"}, {}, ["'clip'", "a number", "'0.2'"]),
        ({"adv_ddof": 1.5}, {}, ["'adv_ddof'", "a whole number", "1.5"]),
    ],
)
def test_a_contradiction_is_one_sentence_with_the_value_and_the_way_out(
    fields: dict[str, object], run: dict[str, object], words: list[str]
) -> None:
    problems = refusals(forced(**fields), **{"group_size": 8, "max_new_tokens": 64, **run})
    assert len(problems) == 1
    assert "\n" not in problems[0]
    assert [word for word in words if word not in problems[0]] == []


def test_every_problem_is_reported_at_once() -> None:
    assert len(refusals(Objective(clip=-1, kl_coef=-1, resample=True), group_size=1)) == 4


@pytest.mark.parametrize(
    ("fields", "run"),
    [
        ({"kl_estimator": "k1", "kl_coef": 0.0}, {}),
        ({"kl_estimator": "k1", "kl_grad": "reverse"}, {}),
        ({"kl_estimator": "k1", "kl_place": "reward"}, {}),
        ({"overlong_buffer": 64}, {"max_new_tokens": 64}),
        ({"loss_agg": "seq-mean-token-sum-norm"}, {"max_new_tokens": None, "budget_from_task": True}),
        ({"old_logprobs": "sampler"}, {}),
        ({"adv_ddof": 4, "adv_norm": "none"}, {"group_size": 4}),
        ({"clip": 0.0, "clip_high": 0.0}, {}),
        ({"dual_clip": 3}, {}),
    ],
)
def test_what_is_unusual_but_possible_is_not_refused(fields: dict[str, object], run: dict[str, object]) -> None:
    problems = refusals(forced(**fields), **{"group_size": 8, "max_new_tokens": 64, **run})
    assert problems == []


def test_defaults_with_several_updates_leave_nothing_to_note() -> None:
    assert notes(Objective(), updates_per_step=2) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ratio_level": "sequence"}, ["ratio_level=sequence", "loss_agg=token-mean"]),
        ({"loss_agg": "seq-mean-token-sum-norm"}, ["adv_norm=std", "difficulty bias"]),
        ({"adv_norm": "none", "adv_eps": 0.1}, ["adv_eps=0.1 has no effect"]),
        ({"gae_lambda": 0.9}, ["gae_lambda=0.9 has no effect"]),
        ({"overlong_buffer": 8, "truncated": "mask"}, ["overlong_buffer=8", "truncated=mask"]),
        ({"surrogate": "none", "clip": 0.1}, ["clip=0.1 has no effect"]),
        ({"surrogate": "none", "clip_high": 0.1}, ["clip_high=0.1 has no effect"]),
        ({"surrogate": "none", "dual_clip": 3.0}, ["dual_clip=3.0 has no effect"]),
        ({"surrogate": "cispo", "dual_clip": 3.0}, ["dual_clip=3.0 has no effect", "cispo"]),
        ({"correction_cap": 5.0}, ["correction_cap=5.0 has no effect"]),
        ({"correction_level": "sequence"}, ["correction_level=sequence has no effect"]),
        ({"correction": "tis"}, ["one-token answers only"]),
        ({"correction": "tis", "correction_level": "sequence"}, ["exponentially"]),
        ({"correction": "mis", "correction_level": "geometric"}, ["no importance weight"]),
        ({"masked_tokens": "valid"}, ["masked_tokens=valid has no effect"]),
        ({"kl_coef": 0.0, "kl_grad": "reverse"}, ["kl_grad=reverse has no effect", "kl_coef is 0"]),
        ({"kl_coef": 0.0, "kl_place": "reward"}, ["kl_place=reward has no effect"]),
        (
            {"kl_place": "reward", "kl_estimator": "k2", "adv_norm": "none"},
            ["kl_estimator=k2 has no effect", "sum of k1"],
        ),
    ],
)
def test_a_note_says_what_has_no_effect_or_is_unusual(fields: dict[str, object], words: list[str]) -> None:
    objective = forced(**fields)
    said = notes(objective, updates_per_step=2)
    assert len(said) == 1
    assert [word for word in words if word not in said[0]] == []
    assert refusals(objective, group_size=8, max_new_tokens=64) == []


def test_an_uncapped_correction_does_not_read_the_cap() -> None:
    said = notes(Objective(correction="is", correction_cap=9.0), updates_per_step=2)
    assert any(note.startswith("correction_cap=9.0 has no effect") for note in said)


def test_bounds_do_nothing_with_a_single_update_per_batch() -> None:
    (note,) = notes(Objective(clip_high=0.28), updates_per_step=1)
    assert note.startswith("clip=0.2, clip_high=0.28 have no effect on the gradient")


def test_bounds_do_something_with_a_single_update_when_the_ratio_starts_from_the_sampler() -> None:
    assert notes(Objective(old_logprobs="sampler"), updates_per_step=1) == []


def test_dapo_is_told_of_its_papers_average() -> None:
    (note,) = notes(preset("dapo"), updates_per_step=2, preset="dapo")
    assert "loss_agg=group-mean-token-mean" in note
    as_written = dataclasses.replace(preset("dapo"), loss_agg="group-mean-token-mean")
    assert notes(as_written, updates_per_step=2, preset="dapo") == []


def test_leave_one_out_in_a_pair_never_scales() -> None:
    assert len(notes(Objective(baseline="leave-one-out"), updates_per_step=2, group_size=2)) == 1
    assert notes(Objective(baseline="leave-one-out"), updates_per_step=2, group_size=4) == []


def test_only_the_types_of_configuration_fields_are_understood() -> None:
    with pytest.raises(TypeError, match="list"):
        must_be(list[int], [1])


def test_a_union_without_none_takes_no_none() -> None:
    assert must_be(float | str, "0.5") is None
    assert must_be(float | str, None) == "a number or a string"
    assert must_be(float | None, None) is None
