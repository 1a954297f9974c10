"""Every refusal is one sentence that names the parameter, what it must be and what it got."""

import jaxtyping
import pytest
import torch

from upweight.objective.advantage import gae, group_advantages, informative_groups
from upweight.objective.correction import correction_terms
from upweight.objective.dense import aggregate_token_loss, grpo_loss, token_weights
from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.presets import preset
from upweight.objective.shaping import overlong_penalty
from upweight.objective.surrogate import clip_surrogate

NAN, INF = float("nan"), float("inf")
TWO = torch.tensor([1.0, 0.0])
PADDED = torch.full((2, 3), -1.0)


def loss_with(**options: object) -> object:
    arguments = {"logprobs": PADDED, "old_logprobs": PADDED, "advantages": TWO, "mask": torch.ones(2, 3), **options}
    return grpo_loss(**arguments)


@pytest.fixture(autouse=True)
def _no_shape_checks_but_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user meets: the checks that tests put around every call would speak first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    ("options", "name", "got"),
    [
        ({"clip": -0.1}, "clip", "-0.1"),
        ({"clip": NAN}, "clip", "nan"),
        ({"clip_high": -0.28}, "clip_high", "-0.28"),
        ({"kl_coef": -0.04}, "kl_coef", "-0.04"),
        ({"dual_clip": 1.0}, "dual_clip", "1.0"),
        ({"dual_clip": NAN}, "dual_clip", "nan"),
        ({"ratio_level": "answer"}, "ratio_level", "'answer'"),
        ({"surrogate": "ppo"}, "surrogate", "'ppo'"),
        ({"kl_grad": "forward"}, "kl_grad", "'forward'"),
        ({"masked_tokens": "drop"}, "masked_tokens", "'drop'"),
        ({"correction": "mix"}, "correction", "'mix'"),
        ({"correction_level": "answer"}, "correction_level", "'answer'"),
        ({"loss_agg": "seq-mean-token-sum-norm"}, "max_length", "None"),
        ({"loss_agg": "group-mean-token-mean"}, "group_ids", "None"),
        ({"kl_coef": 0.1}, "ref_logprobs", "None"),
        ({"kl_coef": 0.1, "kl_estimator": "k1", "ref_logprobs": PADDED}, "kl_estimator", "'k1'"),
        ({"correction": "tis"}, "sampler_logprobs", "None"),
        ({"correction": "tis", "correction_cap": 0.0, "sampler_logprobs": PADDED}, "correction_cap", "0.0"),
        ({"correction": "mis", "correction_cap": NAN, "sampler_logprobs": PADDED}, "correction_cap", "nan"),
        ({"mask": torch.tensor([[1, 2, 0], [1, 1, 1]])}, "mask", "2"),
        ({"mask": torch.tensor([[1.0, 0.5, 0.0], [1, 1, 1]])}, "mask", "0.5"),
        ({"mask": torch.tensor([[1.0, NAN, 0.0], [1, 1, 1]])}, "mask", "nan"),
        ({"logprobs": PADDED[:1]}, "logprobs", "(1, 3)"),
        ({"old_logprobs": PADDED[:, :1]}, "old_logprobs", "(2, 1)"),
        ({"ref_logprobs": PADDED[0]}, "ref_logprobs", "(3,)"),
        ({"sampler_logprobs": PADDED[:, :2]}, "sampler_logprobs", "(2, 2)"),
        ({"weights": PADDED[:1]}, "weights", "(1, 3)"),
        ({"advantages": torch.ones(3)}, "advantages", "(3,)"),
        ({"advantages": torch.ones(2, 1)}, "advantages", "(2, 1)"),
    ],
)  # fmt: skip
def test_the_loss_refuses_what_it_cannot_mean(options: dict[str, object], name: str, got: str) -> None:
    """B37, B43: a setting that is wrong is named, never ignored."""
    with pytest.raises(UsageError) as refusal:
        loss_with(**options)
    assert f"The '{name}' parameter of " in str(refusal.value)
    assert f"Got {got} instead." in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "name", "got"),
    [
        ({"kl_estimator": "k9"}, "kl_estimator", "'k9'"),
        ({"surrogate": "cispo", "dual_clip": 0.5}, "dual_clip", "0.5"),
        ({"loss_agg": "mean"}, "loss_agg", "'mean'"),
        ({"loss_agg": "mean", "weights": PADDED}, "loss_agg", "'mean'"),
        ({"loss_agg": "group-mean-token-mean", "group_ids": torch.tensor([0])}, "group_ids", "(1,)"),
        ({"loss_agg": "group-mean-token-mean", "group_ids": torch.tensor([0, 0, 1])}, "group_ids", "(3,)"),
    ],
)
def test_the_loss_refuses_a_wrong_choice_even_where_it_is_not_read(
    options: dict[str, object], name: str, got: str
) -> None:
    """B37."""
    with pytest.raises(UsageError) as refusal:
        loss_with(**options)
    assert f"The '{name}' parameter of " in str(refusal.value)
    assert f"Got {got} instead." in str(refusal.value)


def test_the_naive_k1_says_what_to_do_instead() -> None:
    with pytest.raises(UsageError, match=r"expected gradient is 0.*kl_grad='reverse', k2 or k3.*into the reward"):
        loss_with(kl_coef=0.1, kl_estimator="k1", ref_logprobs=PADDED)


@pytest.mark.parametrize(
    ("mode", "options", "name", "got"),
    [
        ("mean", {}, "mode", "'mean'"),
        ("seq-mean-token-sum-norm", {}, "max_length", "None"),
        ("seq-mean-token-sum-norm", {"max_length": 0}, "max_length", "0"),
        ("group-mean-token-mean", {}, "group_ids", "None"),
    ],
)
def test_weights_refuse_a_mode_that_lacks_what_it_needs(
    mode: str, options: dict[str, object], name: str, got: str
) -> None:
    for call in (lambda: token_weights(torch.ones(2, 3), mode, **options),
                 lambda: aggregate_token_loss(PADDED, torch.ones(2, 3), mode, **options)):  # fmt: skip
        with pytest.raises(UsageError) as refusal:
            call()
        assert f"The '{name}' parameter of " in str(refusal.value)
        assert f"Got {got} instead." in str(refusal.value)


def test_weights_refuse_a_mask_that_is_neither_boolean_nor_zero_and_one() -> None:
    for call in (lambda: token_weights(torch.tensor([[0.5]])), lambda: aggregate_token_loss(PADDED, PADDED)):
        with pytest.raises(
            UsageError, match=r"The 'mask' parameter of .* must be bool or 0/1\. Got (0\.5|-1\.0) instead"
        ):
            call()


@pytest.mark.parametrize(
    ("options", "name", "got"),
    [
        ({"scale": "var"}, "scale", "'var'"),
        ({"baseline": "critic"}, "baseline", "'critic'"),
        ({"group_size": 3}, "group_size", "3"),
        ({"group_size": 0}, "group_size", "0"),
        ({"group_size": 2, "group_ids": [0, 0]}, "group_size", "2"),
        ({"group_ids": [0, 0, 1]}, "group_ids", "(3,)"),
        ({"rewards": torch.tensor([1.0, INF])}, "rewards", "inf"),
        ({"rewards": torch.tensor([-INF, 0.0])}, "rewards", "-inf"),
    ],
)
def test_advantages_refuse_what_they_cannot_mean(options: dict[str, object], name: str, got: str) -> None:
    """B37."""
    arguments = {"rewards": TWO, **options}
    with pytest.raises(UsageError) as refusal:
        group_advantages(**arguments)
    assert f"The '{name}' parameter of group_advantages must be " in str(refusal.value)
    assert f"Got {got} instead." in str(refusal.value)


def test_the_filter_refuses_ids_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match=r"The 'group_ids' parameter of .* one id per answer"):
        informative_groups(TWO, [0])


@pytest.mark.parametrize(
    ("options", "name"), [({"gamma": 1.1}, "gamma"), ({"lam": -0.1}, "lam"), ({"lam": NAN}, "lam")]
)
def test_gae_refuses_discounts_outside_zero_and_one(options: dict[str, float], name: str) -> None:
    with pytest.raises(UsageError, match=rf"The '{name}' parameter of gae must be in \[0, 1\]\."):
        gae(PADDED, PADDED, torch.ones(2, 3), **options)


@pytest.mark.parametrize("buffer", [-1, 101])
def test_the_overlong_buffer_may_not_exceed_the_budget(buffer: int) -> None:
    with pytest.raises(UsageError, match=rf"'buffer'.*between 0 and max_length \(100\)\. Got {buffer} instead"):
        overlong_penalty(torch.tensor([1]), 100, buffer)


def test_the_flat_functions_refuse_as_well() -> None:
    flat, ids = torch.zeros(2), torch.tensor([0, 1])
    with pytest.raises(UsageError, match=r"'correction'.*Got 'iss' instead"):
        correction_terms(flat, flat, ids, kind="iss")
    with pytest.raises(UsageError, match=r"'correction_level'.*Got 'row' instead"):
        correction_terms(flat, flat, ids, level="row")
    with pytest.raises(UsageError, match=r"'dual_clip'.*above 1.*Got 0.5 instead"):
        clip_surrogate(flat, flat, low=0.8, high=1.2, dual_clip=0.5)


def test_an_unknown_preset_is_answered_with_the_table() -> None:
    with pytest.raises(UsageError, match=r"'preset'.*grpo, grpo-paper, dr-grpo, dapo, gspo, cispo, ppo.*Got 'grpoo'"):
        preset("grpoo")


def test_a_usage_error_is_a_value_error_and_cuts_long_values_short() -> None:
    error = bad_parameter("rewards", "train", "short", "x" * 500, "Say less.")
    assert isinstance(error, ValueError)
    assert len(str(error)) < 160
    assert str(error).endswith("... instead. Say less.")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rewards": TWO.view(2, 1)}, r"'rewards'.*of shape \[B\]\. Got \(2, 1\) instead\. .*group_size"),
        ({"ddof": -1}, r"'ddof'.*at least 0\. Got -1 instead"),
        ({"eps": -0.5}, r"'eps'.*at least 0\. Got -0\.5 instead"),
        ({"eps": NAN}, r"'eps'.*at least 0\. Got nan instead"),
    ],
)
def test_a_std_that_could_be_negative_and_rewards_in_a_table_are_refused(
    options: dict[str, object], sentence: str
) -> None:
    """Dividing by a std of 0 or below would turn right into wrong."""
    with pytest.raises(UsageError, match=sentence):
        group_advantages(**{"rewards": TWO, **options})


def test_a_mask_without_rows_is_refused() -> None:
    """Every token would count as an answer of its own."""
    for call in (
        lambda mask: token_weights(mask),
        lambda mask: loss_with(logprobs=PADDED[0], old_logprobs=None, advantages=torch.ones(3), mask=mask),
        lambda mask: gae(PADDED[0], PADDED[0], mask),
    ):
        with pytest.raises(UsageError, match=r"'mask'.*of shape \[B, T\]\. Got \(3,\) instead"):
            call(torch.ones(3))


@pytest.mark.parametrize(("name", "shape"), [("rewards", (1, 3)), ("values", (2, 4))])
def test_gae_does_not_broadcast(name: str, shape: tuple[int, int]) -> None:
    """A row of rewards for two answers would be taken as both's."""
    tensors = {"rewards": PADDED, "values": PADDED, name: torch.zeros(shape)}
    with pytest.raises(UsageError, match=rf"'{name}'.*the mask's shape \(2, 3\)"):
        gae(**tensors, mask=torch.ones(2, 3))
