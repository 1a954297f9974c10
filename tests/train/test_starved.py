"""Dynamic sampling that runs out of budget, groups that wait for the next step, and groups that are too old."""

import dataclasses
import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upweight import TrainArgs, Trainer
from upweight.objective.spec import Objective
from upweight.policy.policy import Policy
from upweight.rewards.runner import make_runner
from upweight.rewards.score import Score, Status
from upweight.rollout.completion import Completion, FinishReason, Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.rows import RowsTask
from upweight.train.records import Group, Sampled
from upweight.train.saving.held import group_from_json, group_to_json
from upweight.train.signals import SamplingDropped
from upweight.train.source import SamplingSource, StaleError, check_age
from upweight.train.step import Learner, training_step

ROWS = [{"prompt": f"row {n}:", "answer": str(n), "level": n} for n in range(12)]
DYNAMIC = Objective(kl_coef=0.0, filter_groups=True, resample=True)


def every_third(row: int, draw: int, sample: int) -> str:
    """Rows 0, 3, 6 and 9 carry a signal."""
    return str(row) if sample == 0 and row % 3 == 0 else "wrong"


def source_of(engine: Any, **fields: Any) -> SamplingSource:
    defaults: dict[str, Any] = {
        "stream": RowsTask(ROWS).stream(0),
        "engine": engine,
        "encode": lambda prompt: list(str(prompt.text).encode()),
        "decode": lambda ids: bytes(ids).decode(),
        "runner": make_runner("exact"),
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 2,
        "context_length": 64,
        "only_informative": True,
        "budget": 1,
        "when_starved": "skip",
    }
    return SamplingSource(**{**defaults, **fields})


class Dated:
    """Another engine's answers, with the weights version of now on them."""

    def __init__(self, engine: Any, version: Callable[[], int]) -> None:
        self.engine = engine
        self.version = version

    def generate(self, *args: Any, **options: Any) -> list[list[Completion]]:
        return [
            [dataclasses.replace(c, weights_versions=(self.version(),) * len(c.token_ids)) for c in group]
            for group in self.engine.generate(*args, **options)
        ]


def names(groups: Sequence[Group]) -> list[tuple[int, int]]:
    return [(group.draw.prompt.row, group.draw.number) for group in groups]


@pytest.mark.parametrize(
    ("policy_of_starving", "steps", "said"),
    [
        ("train", 2, "trains on those there are"),
        ("skip", 2, "are kept for the next step"),
        ("stop", 1, "the run ends here"),
    ],
)
def test_a_budget_of_three_asks_three_times_and_then_does_as_told(
    policy: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    policy_of_starving: Any,
    steps: int,
    said: str,
) -> None:
    """B61: every group all-wrong: three calls of the engine a step, no update, a run that ends well and is saved."""
    calls: list[int] = []
    tokens: list[int] = []
    real = LocalEngine.generate

    def counted(self: Any, prompts: Any, *args: Any, **options: Any) -> Any:
        groups = real(self, prompts, *args, **options)
        if options.get("keys") is not None:  # the handshake names none
            calls.append(len(prompts))
            tokens.append(sum(len(completion.token_ids) for group in groups for completion in group))
        return groups

    monkeypatch.setattr(LocalEngine, "generate", counted)
    args = TrainArgs(
        output_dir=str(tmp_path / "run"),
        max_steps=2,
        prompts_per_step=4,
        group_size=2,
        max_new_tokens=4,
        resample_budget=3,
        when_starved=policy_of_starving,
        objective=DYNAMIC,
    )
    result = Trainer(policy.model, "exact", args, ROWS, processing_class=policy.tokenizer).train()
    assert calls == [4] * 3 * steps
    assert (result.steps, result.checkpoint.name) == (steps, f"checkpoint-{steps}")
    assert (result.checkpoint / "model.safetensors").exists()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for step, row in enumerate(rows):
        assert (row["rounds"], row["sampled_groups"], row["missing_groups"], row["updates"]) == (3, 12, 4, 0)
        assert (row["informative"], row["tokens"]) == (0.0, sum(tokens[3 * step : 3 * step + 3]))
    out = capsys.readouterr().out
    assert out.count("budget of 3 rounds of sampling") == 1
    assert said in out
    assert "lacks 4 of 4 informative groups" in out
    assert "0% of 12 sampled groups" in out


def test_skipped_steps_lose_no_group_and_ask_only_for_what_is_missing(scripted: Any) -> None:
    """The groups there are wait, in order; each is trained on once, with those that fill the step up."""
    engine = scripted(every_third)
    source = source_of(engine)
    trained: list[Group] = []
    waiting: list[Group] = []
    for _ in range(12):
        sampled = source.next_groups(3)
        assert names(sampled.groups[: sampled.carried]) == names(waiting)[: len(sampled.groups)]
        assert len(engine.asked[-1]) <= 3 - len(waiting)
        waiting += sampled.held
        if sampled.groups:
            assert (len(sampled.groups), sampled.missing, sampled.held) == (3, 0, ())
            trained += sampled.groups
            waiting = []
        else:
            assert sampled.missing == 3 - len(waiting) > 0
    informative = [key for asked in engine.asked for key in asked if key[0] % 3 == 0]
    assert len(trained) >= 6
    assert names(trained) + names(waiting) == informative


def test_a_full_step_is_not_starved_though_its_last_round_filled_it(scripted: Any) -> None:
    """A budget that is just enough is enough."""
    source = source_of(scripted(lambda row, draw, sample: str(row) if sample else "wrong"), when_starved="stop")
    sampled = source.next_groups(3)
    assert (len(sampled.groups), sampled.missing, sampled.rounds) == (3, 0, 1)


def test_train_takes_what_there_is_and_holds_nothing(scripted: Any) -> None:
    """The third policy, the default."""
    source = source_of(scripted(every_third), when_starved="train")
    sampled = [source.next_groups(3) for _ in range(4)]
    assert [s.missing for s in sampled] == [3 - len(s.groups) for s in sampled]
    assert {s.carried for s in sampled} == {0}
    assert sum(len(s.groups) for s in sampled) == 4
    assert source.state_dict()["held"] == []


def test_a_report_counts_what_its_own_step_sampled(scripted: Any, learner: Callable[..., Learner]) -> None:
    """Groups that waited are tokens of the step that sampled them; the hit rate is of what was sampled, not trained."""
    engine = scripted(every_third)
    work = learner([], objective=DYNAMIC, prompts_per_step=3)
    version = lambda: work.policy.version  # noqa: E731
    work = dataclasses.replace(work, source=source_of(Dated(engine, version), version=version))
    updates = 0
    for step in range(1, 9):
        report, batch = training_step(work, step)
        asked = engine.asked[-1]
        hits = sum(row % 3 == 0 for row, _ in asked)
        assert (report.sampled_groups, report.informative) == (len(asked), pytest.approx(hits / len(asked)))
        assert report.filtered_groups == len(asked) - hits
        assert report.updates == (1 if batch.groups else 0)
        assert len(batch.groups) in (0, 3)
        updates += report.updates
    assert 0 < updates < 8
    assert work.policy.version == updates


def awkward_group() -> Group:
    """Kept sets, a token the sampler did not score, one that is not trained on, an answer without a reward, a chat."""
    narrow = Completion(
        token_ids=(5, 6),
        logprobs=(-0.1 - 1e-17, math.nan),
        loss_mask=(True, False),
        weights_versions=(3, 3),
        finish_reason=FinishReason.LENGTH,
        kept=(np.array([5, 9], dtype=np.int32), np.array([6], dtype=np.int32)),
    )
    wide = dataclasses.replace(narrow, kept=None, finish_reason=FinishReason.STOP, logprobs=(-1 / 3, -math.pi))
    draw = RowsTask(ROWS).stream(0).take(1)[0]
    chat = dataclasses.replace(draw.prompt, text=[{"role": "user", "content": "2+2?"}])
    return Group(
        draw=dataclasses.replace(draw, prompt=chat, number=7),
        prompt_ids=(1, 2, 3),
        completions=(narrow, wide),
        texts=("a\u00e9", ""),
        scores=(
            Score(value=0.1 + 0.2, why="close", extracted="4", gold_parsed="5"),
            Score(value=math.nan, status=Status.TIMEOUT, why="late"),
        ),
    )


def test_a_group_survives_json_to_the_bit() -> None:
    """Strict JSON: no NaN in it. A second trip changes nothing, and every field is what it was."""
    group = awkward_group()
    text = json.dumps(group_to_json(group), allow_nan=False)
    again = group_from_json(json.loads(text))
    assert json.dumps(group_to_json(again), allow_nan=False) == text
    assert again.texts == group.texts
    assert again.prompt_ids == group.prompt_ids
    assert (again.draw.number, again.draw.prompt.row, again.draw.prompt.text) == (
        7,
        group.draw.prompt.row,
        again.draw.prompt.text,
    )
    assert [dict(message) for message in again.draw.prompt.text] == [{"role": "user", "content": "2+2?"}]
    assert again.scores[0] == group.scores[0]
    assert (again.scores[1].status, math.isnan(again.scores[1].value)) == (Status.TIMEOUT, True)
    for ours, theirs in zip(again.completions, group.completions, strict=True):
        assert repr(ours.logprobs) == repr(theirs.logprobs)
        for name in ("token_ids", "loss_mask", "weights_versions", "finish_reason"):
            assert getattr(ours, name) == getattr(theirs, name)
    kept = again.completions[0].kept
    assert kept is not None
    assert [(ids.tolist(), ids.dtype) for ids in kept] == [([5, 9], np.int32), ([6], np.int32)]
    assert again.completions[1].kept is None


def test_waiting_groups_are_in_the_saved_state(scripted: Any) -> None:
    """A resume between a skipped step and the next goes on as a straight run does; older states have no groups."""
    straight_engine, resumed_engine = scripted(every_third), scripted(every_third)
    source, resumed = source_of(straight_engine), source_of(resumed_engine)
    while True:
        sampled = source.next_groups(3)
        if sampled.held:
            break
    state = json.loads(json.dumps(source.state_dict(), allow_nan=False))
    assert len(state["held"]) >= 1
    resumed.load_state_dict(state)
    for _ in range(6):
        ours, theirs = source.next_groups(3), resumed.next_groups(3)
        assert [group_to_json(group) for group in theirs.groups] == [group_to_json(group) for group in ours.groups]
        assert (theirs.carried, theirs.missing, names(theirs.held)) == (ours.carried, ours.missing, names(ours.held))
    with pytest.raises(TypeError, match="list, got dict"):
        resumed.load_state_dict({**state, "held": {}})
    resumed.load_state_dict({"stream": state["stream"]})
    assert resumed.state_dict()["held"] == []


@pytest.mark.parametrize(
    ("sampled", "now", "max_age", "fine"),
    [(5, 5, 0, True), (5, 6, 0, False), (5, 6, 1, True), (5, 7, 1, False), (5, 4, 0, False), (5, 4, 3, False)],
)
def test_age_is_counted_in_updates_between_sampling_and_training(
    group: Callable[..., Group], completion: Any, sampled: int, now: int, max_age: int, fine: bool
) -> None:
    """B97: sampled by version 5: at most 0 updates: 5 ok, 6 refused; at most 1: 6 ok, 7 refused. Never the future."""
    answers = [completion([97, 98], version=now), completion([97], version=sampled)]
    old = group([1.0, 0.0], completions=answers if sampled < now else answers[1:] * 2)
    if fine:
        check_age(old, now, max_age)
    else:
        with pytest.raises(StaleError, match=rf"row 0.*version {sampled}, and the trainer holds version {now}"):
            check_age(old, now, max_age)


def test_an_engine_with_other_weights_is_refused(scripted: Any) -> None:
    """The scripted engine says version 0; nothing is trained on, and the source stands where it stood."""
    source = source_of(scripted(every_third), version=lambda: 1)
    before = json.dumps(source.state_dict())
    with pytest.raises(StaleError, match="did not reach the sampler"):
        source.next_groups(3)
    assert json.dumps(source.state_dict()) == before


def ragged(policy: Policy) -> Policy:
    """The small policy with many end tokens: answers of one to eight tokens."""
    policy.end_ids = frozenset(range(70))
    return policy


def lengths_of(policy: Policy, refuse: Callable[[Sampled, SamplingSource], None], **fields: Any) -> np.ndarray:
    """Lengths of the answers that are trained on over some steps; half of the rows carry a signal."""
    clock = itertools.count()
    policy.version = 0

    def alternate(completions: list[str], level: list[int], **_: Any) -> list[float]:
        return [float(next(clock) % 2) if one % 2 == 0 else 0.0 for one in level]

    source = source_of(
        LocalEngine(policy),
        stream=RowsTask(ROWS).stream(3),
        encode=policy.encode,
        decode=policy.decode,
        runner=make_runner(alternate),
        group_size=4,
        budget=3,
        version=lambda: policy.version,
        **fields,
    )
    lengths: list[int] = []
    while len(lengths) < 800:
        sampled = source.next_groups(8)
        lengths += [len(c.token_ids) for group in sampled.groups for c in group.completions]
        refuse(sampled, source)
    return np.array(lengths[:800])


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Largest difference of two distribution functions."""
    return max(abs(float((one <= n).mean() - (other <= n).mean())) for n in range(1, 9))


@pytest.mark.slow
def test_refusing_what_is_old_does_not_change_how_long_trained_answers_are(policy: Policy) -> None:
    """B97: waiting groups lost to age or none, the lengths have one distribution; 0.1 is p = 0.001 for 800 each.

    The measure would see a bias: without the groups that took long, the lengths are far beyond it.
    """
    ragged(policy)
    lost = [0]

    def grows_old(sampled: Sampled, source: SamplingSource) -> None:
        lost[0] += len(sampled.held)
        policy.version += 1

    plain = lengths_of(policy, lambda sampled, source: None, only_informative=False)
    kept = lengths_of(policy, lambda sampled, source: None)
    refused = lengths_of(policy, grows_old)
    in_time = plain.reshape(-1, 4)[plain.reshape(-1, 4).max(axis=1) < 4]
    assert lost[0] > 50
    assert 1.5 < plain.mean() < 6
    assert max(apart(plain, kept), apart(plain, refused), apart(kept, refused)) < 0.1
    assert apart(plain, in_time) > 0.15


def test_waiting_groups_that_are_too_old_are_drawn_anew(scripted: Any) -> None:
    """Only where weights moved on while they waited, as no run does: they are left out, whole."""
    version = [0]
    source = source_of(Dated(scripted(every_third), lambda: version[0]), version=lambda: version[0])
    while not (old := source.next_groups(3).held):
        pass
    for now in (1, 0):  # and groups of weights that are not there yet
        version[0] = now
        while not (sampled := source.next_groups(3)).groups:
            assert sampled.carried == 0
        assert not set(names(old)) & set(names(sampled.groups))
        assert {v for g in sampled.groups for c in g.completions for v in c.weights_versions} == {now}
        while not (old := source.next_groups(3).held):
            pass


@pytest.mark.parametrize("when", ["generate", "judge"])
def test_a_step_that_fails_while_sampling_leaves_the_source_where_it_stood(scripted: Any, when: str) -> None:
    """The second try, or a resumed run, samples the same groups."""
    engine = scripted(every_third)
    runner = make_runner("exact")
    source = source_of(engine, runner=runner, budget=2, when_starved="train")
    source.next_groups(3)
    before = json.dumps(source.state_dict())

    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("out of memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine if when == "generate" else runner, when, fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            source.next_groups(3)
    assert json.dumps(source.state_dict()) == before
    asked = len(engine.asked)
    source.next_groups(3)
    assert engine.asked[asked] == engine.asked[2] if when == "score" else True


def test_a_signal_between_two_rounds_drops_the_step(scripted: Any) -> None:
    """The rounds that were sampled are sampled again by the next run: the source stands where it stood."""
    asked: list[bool] = []
    engine = scripted(lambda row, draw, sample: "wrong")

    def after_the_second() -> bool:
        asked.append(len(engine.asked) >= 2)
        return asked[-1]

    source = source_of(engine, budget=9, interrupted=after_the_second)
    before = json.dumps(source.state_dict())
    with pytest.raises(SamplingDropped):
        source.next_groups(3)
    assert len(engine.asked) == 2
    assert json.dumps(source.state_dict()) == before


class Together:
    """Ranks that are threads of this process."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = threading.Barrier(world, timeout=20)
        self.said: list[Any] = [None] * world

    def member(self, rank: int) -> Any:
        together = self

        class Member:
            world = together.world

            def __init__(self) -> None:
                self.rank = rank

            def gather(self, value: Any) -> list[Any]:
                together.said[rank] = value
                together.barrier.wait()
                values = list(together.said)
                together.barrier.wait()
                return values

            def agree(self, flag: bool) -> bool:
                return all(self.gather(flag))

        return Member()

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """What each rank returns, or raises."""
        outcomes: list[Any] = [None] * self.world

        def one(rank: int) -> None:
            try:
                outcomes[rank] = work(self.member(rank))
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                outcomes[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        return outcomes


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("when_starved", ["train", "skip", "stop"])
def test_ranks_sample_a_share_each_and_decide_alike(scripted: Any, world: int, when_starved: Any) -> None:
    """The same groups on every rank as in one process, whoever sampled them, also where a round has fewer prompts."""
    engines = [scripted(every_third) for _ in range(world)]

    def work(ranks: Any) -> list[Mapping[str, Any]]:
        source = source_of(engines[ranks.rank], budget=3, when_starved=when_starved, ranks=ranks)
        return [dataclasses.asdict(source.next_groups(4)) for _ in range(5)]

    alone_engine = scripted(every_third)
    alone = source_of(alone_engine, budget=3, when_starved=when_starved)
    expected = [dataclasses.asdict(alone.next_groups(4)) for _ in range(5)]
    assert Together(world).run(work) == [expected] * world
    everything = sorted(key for asked in alone_engine.asked for key in asked)
    assert sorted(key for engine in engines for asked in engine.asked for key in asked) == everything
    if world > 1:
        assert all(engine.asked for engine in engines)


def test_a_failure_on_one_rank_is_raised_on_all(scripted: Any) -> None:
    """The rank it happened on has its own error, the others say whose it was; nobody waits for a group."""

    def work(ranks: Any) -> Any:
        def judge(completions: list[str], level: list[int], **_: Any) -> list[float]:
            return [math.inf if ranks.rank == 1 else 1.0] * len(completions)

        source = source_of(scripted(every_third), runner=make_runner(judge), ranks=ranks)
        return source.next_groups(4)

    first, second = Together(2).run(work)
    assert type(second).__name__ == "RewardError"
    assert isinstance(first, RuntimeError)
    assert "Rank 1 failed while sampling or judging: RewardError" in str(first)
    assert "judge" in str(first)


def test_a_signal_on_one_rank_drops_the_step_on_all(scripted: Any) -> None:
    """They agree between two rounds."""

    def work(ranks: Any) -> Any:
        engine = scripted(lambda row, draw, sample: "wrong")
        return source_of(engine, budget=9, ranks=ranks, interrupted=lambda: ranks.rank == 1).next_groups(4)

    assert [type(outcome) for outcome in Together(2).run(work)] == [SamplingDropped] * 2
