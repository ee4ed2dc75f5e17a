"""`detect_stages` against curves of real trainings whose transitions were labelled by eye."""

from __future__ import annotations

import pytest

from kit.real_curves import Labelled, labelled
from stagelens.stages import detect_stages


def agrees(curve: Labelled) -> bool:
    return curve.agrees([t.at for t in detect_stages(curve.steps, curve.values).transitions])


def of_seeds(seeds: str) -> list[Labelled]:
    return [curve for curve in labelled("development") + labelled("hold-out") if curve.name.split("/")[1] in seeds]


MISSED = pytest.mark.xfail(strict=True, reason="27 of 31: these curves served development, and the goal is missed")


@pytest.mark.parametrize("seeds", ["012", pytest.param("345", marks=MISSED), "678"])
def test_transitions_labelled_by_eye_are_found(seeds: str) -> None:
    """The goal is 90% of the curves. Seeds 6 to 8 are the hold-out."""
    curves = of_seeds(seeds)
    wrong = [curve.name for curve in curves if not agrees(curve)]
    assert len(wrong) <= 0.1 * len(curves), wrong


@pytest.mark.parametrize(("seeds", "least"), [("012", 37), ("345", 27), ("678", 50)])
def test_real_curves_are_found_as_often_as_the_docs_say(seeds: str, least: int) -> None:
    assert sum(agrees(curve) for curve in of_seeds(seeds)) >= least


@pytest.mark.parametrize(
    "name",
    [
        "emergence_recall/3/loss",  # a shoulder is shorter than the fall before it
        "rich_text/4/prefix_matching0",  # so are three wiggles in the end of a fall
        "rich_text/5/loss",  # after a plateau the curve falls steadily in log time, to its last point
        "markov_full/3/kl0",  # it turns back by less than a fifth
    ],
)
def test_what_the_previous_detector_missed_is_found(name: str) -> None:
    assert agrees(next(curve for curve in labelled("development") if curve.name == name))


def test_the_hold_out_has_seeds_of_its_own() -> None:
    for split, seeds in (("development", "012345"), ("hold-out", "678")):
        assert {curve.name.split("/")[1] for curve in labelled(split)} == set(seeds)


def test_enough_curves_could_be_labelled_by_eye() -> None:
    assert min(len(labelled("development")), len(labelled("hold-out"))) >= 24


def test_agreement_counts_missing_and_additional_transitions() -> None:
    curve = Labelled("a", *[labelled("development")[0].steps] * 2, [(10, 20), (30, 40)], [(50, 60)])
    assert curve.agrees([15, 35]) and curve.agrees([15, 35, 55])
    assert not curve.agrees([15]) and not curve.agrees([15, 16, 35]) and not curve.agrees([15, 35, 70])
