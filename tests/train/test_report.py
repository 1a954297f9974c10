"""The report of a step, and what the glossary says about it."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from upweight.objective.spec import Objective
from upweight.rollout.completion import FinishReason
from upweight.train.records import Group, Sampled, StepReport
from upweight.train.step import Learner, training_step

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


def test_every_field_of_the_report_is_in_the_glossary() -> None:
    """A metric that nobody explains is noise."""
    explained = set(re.findall(r"^\| `(\w+)` \|", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {field.name for field in dataclasses.fields(StepReport)} - explained == set()


def test_the_report_describes_everything_sampled_and_trains_on_the_rest(
    group: Callable[..., Group], completion: Any, learner: Callable[..., Learner]
) -> None:
    """B61: discarded groups count in reward, informative, resp_len, truncated, unscored and tokens."""
    kept = group([1.0, 0.0], [2, 2], row=0)
    answers = [completion([97] * 8, reason=FinishReason.LENGTH), completion([98] * 4)]
    lost = group([math.nan, 0.0], row=1, completions=answers)

    class Source:
        def next_groups(self, count: int) -> Sampled:
            return Sampled(groups=(kept,), discarded=(lost,), rounds=2)

    work = dataclasses.replace(learner([]), source=Source())
    report, _ = training_step(work, 3)
    assert report.step == 3
    assert report.reward == pytest.approx(1 / 3)
    assert (report.informative, report.resp_len, report.truncated) == (0.5, 4.0, 0.25)
    assert (report.unscored, report.tokens, report.trained_tokens) == (1, 16, 4)
    assert (report.filtered_groups, report.rounds, report.updates) == (1, 2, 1)


def test_groups_that_the_filter_takes_out_are_counted(
    group: Callable[..., Group], learner: Callable[..., Learner]
) -> None:
    """--filter_groups without --resample."""
    groups = [group([1.0, 0.0], row=0), group([1.0, 1.0], row=1), group([0.0, 0.0], row=2)]
    report, _ = training_step(learner(groups, objective=Objective(kl_coef=0.0, filter_groups=True)), 1)
    assert (report.filtered_groups, report.informative) == (2, pytest.approx(1 / 3))


def test_a_step_that_trained_on_nothing_has_no_policy_numbers(
    group: Callable[..., Group], learner: Callable[..., Learner], policy: Any
) -> None:
    """A number that does not exist is null, never 0: an entropy of 0 would look like collapse."""
    work = learner([group([math.nan] * 2)], reference=policy.frozen_copy(), objective=Objective())
    report, _ = training_step(work, 1)
    absent = "reward reward_shaped entropy sampled_nll kl clipfrac ratio_mean ratio_p99 ratio_max ess mismatch_max"
    assert {name: getattr(report, name) for name in absent.split()} == dict.fromkeys(absent.split())
    assert (report.skipped_updates, report.unscored, report.trained_tokens) == (1, 2, 0)


def test_the_losses_of_several_updates_are_averaged(
    group: Callable[..., Group], learner: Callable[..., Learner], recording: Any, policy: Any
) -> None:
    """loss and grad_norm are means over the updates; sums and counts add up before they are divided."""
    groups = [group([1.0, 0.0], [1, 2], row=0), group([0.0, 1.0], [8, 1], row=1)]
    work, recorder = recording(groups, policy, minibatches=2)
    report, _ = training_step(work, 1)
    norms = [float(gradient.norm()) for gradient in recorder.gradients]
    assert report.grad_norm == pytest.approx(sum(norms) / 2, rel=1e-5)
    assert report.updates == 2


def test_tails_are_those_of_the_largest_tokens(
    group: Callable[..., Group], completion: Any, learner: Callable[..., Learner], policy: Any
) -> None:
    """mismatch_max and mismatch_p99 are not averages: one token of eight is 3 nats off."""
    with torch.no_grad():
        own = policy.score([[65, 66, 67]], [[97, 98, 99, 100]]).logprobs
    off = own - torch.tensor([0.0, 0.0, 3.0, 0.0])
    answers = [completion([97, 98, 99, 100], off.tolist()), completion([97, 98, 99, 100], own.tolist())]
    report, _ = training_step(learner([group([1.0, 0.0], completions=answers)]), 1)
    assert report.mismatch == pytest.approx(3 / 8, abs=1e-4)
    assert report.mismatch_max == report.mismatch_p99 == pytest.approx(3.0, abs=1e-4)
