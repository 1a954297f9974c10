"""How a batch becomes updates and passes, and with which weights."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from upweight.objective.spec import Objective
from upweight.train.batch import make_batch, with_advantages
from upweight.train.passes import cut, in_a_row, passes_of, plan_updates
from upweight.train.ranks import Ranks
from upweight.train.records import Batch, Group, Update
from upweight.train.step import Learner, training_step

NO_KL = Objective(kl_coef=0.0)


def batch_of(groups: Sequence[Group], objective: Objective = NO_KL) -> Batch:
    return with_advantages(make_batch(groups, objective), objective, 8)


def planned(groups: Sequence[Group], objective: Objective = NO_KL, **how: int) -> list[Update]:
    defaults = {"minibatches": 1, "epochs": 1, "micro_batch_tokens": 10_000, "max_new_tokens": 8}
    return plan_updates(batch_of(groups, objective), objective, **{**defaults, **how})


def passes(update: Update) -> list[list[int]]:
    return [list(micro.answers) for micro in update.micro_batches]


def test_the_weighted_sum_of_a_batch_is_the_same_however_it_is_cut(group: Callable[..., Group]) -> None:
    """B01: token losses [3, 1] and six 0 give 4/8, cut into one, two or eight passes; B02: nothing is divided twice."""
    groups = [group([1.0, 0.0, 0.5, 0.2], [2, 1, 2, 3])]
    losses = torch.tensor([3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    counts = set()
    for room in (1, 10, 12, 10_000):
        [update] = planned(groups, micro_batch_tokens=room)
        counts.add(len(update.micro_batches))
        total = sum(float((update.weights[m.tokens] * losses[m.tokens]).sum()) for m in update.micro_batches)
        assert total == pytest.approx(0.5)
    assert len(counts) > 2


def test_ranks_of_unequal_tokens_share_one_denominator(group: Callable[..., Group]) -> None:
    """B05: rank 0 holds the loss [3], rank 1 holds [1, 1, 1, 0, 0]: 6/6, not the mean of rank means 1.8."""
    [update] = planned([group([1.0, 0.0], [1, 5])], micro_batch_tokens=1)
    losses = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    ranks = [update.micro_batches[:1], update.micro_batches[1:]]
    sums = [sum(float((update.weights[m.tokens] * losses[m.tokens]).sum()) for m in rank) for rank in ranks]
    assert sorted(sums) == pytest.approx([0.5, 0.5])


def test_the_denominator_counts_what_is_left_after_masking(group: Callable[..., Group], completion: Any) -> None:
    """B07: ten tokens, four of them truncated and masked; the other six sum to 3.0, so the mean is 0.5."""
    from upweight.rollout.completion import FinishReason

    answers = [
        completion([97] * 3),
        completion([98] * 4, reason=FinishReason.LENGTH),
        completion([99] * 3),
    ]
    objective = dataclasses.replace(NO_KL, truncated="mask")
    [update] = planned([group([1.0, 0.0, 0.0], completions=answers)], objective)
    assert update.weights.tolist() == pytest.approx([1 / 6] * 6)
    assert float((update.weights * 0.5).sum()) == pytest.approx(0.5)


def test_a_masked_truncated_answer_leaves_the_count_of_answers(group: Callable[..., Group], completion: Any) -> None:
    """Two of three answers are left: each token of theirs weighs 1 / (2 * 3), not 1 / (3 * 3)."""
    from upweight.rollout.completion import FinishReason

    answers = [completion([97] * 3), completion([98] * 4, reason=FinishReason.LENGTH), completion([99] * 3)]
    objective = dataclasses.replace(NO_KL, truncated="mask", loss_agg="seq-mean-token-mean")
    [update] = planned([group([1.0, 0.0, 0.0], completions=answers)], objective)
    assert update.weights.tolist() == pytest.approx([1 / 6] * 6)


def test_five_equal_answers_with_room_for_two_make_three_passes(group: Callable[..., Group]) -> None:
    """B09: the tail is not dropped."""
    [update] = planned([group([1.0, 0.0, 0.0, 0.0, 0.0])], micro_batch_tokens=2 * (3 + 3))
    assert [len(p) for p in passes(update)] == [2, 2, 1]
    assert sorted(b for p in passes(update) for b in p) == [0, 1, 2, 3, 4]


def test_five_groups_in_three_minibatches_make_three_updates(group: Callable[..., Group]) -> None:
    """B09: the last update holds one group and is normalised by that group's tokens alone."""
    updates = planned([group([1.0, 0.0], [2 + g, 3], row=g) for g in range(5)], minibatches=3)
    batch = batch_of([group([1.0, 0.0], [2 + g, 3], row=g) for g in range(5)])
    owners = [sorted({int(batch.group_of[b]) for p in passes(update) for b in p}) for update in updates]
    assert owners == [[0, 1], [2, 3], [4]]
    for update, own in zip(updates, owners, strict=True):
        inside = torch.isin(batch.group_of[batch.seq_id], torch.tensor(own))
        tokens = int(inside.sum())
        assert update.weights[inside].tolist() == pytest.approx([1 / tokens] * tokens)
        assert float(update.weights[~inside].abs().sum()) == 0.0


def test_fewer_groups_than_minibatches_make_an_update_each(group: Callable[..., Group]) -> None:
    """B109/B110: the short chunk at the end of an epoch is trained on, not dropped."""
    assert len(planned([group([1.0, 0.0], row=g) for g in range(2)], minibatches=5)) == 2


@pytest.mark.parametrize("shared", [False, True])
def test_every_token_is_in_exactly_one_pass_and_no_answer_is_split(group: Callable[..., Group], shared: bool) -> None:
    """The cut is a partition into whole answers, whatever the budget."""
    groups = [group([1.0, 0.0, 0.5], [1, 8, 4], row=g, prompt=[65] * (g + 1)) for g in range(4)]
    batch = batch_of(groups)
    everyone = list(range(12))
    for room in (1, 7, 20, 33, 1000):
        micros = cut(batch, everyone, room, shared=shared)
        tokens = sorted(int(t) for micro in micros for t in micro.tokens)
        assert tokens == list(range(batch.seq_id.numel()))
        assert sorted(b for micro in micros for b in micro.answers) == everyone
        for micro in micros:
            assert batch.seq_id[micro.tokens].tolist() == [
                b for b in micro.answers for _ in batch.completions[b].token_ids
            ]


@pytest.mark.parametrize("room", [9, 20, 33, 1000])
def test_a_shared_prompt_counts_once_a_pass_and_passes_are_of_like_size(group: Callable[..., Group], room: int) -> None:
    groups = [group([1.0, 0.0, 0.5], [1, 8, 4], row=g, prompt=[65] * (5 * g + 1)) for g in range(4)]
    batch = batch_of(groups)
    sizes = []
    for micro in cut(batch, list(range(12)), room, shared=True):
        prompts = {int(batch.group_of[b]): len(batch.prompts[b]) for b in micro.answers}
        sizes.append(sum(prompts.values()) + sum(len(batch.completions[b].token_ids) for b in micro.answers))
        assert len(micro.answers) == 1 or sizes[-1] <= room
    alike = batch_of([group([1.0, 0.0, 0.5], [1, 8, 4], row=g, prompt=[65] * 6) for g in range(20)])
    packs = cut(alike, list(range(60)), 200, shared=True)  # 20 x (6 + 13) tokens: two passes of 190, not 200 and 180
    assert [len(micro.answers) for micro in packs] == [30, 30]


def test_a_group_that_fits_into_a_pass_is_in_one_pass(group: Callable[..., Group]) -> None:
    """Its prompt would be encoded twice: 19 tokens of a group, two groups to a pass of 40 and none cut at 21 to 37."""
    batch = batch_of([group([1.0, 0.0, 0.5], [1, 8, 4], row=g, prompt=[65] * 6) for g in range(7)])
    for room, sizes in ((37, [1] * 7), (40, [2, 2, 2, 1]), (60, [3, 3, 1]), (80, [4, 3])):
        packs = cut(batch, list(range(21)), room, shared=True)
        groups = [{int(batch.group_of[b]) for b in micro.answers} for micro in packs]
        assert [len(of) for of in groups] == sizes
        assert sum(map(len, groups)) == 7


@settings(deadline=None, max_examples=150)
@given(sizes=st.lists(st.integers(1, 12), max_size=7), room=st.integers(-3, 30))
def test_stretches_are_as_few_as_can_be_and_the_largest_as_small(sizes: list[int], room: int) -> None:
    """Held against every way to cut the row."""
    found = [sizes[part] for part in in_a_row(sizes, room)]
    assert [size for part in found for size in part] == sizes
    places = range(1, len(sizes))
    ways = [
        [sizes[a:b] for a, b in itertools.pairwise([0, *ends, len(sizes)])]
        for count in range(len(sizes))
        for ends in itertools.combinations(places, count)
    ] or [[]]
    allowed = [way for way in ways if all(len(part) == 1 or sum(part) <= room for part in way)]
    fewest = min(map(len, allowed))
    assert found in allowed
    assert len(found) == fewest
    assert max(map(sum, found), default=0) == min(
        max(map(sum, way), default=0) for way in allowed if len(way) == fewest
    )


@pytest.mark.parametrize(("world", "lengths"), [(2, [3]), (3, [2, 2]), (4, [100, 1, 1, 1])])
def test_a_rank_without_an_answer_makes_as_many_passes_as_the_others(
    group: Callable[..., Group], world: int, lengths: list[int]
) -> None:
    """A step of little signal: fewer answers than ranks, or one that outweighs the rest."""
    batch = batch_of([group([1.0, 0.0], [length, 1], row=g) for g, length in enumerate(lengths)])
    answers = list(range(0, 2 * len(lengths), 2))
    for shared in (False, True):
        every = [
            passes_of(batch, answers, 1000, shared=shared, ranks=Ranks(rank=rank, world=world)) for rank in range(world)
        ]
        assert len({len(passes) for passes in every}) == 1
        assert sorted(b for passes in every for micro in passes if micro.counts for b in micro.answers) == answers


@pytest.mark.parametrize("room", [9, 20, 33, 1000])
def test_no_pass_of_several_answers_is_over_the_budget_padding_counted(group: Callable[..., Group], room: int) -> None:
    """Only an answer longer than the budget may be over it, in a pass of its own."""
    groups = [group([1.0, 0.0, 0.5], [1, 8, 4], row=g, prompt=[65] * (5 * g + 1)) for g in range(4)]
    batch = batch_of(groups)
    for micro in cut(batch, list(range(12)), room):
        width = max(len(batch.prompts[b]) for b in micro.answers)
        width += max(len(batch.completions[b].token_ids) for b in micro.answers)
        assert len(micro.answers) == 1 or width * len(micro.answers) <= room


def test_an_answer_longer_than_the_budget_gets_a_pass_of_its_own(group: Callable[..., Group]) -> None:
    """Never split, never left out."""
    [update] = planned([group([1.0, 0.0, 0.0], [8, 1, 1])], micro_batch_tokens=8)
    assert passes(update) == [[0], [1, 2]]


def test_answers_without_advantage_cost_no_pass_but_stay_in_the_denominator(group: Callable[..., Group]) -> None:
    """Groups are skipped only where every coefficient is 0; their tokens still count."""
    groups = [group([1.0, 1.0], [4, 4], row=0), group([1.0, 0.0], [1, 1], row=1)]
    [update] = planned(groups)
    assert passes(update) == [[2, 3]]
    assert update.weights.tolist() == pytest.approx([0.1] * 10)


def test_a_kl_in_the_loss_lets_every_answer_pass(group: Callable[..., Group]) -> None:
    """Its coefficient is not 0, whatever the advantage; a KL in the reward has none."""
    groups = [group([1.0, 1.0], row=0), group([1.0, 0.0], row=1)]
    batch = batch_of(groups)
    how = {"minibatches": 1, "epochs": 1, "micro_batch_tokens": 1000, "max_new_tokens": 8}
    [in_loss] = plan_updates(batch, Objective(kl_coef=0.1), **how)
    [in_reward] = plan_updates(batch, Objective(kl_coef=0.1, kl_place="reward"), **how)
    assert (passes(in_loss), passes(in_reward)) == ([[0, 1, 2, 3]], [[2, 3]])


def test_filtered_groups_leave_the_denominator(group: Callable[..., Group]) -> None:
    """DAPO's dynamic sampling: two tokens are left of ten."""
    groups = [group([1.0, 1.0], [4, 4], row=0), group([1.0, 0.0], [1, 1], row=1)]
    [update] = planned(groups, dataclasses.replace(NO_KL, filter_groups=True))
    assert update.weights.tolist() == pytest.approx([0.5, 0.5])


def test_epochs_repeat_the_updates_in_order(group: Callable[..., Group]) -> None:
    """--epochs_per_batch K: updates per batch = M x K."""
    groups = [group([1.0, 0.0], row=g) for g in range(4)]
    updates = planned(groups, minibatches=2, epochs=3)
    assert [passes(update) for update in updates] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]] * 3


def test_group_mean_weights_give_every_group_the_same_share(group: Callable[..., Group]) -> None:
    """group-mean-token-mean: groups of 2 and 8 tokens weigh 1/2 each, a token of the first 1/4."""
    groups = [group([1.0, 0.0], [1, 1], row=0), group([1.0, 0.0], [4, 4], row=1)]
    [update] = planned(groups, dataclasses.replace(NO_KL, loss_agg="group-mean-token-mean"))
    assert update.weights.tolist() == pytest.approx([1 / 4] * 2 + [1 / 16] * 8)


def test_sum_norm_divides_by_the_budget_and_the_answers_of_the_update(group: Callable[..., Group]) -> None:
    """Dr. GRPO: 1 / (2 answers x 8 tokens), whatever their lengths."""
    updates = planned(
        [group([1.0, 0.0], [1, 5], row=g) for g in range(2)],
        dataclasses.replace(NO_KL, loss_agg="seq-mean-token-sum-norm"),
        minibatches=2,
    )
    assert [sorted(set(update.weights.tolist())) for update in updates] == [[0.0, 1 / 16]] * 2


@pytest.mark.parametrize(("masked_tokens", "weight"), [("valid", 1 / 2), ("keep", 1 / 5)])
def test_valid_weights_are_made_over_the_tokens_that_mis_keeps(
    group: Callable[..., Group], completion: Any, masked_tokens: str, weight: float
) -> None:
    """B34: five tokens, three rejected: the two others weigh 1/2 each, or 1/5 with a fixed count."""
    objective = dataclasses.replace(NO_KL, correction="mis", correction_cap=2.0, masked_tokens=masked_tokens)
    answers = [completion([97, 98], [-1.0, -9.0]), completion([97, 98, 99], [-1.0, -9.0, -9.0])]
    batch = batch_of([group([1.0, 0.0], completions=answers)], objective)
    batch = dataclasses.replace(batch, old_logprobs=torch.full((5,), -1.0))
    [update] = plan_updates(batch, objective, minibatches=1, epochs=1, micro_batch_tokens=100, max_new_tokens=8)
    rejected = 0.0 if masked_tokens == "valid" else weight
    assert update.weights.tolist() == pytest.approx([weight, rejected, weight, rejected, rejected])


def test_nothing_to_train_is_an_update_without_a_pass(group: Callable[..., Group]) -> None:
    """B10: every answer unscored."""
    updates = planned([group([float("nan")] * 2, row=g) for g in range(2)], minibatches=2)
    assert [passes(update) for update in updates] == [[], []]


def test_no_groups_at_all_are_an_update_without_a_pass() -> None:
    """B61: the sampling budget is used up and nothing informative was found."""
    for objective in (NO_KL, dataclasses.replace(NO_KL, truncated="mask", overlong_buffer=2, filter_groups=True)):
        [update] = planned([], objective, minibatches=2)
        assert passes(update) == []


def test_a_step_on_nothing_leaves_the_optimiser_alone(
    group: Callable[..., Group], learner: Callable[..., Learner], weights_of: Any
) -> None:
    """B10: loss and gradient 0, the update is counted as skipped, and not even weight decay is applied."""
    for rewards in ([float("nan")] * 2, [1.0, 1.0]):
        work = learner([group(rewards)], weight_decay=0.5)
        before = weights_of(work.policy)
        report, _ = training_step(work, 1)
        assert (report.loss, report.grad_norm, report.updates, report.skipped_updates) == (0.0, 0.0, 0, 1)
        assert torch.equal(weights_of(work.policy), before)
        assert work.policy.version == 0


def test_one_empty_half_of_a_batch_does_not_stop_the_other(
    group: Callable[..., Group], learner: Callable[..., Learner]
) -> None:
    """B10: only one part has nothing to train; the other takes its update."""
    work = learner([group([1.0, 1.0], row=0), group([1.0, 0.0], row=1)], minibatches=2)
    report, _ = training_step(work, 1)
    assert (report.updates, report.skipped_updates, work.policy.version) == (1, 1, 1)
