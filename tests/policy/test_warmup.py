"""The supervised stage and its cache."""

from pathlib import Path

import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.policy.warmup import WarmUp, warm_up, warm_up_cached

EXAMPLES = [([48 + a, 43, 48 + b, 61], [*str(a + b).encode(), 257]) for a in range(5) for b in range(5)]
CALL = {"steps": 3, "batch_size": 4, "learning_rate": 1e-3, "seed": 1}


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def test_warm_up_learns_its_examples() -> None:
    policy, seen = load_policy("tiny"), []
    report = warm_up(
        policy,
        EXAMPLES,
        WarmUp(steps=25, batch_size=25, learning_rate=3e-3),
        progress=lambda step, loss: seen.append((step, loss)),
    )
    assert [step for step, _ in seen] == list(range(1, 26))
    assert seen[0][1] > 4.0
    assert report.loss == seen[-1][1] < 1.5
    assert all(p.grad is None for p in policy.model.parameters())
    assert policy.version == 0


def test_first_loss_is_the_mean_over_tokens_not_over_answers() -> None:
    policy = load_policy("tiny")
    batch = [([49], [50, 257]), ([49], [51, 52, 53, 54, 257])]
    expected = -float(policy.score([p for p, _ in batch], [c for _, c in batch]).logprobs.mean().detach())
    assert warm_up(policy, batch, WarmUp(steps=1, batch_size=2, learning_rate=1e-3)).loss == pytest.approx(expected)


def test_warm_up_is_a_function_of_its_arguments() -> None:
    first, again, other = (load_policy("tiny") for _ in range(3))
    for policy, seed in ((first, 1), (again, 1), (other, 2)):
        warm_up(policy, EXAMPLES, WarmUp(**CALL | {"seed": seed}))
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_warm_up_ends_once_the_mean_loss_is_low_enough_and_the_cache_remembers_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    call = {**CALL, "steps": 30, "stop_below": 100.0}
    assert warm_up_cached(load_policy("tiny"), EXAMPLES, WarmUp(**call)).steps == 20
    again = warm_up_cached(load_policy("tiny"), EXAMPLES, WarmUp(**call))
    assert (again.from_cache, again.steps) == (True, 20)


def test_zero_steps_change_nothing() -> None:
    policy = load_policy("tiny")
    before = weights(policy)
    warm_up(policy, EXAMPLES, WarmUp(**CALL | {"steps": 0}))
    assert torch.equal(weights(policy), before)


@pytest.mark.parametrize("change", [{"steps": -1}, {"batch_size": 0}, {"learning_rate": 0.0}])
def test_numbers_out_of_range_are_refused(tiny: Policy, change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        warm_up(tiny, EXAMPLES, WarmUp(**CALL | change))
    with pytest.raises(UsageError, match="examples"):
        warm_up(tiny, [], WarmUp(**CALL))


def test_second_call_takes_the_weights_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    first, again = load_policy("tiny"), load_policy("tiny")
    made = warm_up_cached(first, EXAMPLES, WarmUp(**CALL))
    found = warm_up_cached(again, EXAMPLES, WarmUp(**CALL))
    assert (made.from_cache, found.from_cache) == (False, True)
    assert (found.loss, found.steps) == (made.loss, 3)
    assert torch.equal(weights(first), weights(again))
    assert again.model.lm_head.weight is again.model.model.embed_tokens.weight


def test_every_argument_and_the_weights_are_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    warm_up_cached(load_policy("tiny"), EXAMPLES, WarmUp(**CALL))
    for change in ({"steps": 2}, {"batch_size": 5}, {"learning_rate": 2e-3}, {"seed": 2}):
        assert not warm_up_cached(load_policy("tiny"), EXAMPLES, WarmUp(**CALL | change)).from_cache
    assert not warm_up_cached(load_policy("tiny", seed=1), EXAMPLES, WarmUp(**CALL)).from_cache
    assert not warm_up_cached(load_policy("tiny"), EXAMPLES[1:], WarmUp(**CALL)).from_cache


def test_broken_cache_file_is_ignored_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPWEIGHT_CACHE", str(tmp_path))
    first = load_policy("tiny")
    warm_up_cached(first, EXAMPLES, WarmUp(**CALL))
    (file,) = tmp_path.glob("warmup/*/weights.safetensors")
    for rubbish in (b"", b"rubbish", file.read_bytes()[:1000]):
        file.write_bytes(rubbish)
        again = load_policy("tiny")
        assert not warm_up_cached(again, EXAMPLES, WarmUp(**CALL)).from_cache
        assert torch.equal(weights(first), weights(again))
        assert warm_up_cached(load_policy("tiny"), EXAMPLES, WarmUp(**CALL)).from_cache
