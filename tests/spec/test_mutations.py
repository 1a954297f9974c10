"""The specification notices a wrong formula: mutations of the maths, one at a time."""

from pathlib import Path

import pytest
from mutate import apply, judge_all
from mutations import MUTATIONS, Mutation, fault


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_still_fits_its_source_and_can_be_imported(mutation: Mutation, tmp_path: Path) -> None:
    apply(mutation, tmp_path)
    assert (tmp_path / "upweight" / "objective" / f"{mutation.module}.py").exists()


def test_a_mutation_whose_text_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kl\.py has 0 times, not once"):
        apply(fault("gone", "kl", "no such text", ""), tmp_path)


@pytest.mark.slow
def test_every_mutation_is_caught_by_a_value() -> None:
    assert len(MUTATIONS) >= 20
    survived = {m.name: v.test or "SURVIVED" for m, v in judge_all() if not v.by_assertion}
    assert survived == {}
