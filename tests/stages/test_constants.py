"""Every constant of the detector is needed: with another value, a curve whose transitions are known is judged wrong."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kit.curves import Curve, staircase
from kit.hard_curves import TUNING, family
from kit.real_curves import labelled
from stagelens.stages import axis, detect, detect_stages, intervals, moves, pieces, plateaus, timing

MODULES = [pieces, plateaus, moves, detect, axis, timing, intervals]
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


def coverage() -> tuple[float, float]:
    """How many of the 95% confidence intervals contain the true time, and the true drop."""
    inside = []
    for curve in family("drops", TUNING, 60):
        found = detect_stages(curve.steps, curve.values).transitions if len(curve.steps) < 500 else ()
        if len(found) == len(curve.times):
            for one, at, drop in zip(found, curve.times, curve.drops, strict=True):
                inside.append((one.at_low <= at <= one.at_high, one.drop_low <= drop <= one.drop_high))
    times, drops = np.mean(inside, axis=0)
    return float(times), float(drops)


def weak_times() -> float:
    """How many of the intervals contain the true time of a drop of two noise widths."""
    steps, inside = np.arange(400.0), []
    for seed in range(60):
        values = 2 / (1 + np.exp((steps - 200) / 12)) + np.random.default_rng([3, seed]).normal(size=400)
        found = detect_stages(steps, values).transitions
        inside += [found[0].at_low <= 200 <= found[0].at_high] if len(found) == 1 else []
    return float(np.mean(inside))


def ramp_off() -> float:
    """How far the time of a straight ramp is from its middle, in steps."""
    steps = np.arange(200.0)
    return abs(detect_stages(steps, np.clip((140 - steps) / 80, 0, 1)).transitions[0].at - 100)


def width_off() -> float:
    """The error of the width of an exponential drop without noise, as a fraction."""
    steps = np.arange(200.0)
    found = detect_stages(steps, np.exp(-np.maximum(steps - 60, 0) / 8)).transitions[0]
    return abs((found.end - found.start) / (8 * np.log(9)) - 1)


def measures_hold() -> dict[str, bool]:
    """What the constants of times and intervals are for."""
    times, drops = coverage()
    return {
        "times": 0.93 <= times <= 0.98,
        "drops": 0.93 <= drops <= 0.98,
        "weak": weak_times() >= 0.93,
        "ramp": ramp_off() < 0.5,
        "width": width_off() < 0.02,
    }


def test_times_and_intervals_hold() -> None:
    assert all(measures_hold().values())


OF_TIMES = [  # module, constant, another value, what does not hold with it
    (intervals, "NORMAL", 1.0, "drops"),
    (intervals, "MOST_RHO", 0.5, "drops"),
    (intervals, "TAIL", 0.02, "drops"),
    (intervals, "STEEPEST", 0.4, "times"),
    (intervals, "HIDDEN", 0.1, "weak"),
    (timing, "SHORTEST", 1.0, "ramp"),
    (moves, "NEAR", 1e6, "width"),
]


@pytest.mark.parametrize(("module", "constant", "other", "broken"), OF_TIMES)
def test_times_or_intervals_do_not_hold_with_another_value(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, constant: str, other: float, broken: str
) -> None:
    monkeypatch.setattr(module, constant, other)
    assert not measures_hold()[broken]


RESOLUTION = {"FINENESS"}  # more of it changes no stage: it decides how fine a curve is drawn through the points


def test_no_constant_is_missing_here() -> None:
    named = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float | tuple | dict)
    }
    assert named == {constant for _, constant, *_ in [*NEEDED, *OF_TIMES]} | RESOLUTION
