"""Sampling noise as a function of its coordinates."""

import numpy as np
import pytest

from upweight.rollout.noise import uniforms


def test_noise_is_uniform() -> None:
    table = uniforms(7, np.arange(40)[:, None, None], 0, np.arange(25)[None, :, None], np.arange(100)[None, None, :])
    assert table.shape == (40, 25, 100)
    counts = np.histogram(table, bins=100, range=(0.0, 1.0))[0]
    chi_square = float(((counts - 1000.0) ** 2 / 1000.0).sum())
    assert chi_square < 160.0  # 99 degrees of freedom: one in ten thousand is above
    assert table.min() >= 0.0
    assert table.max() < 1.0
    assert table.mean() == pytest.approx(0.5, abs=0.004)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_neighbouring_coordinates_are_uncorrelated(axis: int) -> None:
    grids = np.meshgrid(*[np.arange(12)] * 4, indexing="ij")
    table = np.moveaxis(uniforms(1, *grids), axis, 0)
    assert abs(float(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1])) < 0.03


def test_noise_depends_on_its_own_coordinates_alone() -> None:
    rows = np.array([5, 0, 9])
    together = uniforms(3, rows, [0, 2, 0], [1, 1, 0], [4, 4, 4])
    assert together.tolist() == [float(uniforms(3, r, d, s, 4)) for r, d, s in ((5, 0, 1), (0, 2, 1), (9, 0, 0))]
    assert together[::-1].tolist() == uniforms(3, rows[::-1], [0, 2, 0], [0, 1, 1], 4).tolist()


def test_every_coordinate_and_their_order_count() -> None:
    numbers = {
        float(uniforms(seed, row, draw, sample, position))
        for seed, row, draw, sample, position in np.ndindex(2, 3, 3, 3, 3)
    }
    assert len(numbers) == 162


def test_noise_is_pinned() -> None:
    assert uniforms(0, 0, 0, 0, [0, 1]).tolist() == [0.47141042966848024, 0.6477578607352581]
    assert float(uniforms(-1, 2**40, 3, 4, 5)) == 0.9387410126093083
