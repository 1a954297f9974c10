"""Where groups come from: rounds, filtering, identity of groups, ends of epochs, resuming."""

import dataclasses
import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from upweight.objective.errors import UsageError
from upweight.objective.spec import Objective
from upweight.rewards.contract import RewardError
from upweight.rewards.runner import RewardRunner, make_runner
from upweight.rewards.score import Status
from upweight.rollout.completion import Sampling
from upweight.tasks.prompt import Prompt
from upweight.tasks.rows import RowsTask
from upweight.train.batch import make_batch, with_advantages
from upweight.train.ranks import Ranks
from upweight.train.records import Group
from upweight.train.source import SamplingSource, check_fits, is_informative
from upweight.train.step import Learner, training_step

ROWS = [{"prompt": f"row {n}:", "answer": str(n)} for n in range(7)]


def right_first(row: int, draw: int, sample: int) -> str:
    return str(row) if sample == 0 else "wrong"


def all_wrong(row: int, draw: int, sample: int) -> str:
    return "wrong"


def source_of(engine: Any, rows: Any = ROWS, reward: Any = "exact", seed: int = 0, **fields: Any) -> SamplingSource:
    defaults: dict[str, Any] = {"group_size": 2, "context_length": 64}
    return SamplingSource(
        stream=RowsTask(rows).stream(seed),
        engine=engine,
        encode=lambda prompt: list(str(prompt.text).encode()),
        decode=lambda ids: bytes(ids).decode(),
        runner=reward if isinstance(reward, RewardRunner) else make_runner(reward),
        sampling=Sampling(max_new_tokens=8),
        **{**defaults, **fields},
    )


def values(group: Group) -> list[float]:
    return [score.value for score in group.scores]


def test_a_group_is_its_draw_with_its_own_answers_and_scores(scripted: Any) -> None:
    """B18: nothing is mixed up between prompts."""
    sampled = source_of(scripted(right_first), group_size=3).next_groups(3)
    assert len({group.draw.prompt.row for group in sampled.groups}) == 3
    for group in sampled.groups:
        row = group.draw.prompt.row
        assert group.texts == (str(row), "wrong", "wrong")
        assert [bytes(completion.token_ids).decode() for completion in group.completions] == list(group.texts)
        assert values(group) == [1.0, 0.0, 0.0]
        assert bytes(group.prompt_ids).decode() == f"row {row}:"


def test_plain_sampling_asks_once_and_keeps_everything(scripted: Any) -> None:
    """Without resample a group without spread stays in the batch."""
    engine = scripted(all_wrong)
    sampled = source_of(engine, budget=4).next_groups(3)
    assert (len(sampled.groups), len(sampled.discarded), sampled.rounds, len(engine.asked)) == (3, 0, 1, 1)


def test_a_budget_that_finds_nothing_is_kept_to_and_the_run_goes_on(
    scripted: Any, learner: Callable[..., Learner], weights_of: Any
) -> None:
    """B61: every group all-wrong, budget 3: the engine is asked exactly 3 times a step, and the step trains nothing."""
    engine = scripted(all_wrong)
    objective = Objective(kl_coef=0.0, filter_groups=True, resample=True)
    work = learner([], objective=objective, prompts_per_step=2)
    work = dataclasses.replace(work, source=source_of(engine, only_informative=True, budget=3))
    before = weights_of(work.policy)
    for step in (1, 2):
        report, batch = training_step(work, step)
        assert len(engine.asked) == 3 * step
        sampled = sum(map(len, engine.asked[-3:]))
        assert (batch.groups, report.rounds, report.filtered_groups, report.informative) == ((), 3, sampled, 0.0)
        assert (report.updates, report.skipped_updates, report.reward) == (0, 1, 0.0)
    assert torch.equal(weights_of(work.policy), before)


def test_each_round_asks_only_for_what_is_missing(scripted: Any) -> None:
    """Row 0 to 3 carry a signal, 4 to 6 none: no informative group is thrown away."""
    engine = scripted(lambda row, draw, sample: str(row) if sample == 0 and row < 4 else "wrong")
    sampled = source_of(engine, only_informative=True, budget=10).next_groups(3)
    assert len(sampled.groups) == 3
    assert all(is_informative(group) for group in sampled.groups)
    missing, asked = 3, []
    for keys in engine.asked:
        asked.append(len(keys) <= missing)
        missing -= sum(row < 4 for row, _ in keys)
    assert asked == [True] * sampled.rounds
    assert missing == 0
    assert len(sampled.discarded) == sum(len(keys) for keys in engine.asked) - 3


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ((0.5, 0.5), False),
        ((1.0, 0.0), True),
        ((0.0, 0.0), False),
        ((1.0, 1.0), False),
        ((0.2, 0.8), True),
        ((1.0, math.nan), False),
        ((math.nan, math.nan), False),
        ((1.0, math.nan, 0.0), True),
    ],
)
def test_spread_decides_about_a_group_not_its_mean(
    group: Callable[..., Group], rewards: tuple[float, ...], kept: bool
) -> None:
    """B63: (0.5, 0.5) has no signal whatever the range; an answer without a score has no part in it."""
    assert is_informative(group(rewards)) is kept


def test_the_filter_looks_at_the_task_reward_before_shaping(group: Callable[..., Group]) -> None:
    """B64: all wrong with lengths 50 and 100: shaped rewards (0, -1) would look like a signal."""
    objective = Objective(kl_coef=0.0, filter_groups=True, overlong_buffer=20)
    wrong = group([0.0, 0.0], [50, 100])
    assert not is_informative(wrong)
    batch = with_advantages(make_batch([wrong], objective), objective, 100)
    assert (batch.trained.tolist(), batch.seq_id.numel()) == ([False, False], 0)
    assert batch.rewards is not None
    assert batch.rewards.tolist() == [0.0, -1.0]


def test_rows_with_the_same_words_stay_two_groups(scripted: Any) -> None:
    """B20: rows 0 and 1 have identical prompts, rewards (1, 0) and (1, 1): (+.5, -.5, 0, 0) without the std."""
    rows = [{"prompt": "same", "answer": "x", "good": 1}, {"prompt": "same", "answer": "x", "good": 2}]
    engine = scripted(lambda row, draw, sample: str(sample))

    def reward(completions: list[str], good: list[int], **_: Any) -> list[float]:
        return [float(int(text) < limit) for text, limit in zip(completions, good, strict=True)]

    sampled = source_of(engine, rows, reward).next_groups(2)
    assert sorted(group.draw.prompt.row for group in sampled.groups) == [0, 1]
    objective = Objective(kl_coef=0.0, adv_norm="none")
    ordered = sorted(sampled.groups, key=lambda group: group.draw.prompt.row)
    batch = with_advantages(make_batch(ordered, objective), objective, 8)
    assert batch.advantages is not None
    assert batch.advantages.tolist() == [0.5, -0.5, 0.0, 0.0]


def test_a_row_drawn_again_is_another_group_with_noise_of_its_own(scripted: Any) -> None:
    """A group is (row, draw number): in the second epoch the keys differ."""
    engine = scripted(right_first)
    source = source_of(engine, ROWS[:2])
    draws = [(g.draw.prompt.row, g.draw.number) for _ in range(3) for g in source.next_groups(2).groups]
    assert len(set(draws)) == 6
    assert [key for keys in engine.asked for key in keys] == draws


def test_answers_without_a_score_are_not_wrong_answers(scripted: Any, learner: Callable[..., Learner]) -> None:
    """B22: rewards (1, none, 0) without the std: (+.5, 0, -.5), the middle answer masked, and counted."""
    engine = scripted(lambda row, draw, sample: ("yes", "unclear", "no")[sample])

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [{"yes": 1.0, "no": 0.0}.get(text) for text in completions]

    work = learner([], objective=Objective(kl_coef=0.0, adv_norm="none"), prompts_per_step=1)
    work = dataclasses.replace(work, source=source_of(engine, reward=reward, group_size=3))
    report, batch = training_step(work, 1)
    assert batch.advantages is not None
    assert batch.trained.tolist() == [True, False, True]
    assert batch.advantages.tolist() == [0.5] * 3 + [-0.5] * 2
    assert (report.unscored, report.reward, report.trained_tokens) == (1, 0.5, 5)


def test_a_reward_that_raises_on_one_answer_loses_that_answer_alone(scripted: Any) -> None:
    """B107: (r, none, r, r) and the run goes on."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [1.0 / int(text) for text in completions]

    engine = scripted(lambda row, draw, sample: str((1, 0, 2, 4)[sample]))
    [group] = source_of(engine, reward=reward, group_size=4).next_groups(1).groups
    assert [str(score.status) for score in group.scores] == ["scored", "error", "scored", "scored"]
    assert [v for v in values(group) if v == v] == [1.0, 0.5, 0.25]


def test_an_epoch_of_seven_comes_in_chunks_of_three_three_and_one(scripted: Any) -> None:
    """B110: the short chunk is handed out, and the next epoch starts whole."""
    source = source_of(scripted(right_first))
    chunks = [[group.draw.prompt.row for group in source.next_groups(3).groups] for _ in range(6)]
    assert [len(chunk) for chunk in chunks] == [3, 3, 1, 3, 3, 1]
    for epoch in (chunks[:3], chunks[3:]):
        assert sorted(row for chunk in epoch for row in chunk) == list(range(7))


def test_every_completion_is_trained_exactly_as_often_as_there_are_epochs_per_batch(
    scripted: Any, learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B110: 7 prompts, 3 per generation, G=2, --epochs_per_batch 2: each completion twice, in every chunk."""
    import upweight.train.step as room

    seen: list[tuple[int, ...]] = []
    real = room.take_update

    def counted(learner: Learner, batch: Any, update: Any, lr: float) -> Any:
        seen.extend(batch.completions[b].token_ids for micro in update.micro_batches for b in micro.answers)
        return real(learner, batch, update, lr)

    monkeypatch.setattr(room, "take_update", counted)
    work = learner([], prompts_per_step=3, group_size=2, epochs_per_batch=2)
    engine = scripted(lambda row, draw, sample: str(row) if sample == 0 else f"no{row}")
    work = dataclasses.replace(work, source=source_of(engine))
    reports = [training_step(work, step)[0] for step in (1, 2, 3)]
    assert [report.updates for report in reports] == [2, 2, 2]
    assert sorted(map(seen.count, set(seen))) == [2] * 14


def test_a_data_set_smaller_than_a_step_makes_steps_of_what_there_is(scripted: Any) -> None:
    """B110: never silently 0 steps."""
    source = source_of(scripted(right_first), ROWS[:2])
    assert [len(source.next_groups(5).groups) for _ in range(2)] == [2, 2]


def test_a_saved_position_goes_on_with_the_same_rows(scripted: Any) -> None:
    """B90: steps 3 to 6 after a resume are the ones a straight run has; the state survives JSON."""
    engine, again = scripted(right_first), scripted(right_first)
    source = source_of(engine, seed=4)
    for _ in range(2):
        source.next_groups(3)
    state = json.loads(json.dumps(source.state_dict()))
    resumed = source_of(again, seed=4)
    resumed.load_state_dict(state)
    straight = [source.next_groups(3).groups for _ in range(4)]
    assert [resumed.next_groups(3).groups for _ in range(4)] == straight
    assert again.asked == engine.asked[2:]


def test_a_position_of_other_data_is_refused(scripted: Any) -> None:
    """B90: a state belongs to its data and its seed."""
    source = source_of(scripted(right_first))
    with pytest.raises(UsageError, match="seed"):
        source.load_state_dict({"stream": {**RowsTask(ROWS).stream(0).state_dict(), "seed": 1}})
    with pytest.raises(TypeError, match="mapping, got list"):
        source.load_state_dict({"stream": [1, 2]})


def test_a_prompt_that_leaves_no_room_is_refused_and_never_shortened(scripted: Any) -> None:
    """B53: the row is named, with the ways out, before the engine is asked."""
    engine = scripted(right_first)
    source = source_of(engine, [{"prompt": "x" * 57, "answer": "1"}])
    with pytest.raises(UsageError, match=r"row 0 has 57 tokens.*max_new_tokens=8.*context of 64"):
        source.next_groups(1)
    assert engine.asked == []
    check_fits(Prompt(row=0, text="x"), 56, 8, 64)


def paired() -> list[Ranks]:
    """Two ranks in two threads, which tell each other what they gather."""
    barrier, told = threading.Barrier(2, timeout=20), [None, None]

    class Paired(Ranks):
        def gather(self, value: Any) -> list[Any]:
            told[self.rank] = value
            barrier.wait()
            found = list(told)
            barrier.wait()
            return found

    return [Paired(rank=rank, world=2) for rank in range(2)]


def on_both(engine: Callable[..., Any], reward: Any, **fields: Any) -> list[Any]:
    """The groups of a step on either rank, or what it raised."""

    def of(ranks: Ranks) -> Any:
        runner = make_runner(reward, max_errors=0.25)
        source = source_of(engine(right_first), reward=runner, ranks=ranks, **fields)
        try:
            return source.next_groups(4).groups
        except RewardError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(of, paired()))


def test_the_errors_that_are_allowed_are_a_share_of_all_ranks_answers(scripted: Any) -> None:
    """--max_reward_errors 0.25: half of one rank's answers are a quarter of the step's, and no failure of the run."""

    def cannot(rows: set[int]) -> Callable[..., list[float]]:
        def judge(prompts: list[str], **_: Any) -> list[float]:
            if any(int(prompt.split()[1].rstrip(":")) in rows for prompt in prompts):
                raise ValueError("cannot")
            return [1.0] * len(prompts)

        return judge

    drawn = [group.draw.prompt.row for group in source_of(scripted(right_first)).next_groups(4).groups]
    one, other = on_both(scripted, cannot({drawn[0]}))
    assert [[score.status is Status.ERROR for score in group.scores] for group in one] == [
        [True] * 2,
        *[[False] * 2] * 3,
    ]
    assert one == other
    one, other = on_both(scripted, cannot(set(drawn[:2])))
    assert str(one).startswith(
        "The reward function 'judge' failed on 4 of 8 answers, more than --max_reward_errors 0.25"
    )
    assert str(one) == str(other)
