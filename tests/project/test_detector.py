"""A change of what the stage detector finds comes with a new `DETECTOR`, so that stored stages are found again."""

from __future__ import annotations

from project import detector
from stagelens.runs import DETECTOR

HOW = "if that is meant, raise DETECTOR in runs/manifest.py, then run `python tests/project/pin.py detector`"


def test_the_stages_of_real_curves_are_the_pinned_ones():
    number, pinned = detector.load()
    assert len(pinned) >= 30
    wrong = list(detector.differences(pinned, detector.measure()))
    assert not wrong, "\n".join([*wrong, HOW])
    assert number == DETECTOR, "DETECTOR was raised: run `python tests/project/pin.py detector`"


def test_another_number_of_stages_or_another_level_is_a_difference():
    plateau = {"kind": "plateau", "start": 0.0, "end": 9.0, "level": 1.0}
    moved = plateau | {"level": 1.0 + 1e-4}
    assert not list(detector.differences({"a": [plateau]}, {"a": [plateau]}))
    for other in ({"a": [moved]}, {"a": [plateau, plateau]}, {"b": [plateau]}):
        assert list(detector.differences({"a": [plateau]}, other))
