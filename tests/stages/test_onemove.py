"""Two moves with a plateau between them, or one?"""

from __future__ import annotations

import numpy as np
import pytest

from stagelens.stages.one_or_two_moves import RISES, second_gain

U = np.linspace(0, 1, 200)
SPANS = [(0, 90), (95, 105), (110, 200)]  # a plateau of ten points between moves near 0.46 and 0.54
ATS, DROPS = np.array([0.46, 0.54]), np.array([0.5, 0.5])


def gain(v: np.ndarray, noise: float, longest: float = 0.2) -> float:
    v = v + noise * np.random.default_rng(0).normal(size=len(U))
    return second_gain(U, v, np.full(len(U), noise), SPANS, ATS, DROPS, longest)


@pytest.mark.parametrize("rise", RISES)
def test_a_single_move_of_any_shape_needs_no_second(rise: object) -> None:
    assert gain(-rise((U - 0.5) / 0.03), noise=0.02) < 9  # type: ignore[operator]


@pytest.mark.parametrize("rise", RISES)
def test_two_moves_with_a_plateau_between_them_do(rise: object) -> None:
    two = rise((U - ATS[0]) / 0.004) + rise((U - ATS[1]) / 0.004)  # type: ignore[operator]
    assert gain(-two / 2, noise=0.02) > 100
    assert gain(-two / 2, noise=0.5) < 9  # when noise hides the plateau, one explains as much


def test_a_single_move_may_take_so_long_and_no_longer() -> None:
    slow = -RISES[0]((U - 0.5) / 0.06)
    assert gain(slow, noise=0.02, longest=0.3) < 9 < gain(slow, noise=0.02, longest=0.05)


def test_a_tenth_of_slope_is_no_move() -> None:
    assert gain(-RISES[0]((U - 0.5) / 0.03) - 0.05 * U, noise=0.02) < 9
