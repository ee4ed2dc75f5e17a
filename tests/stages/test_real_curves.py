"""`detect_stages` against curves of real trainings whose transitions were labelled by eye."""

from __future__ import annotations

import pytest

from kit.real_curves import Labelled, labelled
from stagelens.stages import detect_stages


def agrees(curve: Labelled) -> bool:
    return curve.agrees([t.at for t in detect_stages(curve.steps, curve.values).transitions])


MISSED = pytest.mark.xfail(strict=True, reason="22 of 31: the goal of 90% is missed")


@pytest.mark.parametrize(("split", "seeds"), [("development", "012"), pytest.param("hold-out", "345", marks=MISSED)])
def test_what_the_eye_sees_is_found(split: str, seeds: str) -> None:
    """The goal is 90% of the curves."""
    curves = labelled(split)
    assert {curve.name.split("/")[1] for curve in curves} == set(seeds)
    wrong = [curve.name for curve in curves if not agrees(curve)]
    assert len(wrong) <= 0.1 * len(curves), wrong


def test_the_hold_out_is_found_as_often_as_the_docs_say() -> None:
    assert sum(agrees(curve) for curve in labelled("hold-out")) >= 22


def test_enough_curves_are_plain_to_the_eye() -> None:
    assert min(len(labelled("development")), len(labelled("hold-out"))) >= 24


def test_agreement_counts_missing_and_additional_transitions() -> None:
    curve = Labelled("a", *[labelled("development")[0].steps] * 2, [(10, 20), (30, 40)], [(50, 60)])
    assert curve.agrees([15, 35]) and curve.agrees([15, 35, 55])
    assert not curve.agrees([15]) and not curve.agrees([15, 16, 35]) and not curve.agrees([15, 35, 70])
