"""The gradient of real parameters does not depend on how a step is cut, spread, padded, packed, ordered or chunked.

Every step is drawn: uneven groups in any number, empty answers, unscored ones, interior tokens that are not the
policy's own, ratios on both sides of their bounds, sampler log-probs with gaps, each correction. The model computes in
float64 throughout, and gradients agree to 1e-9 of their norm. What goes through the trainer's own functions is scored
in float32 (and its advantages are rounded to it), so there they agree to `FLOAT32` of their norm.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, currently_in_test_context, given, settings
from hypothesis import strategies as st
from tests.spec.models import (
    Pass,
    Step,
    cut_gradient,
    decoder,
    everything,
    flat_loss,
    gradient,
    ledger_of,
    logits_of,
    logprob_table,
    packed_gradient,
    padded,
    settle,
    whole_gradient,
)
from tests.spec.ranks import Done, Job, Ranks, ranks
from tests.spec.steps import GARBAGE, SMALL, Sketch, drawn, edges, scrambled, sketches
from tests.spec.trained import batch_of, recut, trainer_gradient, update_of
from torch import Tensor

from upweight.objective.presets import PRESETS
from upweight.objective.spec import Objective
from upweight.policy import head, logprob
from upweight.policy.logprob import kept_mask, token_logprobs

EXACT = 1e-9
"""Relative to the gradient's norm, where everything is float64."""

FLOAT32 = 1e-5
"""Relative to the gradient's norm, where log-probs, weights and advantages are float32: roundings of 6e-8 of terms
that partly cancel come to 1e-6 in these steps."""

FLOOR = 1e-3
"""Below this norm a gradient says nothing about what was left out of it, or about rounding."""

VOCABULARY = 258

every_preset = pytest.mark.parametrize("name", PRESETS)


def examples(count: int) -> Any:
    """The same examples in every run. A failure is told at once: to shrink it takes minutes with a model in each."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )


def distance(one: Tensor, other: Tensor) -> float:
    """Between two gradients, relative to the first, which is far from 0: a step that is drawn so is drawn again."""
    norm = float(one.norm())
    assert math.isfinite(norm)
    if currently_in_test_context():
        assume(norm > FLOOR)
    assert norm > FLOOR
    return float((one - other).norm()) / norm


def cut(step: Step, pass_of: Sequence[int], **how: Any) -> list[Pass]:
    """Passes over the answers that share a number."""
    count = len(step.answers)
    numbers = [pass_of[b % len(pass_of)] for b in range(count)]
    return [Pass(answers=tuple(b for b in range(count) if numbers[b] == p), **how) for p in sorted(set(numbers))]


pass_numbers = st.lists(st.integers(0, 4), min_size=12, max_size=12)


@every_preset
@examples(14)
@given(sketch=sketches(), pass_of=pass_numbers)
def test_any_cut_into_passes_gives_the_gradient_of_the_whole_step(
    name: str, sketch: Sketch, pass_of: list[int]
) -> None:
    step, objective = drawn(name, sketch)
    whole = whole_gradient(decoder(step.kind), step, objective)
    assert distance(whole, cut_gradient(decoder(step.kind), step, objective, cut(step, pass_of))) <= EXACT
    one_by_one = [Pass(answers=(b,)) for b in range(len(step.answers))]
    assert distance(whole, cut_gradient(decoder(step.kind), step, objective, one_by_one)) <= EXACT


@every_preset
@examples(12)
@given(sketch=sketches(), extra=st.integers(0, 3), pad=st.integers(0, 257))
def test_padding_on_the_left_the_right_between_or_nowhere_gives_one_gradient(
    name: str, sketch: Sketch, extra: int, pad: int
) -> None:
    step, objective = drawn(name, sketch)
    alone = cut_gradient(decoder(step.kind), step, objective, [Pass(answers=(b,)) for b in range(len(step.answers))])
    for side in ("left", "right", "between"):
        assert (
            distance(alone, whole_gradient(decoder(step.kind), step, objective, side=side, extra=extra, pad=pad))
            <= EXACT
        )


@every_preset
@pytest.mark.parametrize(("kind", "attention"), [("llama", "sdpa"), ("gpt2", "eager")])
@examples(10)
@given(sketch=sketches())
def test_answers_packed_into_one_row_give_the_gradient_of_the_padded_batch(
    kind: str, attention: str, name: str, sketch: Sketch
) -> None:
    """Attention within each answer's own block, positions that begin again, and the flat core on one row."""
    step, objective = drawn(name, dataclasses.replace(sketch, kind=kind))
    model = decoder(kind, attention)
    assert distance(whole_gradient(model, step, objective), packed_gradient(model, step, objective)) <= EXACT


@every_preset
@examples(16)
@given(sketch=sketches(), data=st.data())
def test_answers_and_groups_in_any_order_give_one_gradient(name: str, sketch: Sketch, data: st.DataObject) -> None:
    step, objective = drawn(name, sketch)
    order = data.draw(st.permutations(range(len(step.answers))))
    assert (
        distance(
            whole_gradient(decoder(step.kind), step, objective),
            whole_gradient(decoder(step.kind), step.take(order), objective),
        )
        <= EXACT
    )


@every_preset
@examples(16)
@given(
    sketch=sketches(),
    garbage=st.sampled_from(GARBAGE),
    pad=st.integers(0, 257),
    side=st.sampled_from(("left", "right", "between")),
)
def test_whatever_lies_outside_the_mask_changes_nothing(
    name: str, sketch: Sketch, garbage: float, pad: int, side: str
) -> None:
    """Padding, prompts' slots, tool output, unscored and filtered answers: in every tensor that the loss is given."""
    step, objective = drawn(name, sketch)
    plain = whole_gradient(decoder(step.kind), step, objective, side=side, extra=2)
    dirty = whole_gradient(
        decoder(step.kind), scrambled(step, objective), objective, side=side, extra=2, pad=pad, garbage=garbage
    )
    assert distance(plain, dirty) <= EXACT


@every_preset
@examples(10)
@given(
    sketch=sketches(),
    elements=st.integers(1, 3000),
    temperature=st.sampled_from((1.0, 0.7)),
    share_kept=st.sampled_from((1.0, 0.3)),
)
def test_log_probs_made_in_chunks_give_the_gradient_of_plain_log_softmax(
    name: str, sketch: Sketch, elements: int, temperature: float, share_kept: float
) -> None:
    """Values, entropy and gradient; chunks of any size against float64, whole logits at once."""
    step, objective = drawn(name, sketch)
    layout = padded(step, everything(step))
    before, targets = (layout.row, layout.column - 1), layout.ids[layout.row, layout.column]
    kept = kept_sets(targets, share_kept, sketch.seed)

    def plain() -> Tensor:
        rows = logits_of(decoder(step.kind), layout)[before] / temperature
        return torch.log_softmax(rows.masked_fill(~kept_mask(kept, rows.shape[1], rows.device), -math.inf), dim=-1)

    with torch.no_grad():
        table = plain()
        step = moved(
            step,
            table.gather(1, targets[:, None]).squeeze(1)
            - logprob_table(decoder(step.kind), layout)[layout.row, layout.column],
        )
    whole = gradient(decoder(step.kind), [flat_loss(step, objective, plain().gather(1, targets[:, None]).squeeze(1))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprob, "CHUNK_ELEMENTS", elements)
        patch.setattr(head, "ELEMENTS", elements)
        patch.setattr(head, "TOKENS", 1)
        scores, entropy = token_logprobs(
            logits_of(decoder(step.kind), layout)[before], targets, temperature=temperature, kept=kept
        )
        chunked = gradient(decoder(step.kind), [flat_loss(step, objective, scores)])
    assert distance(whole, chunked) <= FLOAT32
    torch.testing.assert_close(
        scores.detach().double(), table.gather(1, targets[:, None]).squeeze(1), rtol=1e-6, atol=5e-6
    )
    exact_entropy = -(table.exp() * table.nan_to_num(neginf=0.0)).sum(dim=1)
    torch.testing.assert_close(entropy.double(), exact_entropy, rtol=1e-6, atol=5e-6)


def kept_sets(targets: Tensor, share: float, seed: int) -> list[np.ndarray | None]:
    """Sets that hold the target and a share of the other words; every third token has the whole vocabulary."""
    draw = np.random.default_rng(seed)
    sets: list[np.ndarray | None] = []
    for n, target in enumerate(targets.tolist()):
        others = np.flatnonzero(draw.random(VOCABULARY) < share)
        sets.append(None if n % 3 == 0 else np.union1d(others, [target]).astype(np.int32))
    return sets


def moved(step: Step, shift: Tensor) -> Step:
    """Every frozen log-prob by the same distance per token."""
    old = None if step.old is None else step.old + shift
    return dataclasses.replace(step, old=old, ref=step.ref + shift, sampler=step.sampler + shift)


@every_preset
@examples(12)
@given(sketch=sketches(shortest=1), pass_of=pass_numbers, room=st.integers(1, 60), elements=st.integers(1, 3000))
def test_the_trainer_gives_the_gradient_of_the_padded_functions_however_it_cuts_the_batch(
    name: str, sketch: Sketch, pass_of: list[int], room: int, elements: int
) -> None:
    """Its own cut into passes, any other one, and any size of the chunks of the vocabulary."""
    step, objective = drawn(name, sketch)
    whole = whole_gradient(decoder(step.kind), step, objective)
    batch = batch_of(step, objective)
    assert distance(whole, trainer_gradient(step.kind, objective, batch, update_of(batch, objective))) <= FLOAT32
    assert distance(whole, trainer_gradient(step.kind, objective, batch, update_of(batch, objective, room))) <= FLOAT32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprob, "CHUNK_ELEMENTS", elements)
        patch.setattr(head, "ELEMENTS", elements)
        patch.setattr(head, "TOKENS", 1)
        other = recut(update_of(batch, objective, 1), pass_of)
        assert distance(whole, trainer_gradient(step.kind, objective, batch, other)) <= FLOAT32


@every_preset
@examples(12)
@given(sketch=sketches(shortest=1), pad=st.integers(0, 257), data=st.data())
def test_the_trainer_heeds_neither_order_nor_padding_nor_what_it_does_not_train_on(
    name: str, sketch: Sketch, pad: int, data: st.DataObject
) -> None:
    step, objective = drawn(name, sketch)
    order = data.draw(st.permutations(range(len(step.answers))))
    batch = batch_of(step, objective)
    plain = trainer_gradient(step.kind, objective, batch, update_of(batch, objective, 30))
    other = scrambled(step, objective).take(order)
    trained = settle(ledger_of(other, objective), objective).trained
    sampler = torch.where(trained, other.sampler, data.draw(st.sampled_from(GARBAGE)))
    mixed = batch_of(dataclasses.replace(other, sampler=sampler), objective)
    assert (
        distance(plain, trainer_gradient(step.kind, objective, mixed, update_of(mixed, objective, 30), pad_id=pad))
        <= FLOAT32
    )


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with ranks(2, tmp_path_factory.mktemp("ranks")) as running:
        yield running


def spread(two_ranks: Ranks, step: Step, objective: Objective, rank_of: Sequence[int], **how: Any) -> list[Done]:
    """One step on two ranks: answer b on rank `rank_of[b]`. Both hold the same total."""
    answers = range(len(step.answers))
    shares = [[b for b in answers if rank_of[b] == rank] for rank in (0, 1)]
    done = two_ranks.run([Job(share=step.take(share), objective=objective, **how) for share in shares])
    assert torch.equal(done[0].total, done[1].total)
    return done


@every_preset
@examples(18)
@given(sketch=sketches(), data=st.data())
def test_two_ranks_add_up_to_the_gradient_of_one(
    two_ranks: Ranks, name: str, sketch: Sketch, data: st.DataObject
) -> None:
    """Real processes; any answer on any rank, so that groups are torn apart."""
    step, objective = drawn(name, sketch)
    count = len(step.answers)
    rank_of = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    done = spread(two_ranks, step, objective, rank_of)
    assert distance(whole_gradient(decoder(step.kind), step, objective), done[0].total) <= EXACT


@every_preset
@pytest.mark.parametrize("lonely", [(), (2, 5), (2, 4)], ids=["no answer", "unscored answers", "an empty answer"])
def test_a_rank_with_nothing_to_train_on_takes_part(two_ranks: Ranks, name: str, lonely: tuple[int, ...]) -> None:
    """Its gradient is exactly 0, the other's is that of the whole step, and neither waits for ever."""
    step, objective = drawn(name, SMALL)
    done = spread(two_ranks, step, objective, [0 if b in lonely else 1 for b in range(7)])
    assert done[0].tokens == 0
    assert not done[0].own.any()
    assert distance(whole_gradient(decoder(step.kind), step, objective), done[1].own) <= EXACT
    assert torch.equal(done[0].total, done[1].own)


@every_preset
def test_weights_of_one_ranks_own_tokens_would_give_another_gradient(two_ranks: Ranks, name: str) -> None:
    """What the two tests above would show if a rank normalised by what it holds; added up or averaged."""
    step, objective = drawn(name, SMALL)
    done = spread(two_ranks, step, objective, [0, 1, 0, 1, 0, 0, 1], alone=True)
    whole = whole_gradient(decoder(step.kind), step, objective)
    assert distance(whole, done[0].total) > 0.01
    assert distance(whole, done[0].total / 2) > 0.01


@every_preset
def test_a_step_in_which_nothing_was_scored_has_a_gradient_of_exactly_0(two_ranks: Ranks, name: str) -> None:
    step, objective = drawn(name, SMALL)
    step = dataclasses.replace(step, rewards=torch.full_like(step.rewards, math.nan))
    step = step.take([b for b in range(7) if step.answers[b]])  # the trainer has no empty answers
    batch = batch_of(step, objective)
    for none in (
        whole_gradient(decoder(step.kind), step, objective),
        whole_gradient(decoder(step.kind), step, objective, side="left", garbage=math.nan),
        cut_gradient(decoder(step.kind), step, objective, cut(step, [0, 1, 2])),
        packed_gradient(decoder(step.kind), step, objective),
        trainer_gradient(step.kind, objective, batch, update_of(batch, objective)),
        spread(two_ranks, step, objective, [0, 1, 0, 1, 0, 1])[0].total,
    ):
        assert not none.any()


def test_the_drawn_steps_reach_what_they_are_there_for() -> None:
    """Otherwise the tests above would say little: each of these is met in the steps that are drawn."""
    met: set[str] = set()

    @examples(150)
    @given(sketch=sketches(), name=st.sampled_from(list(PRESETS)))
    def look(sketch: Sketch, name: str) -> None:
        met.update(edges(*drawn(name, sketch)))

    look()
    assert met == {
        *("an empty answer", "an unscored answer", "a group of one", "uneven groups", "a group without spread"),
        *("tool output", "a ratio of 1", "a ratio below", "a ratio above", "a rejected token", "a gap in mu"),
        *("a filtered group", "an overlong answer"),
    }
