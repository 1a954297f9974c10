"""Where an answer ends."""

import pytest
import torch

from upweight.rollout.completion import Completion, FinishReason
from upweight.rollout.tokens import completion_mask


@pytest.mark.parametrize(
    ("ids", "ends", "mask", "finished"),
    [
        ([5, 6, 2, 2, 2], {2}, [1, 1, 1, 0, 0], True),
        ([5, 2], {2}, [1, 1], True),
        ([5, 6, 7], {2}, [1, 1, 1], False),
        ([2, 2], {2}, [1, 0], True),
        ([5, 9, 0, 0], {2, 9}, [1, 1, 0, 0], True),
        ([5, 6], set(), [1, 1], False),
    ],
)
def test_an_answer_ends_with_its_first_end_token(
    ids: list[int], ends: set[int], mask: list[int], finished: bool
) -> None:
    """B44: also where pad == eos. B45: several end tokens."""
    got, ended = completion_mask(torch.tensor([ids]), ends)
    assert got.int().tolist() == [mask]
    assert ended.tolist() == [finished]


def test_a_completion_with_other_lengths_is_an_error_not_filled_up() -> None:
    """B50."""
    with pytest.raises(ValueError, match="1 tokens came with 2 logprobs"):
        Completion(
            token_ids=(7,),  # the text "ab" tokenised again, where [a, b] was sampled
            logprobs=(-1.0, -2.0),
            loss_mask=(True,),
            weights_versions=(0,),
            finish_reason=FinishReason.STOP,
        )
