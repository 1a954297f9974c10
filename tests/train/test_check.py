"""What a run's configuration may not be."""

import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.train.args import TrainArgs
from upweight.train.check import check_args, check_room


def test_the_defaults_can_run() -> None:
    check_args(TrainArgs())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_steps": 0}, ["'max_steps'", "at least 1, in steps", "Got 0"]),
        ({"prompts_per_step": 0}, ["'prompts_per_step'", "at least 1", "Got 0"]),
        ({"group_size": 0}, ["'group_size'", "at least 1", "Got 0"]),
        ({"minibatches": 0}, ["'minibatches'", "at least 1"]),
        (
            {"minibatches": 9, "prompts_per_step": 4},
            ["'minibatches'", "at most prompts_per_step, 4", "--minibatches 4"],
        ),
        ({"epochs_per_batch": 0}, ["'epochs_per_batch'", "at least 1"]),
        ({"micro_batch_tokens": 0}, ["'micro_batch_tokens'", "in tokens"]),
        ({"max_new_tokens": 0}, ["'max_new_tokens'", "at least 1, in tokens"]),
        ({"resample_budget": 0}, ["'resample_budget'", "--resample false"]),
        ({"temperature": 0.0}, ["'temperature'", "above 0", "Got 0.0"]),
        ({"top_p": 0.0}, ["'top_p'", "above 0 and at most 1", "Got 0.0"]),
        ({"top_p": 1.5}, ["'top_p'", "at most 1", "Got 1.5"]),
        ({"top_k": -1}, ["'top_k'", "0 turns top-k off"]),
        ({"learning_rate": 0.0}, ["'learning_rate'", "above 0", "1e-5"]),
        ({"lr_warmup_steps": -1}, ["'lr_warmup_steps'", "at least 0"]),
        ({"weight_decay": -0.1}, ["'weight_decay'", "at least 0"]),
        ({"max_grad_norm": -1.0}, ["'max_grad_norm'", "at least 0"]),
        ({"sft_steps": -1}, ["'sft_steps'", "at least 0"]),
        ({"save_every": -1}, ["'save_every'", "at least 0"]),
        ({"eval_every": -1}, ["'eval_every'", "at least 0"]),
        ({"seed": -1}, ["'seed'", "at least 0"]),
        ({"seed": 2**63}, ["'seed'", "at most 2**63 - 1"]),
        ({"max_steps": 10**400}, ["'max_steps'", "at most 10**12"]),
        ({"max_new_tokens": 10**13}, ["'max_new_tokens'", "at most 10**12"]),
        ({"save_every": 10**13}, ["'save_every'", "at most 10**12"]),
        ({"device": "x"}, ["'device'", "auto, cpu, cuda or cuda:N", "'x'"]),
        ({"device": "cuda:"}, ["'device'", "auto, cpu, cuda or cuda:N"]),
        ({"learning_rate": float("nan")}, ["'learning_rate'", "finite"]),
        ({"dtype": "float16"}, ["'dtype'", "one of float32, bfloat16", "'float16'"]),
        ({"max_steps": "many"}, ["'max_steps'", "a whole number", "'many'"]),
        ({"group_size": "8"}, ["'group_size'", "a whole number", "'8'"]),
        ({"top_p": "most"}, ["'top_p'", "a number"]),
        ({"objective": Objective(clip=-1.0)}, ["'clip'", "at least 0"]),
        ({"objective": {"clip": 0.2}}, ["'objective'", "an Objective"]),
        ({"objective": Objective(clip=10**400)}, ["'clip'", "finite"]),
        ({"objective": Objective(overlong_buffer=65), "max_new_tokens": 64}, ["overlong_buffer=65"]),
        ({"group_size": 1}, ["group_size=1", "--group_size to 2"]),
    ],
)
def test_a_bad_field_is_one_sentence(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        check_args(TrainArgs(**fields))  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("device", ["auto", "cpu", "cpu:0", "cuda", "cuda:0", "cuda:12"])
def test_a_device_that_torch_can_read_is_left_to_torch(device: str) -> None:
    check_args(TrainArgs(device=device))
    assert device == "auto" or torch.device(device).type in ("cpu", "cuda")


@pytest.mark.parametrize(("model", "context"), [("tiny", 512), ("smollm2-135m", 8192)])
def test_a_budget_that_fills_a_known_context_is_refused(model: str, context: int) -> None:
    check_room(TrainArgs(model=model, max_new_tokens=context - 1))
    check_room(TrainArgs(model="somebody/unknown", max_new_tokens=context))
    with pytest.raises(UsageError, match=f"max_new_tokens={context} leaves no room .* {model}, {context} tokens"):
        check_room(TrainArgs(model=model, max_new_tokens=context))


def test_every_problem_has_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        check_args(TrainArgs(max_steps=0, top_k=-1, objective=Objective(resample=True)))
    assert len(str(caught.value).splitlines()) == 3


def test_the_engine_decides_what_a_run_may_ask_for() -> None:
    args = TrainArgs(top_p=0.9, objective=Objective(correction="tis"))
    check_args(args)
    with pytest.raises(UsageError, match="correction=tis"):
        check_args(args, has_sampler_logprobs=False)
    with pytest.raises(UsageError, match=r"top_p=0\.9"):
        check_args(args, replays_kept_set=False)


def test_sum_norm_waits_for_the_tasks_budget() -> None:
    args = TrainArgs(objective=Objective(loss_agg="seq-mean-token-sum-norm"))
    check_args(args)
    with pytest.raises(UsageError, match="generation budget"):
        check_args(args, budget_from_task=False)
