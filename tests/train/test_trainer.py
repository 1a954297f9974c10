"""A whole run in this process, on a model of a few thousand weights."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import upweight.train.held_out as held_out_room
import upweight.train.run as room
from upweight import TrainArgs, Trainer
from upweight.objective.errors import UsageError
from upweight.objective.presets import preset
from upweight.objective.spec import Objective
from upweight.policy import variants
from upweight.policy.policy import Policy
from upweight.policy.variants import Float32Linear
from upweight.rewards.contract import RewardError
from upweight.rollout.completion import Sampling
from upweight.rollout.engine import LocalEngine
from upweight.train.handshake import HandshakeError
from upweight.train.launch import Launch
from upweight.train.resolve import resolve_args
from upweight.train.run import TrainResult
from upweight.train.saving.begun import flat_config
from upweight.train.trainer import _named

ROWS = [{"prompt": f"say {n}", "answer": "x", "level": n} for n in range(6)]


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(c.islower() for c in text) / max(1, len(text)) for text in completions]


Run = Callable[..., TrainResult]


@pytest.fixture
def run(policy: Policy, tmp_path: Path) -> Run:
    """Trains the small policy for two steps on six rows, into RUN; keywords go into the configuration."""

    def go(rows: Any = ROWS, reward: Any = letters, eval_rows: Any = None, **fields: Any) -> TrainResult:
        defaults: dict[str, Any] = {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 2,
            "prompts_per_step": 3,
            "group_size": 4,
            "max_new_tokens": 6,
            "lr_warmup_steps": 0,
            "objective": Objective(kl_coef=0.0),
        }
        args = TrainArgs(**{**defaults, **fields})
        return Trainer(policy.model, reward, args, rows, eval_rows, policy.tokenizer).train()

    return go


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_leaves_what_it_promises(run: Run, tmp_path: Path) -> None:
    """config.json, a metrics row a step, rollouts, evaluations, a checkpoint, a curve, and no lock."""
    result = run(eval_rows=ROWS[:2])
    assert result.folder == tmp_path / "run"
    assert sorted(path.name for path in result.folder.iterdir()) == [
        "checkpoint-2",
        "config.json",
        "curve.png",
        "evaluations.jsonl",
        "metrics.jsonl",
        "rewards.json",
        "rollouts",
    ]
    assert [row["step"] for row in rows_of(result.folder / "metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in rows_of(result.folder / "evaluations.jsonl")] == [0, 2]
    assert [path.name for path in sorted((result.folder / "rollouts").iterdir())] == [
        "step-00001.jsonl",
        "step-00002.jsonl",
    ]
    assert len(rows_of(result.folder / "rollouts" / "step-00001.jsonl")) == 12
    assert result.steps == 2
    assert result.checkpoint == result.folder / "checkpoint-2"
    assert result.before is not None
    assert result.after is not None


def test_a_checkpoint_loads_with_the_auto_classes_and_answers_the_same(run: Run, policy: Policy) -> None:
    """Weights, configuration and tokenizer; greedy answers of the copy are those of the trained policy."""
    result = run()
    copy = Policy(
        model=AutoModelForCausalLM.from_pretrained(result.checkpoint),
        tokenizer=AutoTokenizer.from_pretrained(result.checkpoint),
        name="copy",
    )
    prompts = [[115, 97, 121, 32, 48 + n] for n in range(4)]
    greedy = Sampling(max_new_tokens=12, temperature=0.0)
    ours, theirs = (LocalEngine(p).generate(prompts, 1, greedy) for p in (policy, copy))
    assert [g[0].token_ids for g in ours] == [g[0].token_ids for g in theirs]
    assert (result.checkpoint / "model.safetensors").exists()
    assert copy.tokenizer("say 1")["input_ids"] == policy.tokenizer("say 1")["input_ids"]


def test_checkpoints_come_as_often_as_asked_and_at_the_end(run: Run) -> None:
    """--save_every 2 of 3 steps; --eval_every 1."""
    result = run(max_steps=3, save_every=2, eval_every=1, eval_rows=ROWS[:1])
    assert sorted(path.name for path in result.folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert [row["step"] for row in rows_of(result.folder / "evaluations.jsonl")] == [0, 1, 2, 3]


def test_the_saved_configuration_is_the_one_that_ran(run: Run) -> None:
    """B43: everything resolved, flat, as the flags are spelled; nothing that is decided by the run is null."""
    objective = Objective(kl_coef=0.1, clip=0.3)
    result = run(objective=objective, learning_rate=0.02, top_k=5)
    config = json.loads((result.folder / "config.json").read_text())
    assert (config["kl_coef"], config["clip"], config["learning_rate"], config["top_k"]) == (0.1, 0.3, 0.02, 5)
    decided = "max_new_tokens learning_rate sft_steps output_dir device overlong_buffer reward"
    assert [name for name in decided.split() if config[name] is None] == []
    assert set(config) == set(flat_config(TrainArgs()))
    assert [row["kl"] is None for row in rows_of(result.folder / "metrics.jsonl")] == [False, False]


def test_the_saved_configuration_says_which_model_and_reward_were_handed_in(run: Run) -> None:
    """Not the defaults of flags that nobody read."""
    config = json.loads((run().folder / "config.json").read_text())
    assert (config["model"], config["task"], config["reward"]) == ("LlamaForCausalLM", "rows", "letters")


def test_a_model_that_is_handed_in_is_not_treated_as_tiny(policy: Policy) -> None:
    """The default --model is tiny: its warm-up and its learning rate are not for a model of one's own."""
    trainer = Trainer(policy.model, processing_class=policy.tokenizer)
    args = resolve_args(trainer.args, trainer._task(chat=False), "cpu")
    assert (args.sft_steps, args.learning_rate) == (0, 1e-5)


def test_a_data_file_named_after_the_task_has_no_worked_answers_either(tmp_path: Path) -> None:
    """The warm-up depends on what the data offers, not on what it is called."""
    (tmp_path / "arithmetic.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    trainer = Trainer("tiny", args=TrainArgs(data=str(tmp_path / "arithmetic.jsonl")))
    assert resolve_args(trainer.args, trainer._task(chat=False), "cpu").sft_steps == 0
    assert resolve_args(TrainArgs(), Trainer("tiny")._task(chat=False), "cpu").sft_steps > 0


def test_the_sampler_gets_the_configured_distribution(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temperature, top-p, top-k, budget and seed; greedy for the evaluations alone."""
    seen: list[Sampling] = []
    real = LocalEngine.generate

    def spy(self: LocalEngine, prompts: Any, n: int, sampling: Sampling, **keys: Any) -> Any:
        seen.append(sampling)
        return real(self, prompts, n, sampling, **keys)

    monkeypatch.setattr(LocalEngine, "generate", spy)
    run(eval_rows=ROWS[:1], temperature=0.7, top_p=0.9, top_k=9, seed=5)
    trained = Sampling(max_new_tokens=6, temperature=0.7, top_p=0.9, top_k=9, seed=5)
    greedy = Sampling(max_new_tokens=6, temperature=0.0)
    assert seen == [greedy, trained, trained, trained, greedy]


def test_weight_decay_reaches_the_optimiser(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """Decoupled: lr * decay = 0.5 takes half of every weight a step, beside Adam's own 0.01."""
    policy = policy_of()
    norm = sum(float(p.detach().norm()) ** 2 for p in policy.model.parameters())
    args = TrainArgs(
        output_dir=str(tmp_path / "run"),
        max_steps=2,
        prompts_per_step=3,
        group_size=4,
        max_new_tokens=6,
        lr_warmup_steps=0,
        learning_rate=1e-4,
        lr_schedule="constant",
        weight_decay=5e3,
        objective=Objective(kl_coef=0.0),
    )
    Trainer(policy.model, letters, args, ROWS, processing_class=policy.tokenizer).train()
    assert sum(float(p.detach().norm()) ** 2 for p in policy.model.parameters()) == pytest.approx(norm / 16, rel=0.02)


def test_without_a_kl_no_reference_is_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """B102: one copy of the model; with a KL in loss or reward there are two."""
    copies: list[str] = []
    real = Policy.frozen_copy
    monkeypatch.setattr(Policy, "frozen_copy", lambda policy: copies.append(policy.name) or real(policy))
    result = run(objective=Objective(kl_coef=0.0))
    assert copies == []
    assert {row["kl"] for row in rows_of(result.folder / "metrics.jsonl")} == {None}


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_with_a_kl_the_reference_is_the_policy_before_the_first_step(run: Run, place: str) -> None:
    """B102: a KL in the loss or in the reward; it starts at 0."""
    result = run(objective=Objective(kl_coef=0.1, kl_place=place), learning_rate=0.01)  # type: ignore[arg-type]
    first, second = (row["kl"] for row in rows_of(result.folder / "metrics.jsonl"))
    assert first == pytest.approx(0.0, abs=1e-6)
    assert second > 1e-5


def test_a_sampler_that_disagrees_stops_the_run_before_the_first_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B57: nothing is trained, and the lock is given back."""
    real = LocalEngine.generate

    def raw(self: LocalEngine, *args: Any, **kwargs: Any) -> Any:
        return [
            [dataclasses.replace(c, logprobs=tuple(p - 1.0 for p in c.logprobs)) for c in group]
            for group in real(self, *args, **kwargs)
        ]

    monkeypatch.setattr(LocalEngine, "generate", raw)
    with pytest.raises(HandshakeError, match="disagree"):
        run()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / "lock").exists()


def test_the_handshake_leaves_the_prompt_stream_alone(run: Run) -> None:
    """Every row of the first epoch is trained on once."""
    result = run()
    rows = [row["row"] for path in result.folder.glob("rollouts/*") for row in rows_of(path) if row["sample"] == 0]
    assert sorted(rows) == list(range(6))


@pytest.mark.parametrize(
    ("fields", "keywords", "sentence"),
    [
        ({"group_size": 1}, {}, "group_size=1"),
        ({"max_new_tokens": 95}, {}, r"(?s)context of 96, a prompt may have 1 tokens.*row 0: 5 tokens"),
        ({"sft_steps": 3}, {}, "--sft_steps 0"),
        ({"device": "cuda:99"}, {}, "cuda:99"),
        ({}, {"rows": []}, "no rows"),
        ({}, {"rows": [{"answer": "x"}]}, "no 'prompt'"),
        ({}, {"rows": [{"prompt": "p"}], "reward": "exact"}, "answer"),
        ({}, {"rows": [{"prompt": "p"}], "reward": lambda completions, gold: []}, "column 'gold'"),
        ({}, {"rows": None, "eval_rows": ROWS}, "eval_dataset"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, fields: dict[str, Any], keywords: dict[str, Any], sentence: str
) -> None:
    """One sentence, and no folder."""
    with pytest.raises(UsageError, match=sentence):
        run(**keywords, **fields)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_its_tokenizer_is_refused(policy: Policy) -> None:
    """The way out is named."""
    with pytest.raises(UsageError, match="processing_class"):
        Trainer(policy.model)


def test_a_trl_reward_function_gets_what_it_expects(run: Run) -> None:
    """Keyword call, columns as lists, one entry per completion, completion ids."""
    calls: list[dict[str, Any]] = []

    def reward(prompts: Any, completions: Any, level: Any, completion_ids: Any, **rest: Any) -> list[float]:
        calls.append({"prompts": prompts, "level": level, "ids": completion_ids, "rest": sorted(rest)})
        return [float(len(ids)) for ids in completion_ids]

    run(reward=reward)
    last = calls[-1]
    assert {len(last["prompts"]), len(last["level"]), len(last["ids"])} == {12}
    assert [f"say {n}" for n in last["level"]] == last["prompts"]
    assert last["rest"] == ["answer"]


def test_an_async_reward_and_a_second_one_add_up(run: Run) -> None:
    """Two functions, one of them a coroutine function."""

    async def two(completions: list[str], **_: Any) -> list[float]:
        return [2.0] * len(completions)

    result = run(reward=[letters, two])
    [alone, *_] = rows_of(result.folder / "metrics.jsonl")
    assert 2.0 <= alone["reward"] <= 3.0


def test_none_means_nothing_to_say_and_is_not_0(run: Run) -> None:
    """A function that judges no answer leaves nothing to train on, and the run goes on."""
    result = run(reward=lambda completions, **_: [None] * len(completions))
    for row in rows_of(result.folder / "metrics.jsonl"):
        assert (row["reward"], row["unscored"], row["skipped_updates"], row["entropy"]) == (None, 12, 1, None)


def test_held_out_answers_that_nobody_could_judge_do_not_end_the_run(run: Run) -> None:
    """An accuracy of null in evaluations.jsonl, and the curve is drawn without it."""
    result = run(reward=lambda completions, **_: [None] * len(completions), eval_rows=ROWS[:2])
    assert [row["accuracy"] for row in rows_of(result.folder / "evaluations.jsonl")] == [None, None]
    assert (result.folder / "curve.png").stat().st_size > 1000


def test_a_list_of_messages_needs_a_chat_template(run: Run, tmp_path: Path) -> None:
    """The tokenizer of the small policy has none: the row and the way out are named."""
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "answer": "x"}]
    with pytest.raises(UsageError, match="chat template"):
        run(rows=rows)
    assert list(tmp_path.iterdir()) == []


def test_resampling_that_finds_nothing_leaves_a_run_of_empty_steps(run: Run) -> None:
    """B61: dapo with truncated answers masked, every answer wrong: two steps of four rounds, trained on nothing."""
    objective = dataclasses.replace(preset("dapo", max_new_tokens=6), truncated="mask")
    result = run(reward=lambda completions, **_: [0.0] * len(completions), objective=objective)
    for row in rows_of(result.folder / "metrics.jsonl"):
        assert (row["rounds"], row["informative"], row["trained_tokens"]) == (4, 0.0, 0)
        assert (row["updates"], row["skipped_updates"]) == (0, 1)


def test_the_same_seed_gives_the_same_run(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """Every number but the times, and the weights bit for bit; another seed gives another run."""
    rows, weights = [], []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        policy = policy_of()
        args = TrainArgs(
            output_dir=str(tmp_path / name), seed=seed, max_steps=3, prompts_per_step=3, group_size=4, max_new_tokens=6
        )
        Trainer(policy.model, letters, args, ROWS, processing_class=policy.tokenizer).train()
        table = rows_of(tmp_path / name / "metrics.jsonl")
        timed = ("seconds", "sample_seconds", "tokens_per_second")
        rows.append([{key: value for key, value in row.items() if key not in timed} for row in table])
        weights.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert rows[0] == rows[1]
    assert torch.equal(weights[0], weights[1])
    assert rows[0] != rows[2]


def test_bfloat16_weights_train(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """Two steps; the handshake allows what bfloat16 needs, also where the model brings its own dtype."""
    policy = policy_of(dtype=torch.bfloat16)
    args = TrainArgs(
        output_dir=str(tmp_path / "run"),
        max_steps=2,
        prompts_per_step=3,
        group_size=4,
        max_new_tokens=6,
    )
    Trainer(policy.model, letters, args, ROWS, processing_class=policy.tokenizer).train()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dtype"] == "bfloat16"
    for row in rows_of(tmp_path / "run" / "metrics.jsonl"):
        assert row["updates"] == 1
        assert row["grad_norm"] > 0
        assert 0 < row["mismatch"] < 0.05


@pytest.mark.parametrize("when", ["evaluation", "update", "sampling", "before"])
def test_a_signal_is_answered_by_a_checkpoint_of_the_last_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """In the evaluation after a step or in its update: that step is whole. While it samples, or before: it is not."""
    import os
    import signal

    import upweight.train.step as steps_room

    if when == "evaluation":
        real = held_out_room.answered

        def evaluate(*args: Any) -> Any:
            if (tmp_path / "run" / "metrics.jsonl").exists():
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*args)

        monkeypatch.setattr(held_out_room, "answered", evaluate)
    elif when in ("update", "sampling"):
        place, name = (steps_room, "make_batch") if when == "update" else (room, "training_step")
        real = getattr(place, name)

        def stopped(*args: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return real(*args)

        monkeypatch.setattr(place, name, stopped)
    else:
        enter = room.Console.__enter__

        def early(self: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return enter(self)

        monkeypatch.setattr(room.Console, "__enter__", early)
    with pytest.raises(SystemExit) as caught:
        run(max_steps=50, eval_every=1, eval_rows=ROWS[:1])
    assert caught.value.code == 143
    steps = 1 if when in ("evaluation", "update") else 0
    written = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if steps else []
    assert len(written) == steps
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == [f"checkpoint-{steps}"]
    assert (tmp_path / "run" / f"checkpoint-{steps}" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "lock").exists()
    evaluated = [row["step"] for row in rows_of(tmp_path / "run" / "evaluations.jsonl")]
    assert evaluated == [0]


def test_a_reward_that_fails_in_the_last_evaluation_does_not_cost_the_checkpoint(run: Run, tmp_path: Path) -> None:
    """What was trained is saved before it is looked at."""

    def strict(completions: list[str], prompts: list[str], **_: Any) -> list[float]:
        trained = (tmp_path / "run" / "rollouts" / "step-00002.jsonl").exists()
        return [float("inf") if trained and prompt == "held out" else 1.0 for prompt in prompts]

    with pytest.raises(RewardError):
        run(reward=strict, eval_rows=[{"prompt": "held out", "answer": "x"}])
    assert (tmp_path / "run" / "checkpoint-2" / "model.safetensors").exists()


def test_a_run_that_fails_saves_the_weights_it_had(run: Run, tmp_path: Path) -> None:
    """A reward function that returns nonsense in the second step costs that step, not the run."""
    calls = []

    def breaks(completions: list[str], **_: Any) -> list[float]:
        calls.append(len(completions))
        return [float("nan")] * len(completions) if calls.count(12) == 2 else letters(completions)

    with pytest.raises(RewardError, match="breaks"):
        run(reward=breaks)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-1")


def test_an_overlong_buffer_above_the_tasks_budget_is_refused_before_a_model_is_loaded() -> None:
    args = TrainArgs(objective=Objective(overlong_buffer=100))
    with pytest.raises(UsageError, match=r"overlong_buffer=100.*max_new_tokens=8"):
        Trainer(args=args).check()


@pytest.mark.parametrize("said", [[], ()])
def test_no_reward_function_is_not_the_tasks_own(said: Any) -> None:
    with pytest.raises(UsageError, match="at least one reward function"):
        Trainer(reward_funcs=said)


def test_the_saved_device_is_one_gpu_only_where_that_was_asked_for() -> None:
    """Any other would keep a run that goes on, or its config.json, from several processes."""
    named = [_named(asked, torch.device(place)) for asked, place in (("auto", "cuda:0"), ("cuda", "cuda:3"))]
    assert named == ["cuda", "cuda"]
    assert _named("cuda:1", torch.device("cuda:1")) == "cuda:1"
    assert _named("auto", torch.device("cpu")) == "cpu"


def two_steps(policy: Policy, folder: Path, launch: Launch | None = None, **fields: Any) -> TrainResult:
    shape: dict[str, Any] = {"max_steps": 2, "prompts_per_step": 3, "group_size": 4, "max_new_tokens": 6}
    args = TrainArgs(output_dir=str(folder), objective=Objective(kl_coef=0.0), **shape, **fields)
    return Trainer(policy.model, letters, args, ROWS, processing_class=policy.tokenizer, launch=launch).train()


def test_a_head_in_float32_is_that_of_the_whole_run(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """--fp32_head, in bfloat16: other logits, so other entropies; what is saved is a plain model."""
    entropies = []
    for wanted in (False, True):
        policy = policy_of(dtype=torch.bfloat16)
        result = two_steps(policy, tmp_path / str(wanted), fp32_head=wanted)
        assert isinstance(policy.model.get_output_embeddings(), Float32Linear) is wanted
        entropies.append(rows_of(result.folder / "metrics.jsonl")[0]["entropy"])
        assert type(AutoModelForCausalLM.from_pretrained(result.checkpoint).lm_head) is torch.nn.Linear
    assert entropies[0] != entropies[1]


def test_recomputed_layers_are_recomputed_in_a_run_and_change_no_number(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--gradient_checkpointing: both layers, in every pass with a gradient."""
    real, calls, weights = variants.checkpoint, [], []
    monkeypatch.setattr(variants, "checkpoint", lambda *args, **options: calls.append(1) or real(*args, **options))
    for wanted in (False, True):
        assert not calls
        policy = policy_of()
        two_steps(policy, tmp_path / str(wanted), Launch(gradient_checkpointing=wanted))
        weights.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert len(calls) >= 4
    assert len(calls) % 2 == 0
    assert torch.equal(*weights)
