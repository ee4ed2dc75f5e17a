"""Every constant of the detector is needed: with another value, a curve whose transitions are known is judged wrong."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kit.curves import Curve, staircase
from kit.hard_curves import TUNING, family
from kit.real_curves import labelled
from stagelens.stages import axis, detect, detect_stages, moves, pieces, plateaus

MODULES = [pieces, plateaus, moves, detect, axis]
HERE = "test_timing.py, test_hard_curves.py"
REAL = {curve.name: curve for curve in labelled("development")}
NEEDED: list[tuple[ModuleType, str, Any, str]] = [  # module, constant, another value, a curve that is wrong with it
    (pieces, "MOST_EDGES", 60, "recall_transformer/3/previous_token0"),
    (pieces, "LEAST_NOISE", 1e-4, "rich_text/0/prefix_matching0"),
    (pieces, "LEAST_NOISE", 1e-2, "recall_original/1/loss"),
    (pieces, "DRIFT", 0.00375, "recall_original/1/loss"),
    (pieces, "DRIFT", 0.06, "emergence_recall/2/copying2"),
    (pieces, "PIECE", 0.0, "rich_text/0/loss"),
    (pieces, "PIECE", 12.0, "rich_text/0/loss"),
    (pieces, "RAMP", 3.0, "emergence_recall/2/copying2"),
    (pieces, "RAMP", 36.0, "rich_text/0/loss"),
    (pieces, "SPIKE", 3.0, "recall_original/1/loss"),
    (pieces, "SPIKE", 24.0, "rich_text/1/loss"),
    (pieces, "LOCAL", 0.0, "emergence_recall/2/copying2"),
    (pieces, "LOCAL", 1.0, "recall_transformer/3/copying0"),
    (pieces, "WINDOW", (11, 21), "recall_transformer/3/copying0"),
    (pieces, "WINDOW", (401, 801), "recall_transformer/3/copying0"),
    (pieces, "GRID", {0.0: (0.3,), 0.5: (0.3, 0.7), 0.9: (0.8,)}, "flat, 0.95/24"),
    (pieces, "GRID", {0.0: ()}, "emergence_recall/2/copying2"),
    (plateaus, "LEAST_POINTS", 5, "recall_original/1/loss"),
    (plateaus, "CONTRAST", 0.225, "recall_transformer/3/copying0"),
    (plateaus, "FLAT", 0.02, "rich_text/0/prefix_matching0"),
    (plateaus, "FLAT", 0.4, "recall_original/1/loss"),
    (plateaus, "TURN", 0.045, "recall_transformer/3/previous_token0"),
    (plateaus, "TURN", 0.45, "recall_transformer/3/copying0"),
    (moves, "WANDER", 1.5, "recall_transformer/3/previous_token0"),
    (moves, "WANDER", 6.0, "recall_transformer/3/copying0"),
    (moves, "SMALL", 0.01, "recall_transformer/0/entropy0"),
    (moves, "SHAPE", 0.03, "recall_transformer/3/copying0"),
    (moves, "SHAPE", 0.3, "rich_text/0/loss"),
    (moves, "APART", 0.0, "emergence_recall/4/entropy0"),
    (moves, "APART", 9.0, "stairs/1"),
    (moves, "CLOSE", 4.0, "rich_text/3/loss"),
    (moves, "CLOSE", 20.0, "recall_original/1/loss"),
    (moves, "LONGEST", 0.0, "stairs/52"),
    (moves, "LONGEST", 0.36, "stairs/1"),
    (moves, "UNEQUAL", 0.0, "emergence_recall/5/previous_token1"),
    (moves, "UNEQUAL", 0.3, "stairs/1"),
    (moves, "AROUND", 1, "rich_text/3/loss"),
    (moves, "LEAST_AROUND", 0, "recall_transformer/3/copying0"),
    (moves, "BLOCKS", 16, "recall_original/1/loss"),
    (moves, "BENDS", 4, "recall_transformer/3/copying0"),
    (detect, "FINEST", 0.0, "rounded constants/2"),
    (detect, "ROUNDING", 0.8, "rounded constants/2"),
    (detect, "MOST_OF_IT", 0.0, "decays/51"),
    (axis, "EARLY", 0.0, "decays/51"),
    (axis, "EARLY", 0.625, "emergence_recall/5/previous_token1"),
]


def is_right(name: str) -> bool:
    """True if the transitions are as labelled; or, of a generated curve, if their number and times are right."""
    if name in REAL:
        curve = REAL[name]
        return curve.agrees([t.at for t in detect_stages(curve.steps, curve.values).transitions])
    known = generated(name)
    found = [t.at for t in detect_stages(known.steps, known.values).transitions]
    return len(found) == len(known.times) and bool(np.all(known.errors(found) < 0.05))


def generated(name: str) -> Curve:
    kind, _, number = name.rpartition("/")
    if kind == "stairs":
        return staircase(np.random.default_rng([1, int(number)]))
    return family(kind, TUNING, int(number) + 1)[-1]


@pytest.mark.parametrize("name", sorted({name for *_, name in NEEDED}))
def test_the_curve_is_right(name: str) -> None:
    assert is_right(name)


@pytest.mark.parametrize(("module", "constant", "other", "name"), NEEDED)
def test_the_curve_is_wrong_with_another_value(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, constant: str, other: Any, name: str
) -> None:
    for user in MODULES:
        if hasattr(user, constant):
            monkeypatch.setattr(user, constant, other)
    assert getattr(module, constant) == other
    assert not is_right(name)
