"""Labels that flicker, and the nearest of several reference predictors."""

from __future__ import annotations

import numpy as np
import pytest

from kit.written_runs import timeline, write_run
from stagelens.timelines.events import probe_events
from stagelens.timelines.labels import changes, label_spans, settled
from stagelens.timelines.nearest import nearest_codes, nearest_reference

KL = "kl_to_references/kl"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]),  # a visit
        ([0, 0, 0, 1, 1, 1, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),  # a visit back
        ([2, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]),  # a first label that does not last
        ([0, 0, 0, 1, 2, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 2, 2, 2]),
        ([0, 0, 0, 1], [0, 0, 0, 1]),  # it is unknown how long the last one lasts
        ([0, np.nan, 0, 0, 1, np.nan, 1, 1], [0, np.nan, 0, 0, 1, np.nan, 1, 1]),
        ([np.nan, np.nan], [np.nan, np.nan]),
        ([], []),
    ],
)
def test_a_label_counts_once_it_lasts(codes, expected):
    assert np.array_equal(settled(codes), np.array(expected, dtype=float), equal_nan=True)


def test_many_measurements_of_a_short_time_are_a_visit():
    steps = np.array([0, 100, 200, 300, 301, 302, 303, 304, 400, 500, 600])
    codes = np.array([0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0.0])
    assert not settled(codes, steps).any()
    assert settled(codes, 10 * np.arange(11)).any()


def test_what_is_settled_stays_so():
    rng = np.random.default_rng(0)
    for _ in range(50):
        codes = rng.integers(0, 3, 40).astype(float)
        once = settled(codes, np.arange(40))
        assert np.array_equal(settled(once, np.arange(40)), once)
        assert set(once) <= set(codes)


def test_spans_touch_and_cover_the_training():
    codes = np.array([0, 0, 0, 1, 0, 0, 1, 1, 1, 1.0])
    assert label_spans(codes, np.arange(10)) == [(0, 0, 6), (1, 6, 9)]
    assert changes(codes) == [(6, 0, 1)]


def test_phases_do_not_flicker(tmp_path):
    codes = np.array([0] * 20 + [1] + [0, 0, 0] + [1] * 20 + [2] * 20, dtype=float)[:, None]
    series = {"head_specialization/phase": (codes, ("layer",), ("diffuse", "competitive", "cooperative"))}
    run = write_run(tmp_path, "a", series, np.arange(64))
    found = [(phase["phase"], phase["start"], phase["end"]) for phase in run.phases]
    assert found == [("diffuse", 0, 24), ("competitive", 24, 44), ("cooperative", 44, 63)]
    assert np.array_equal(run.timeline.series("head_specialization/phase"), codes)


def test_the_nearest_reference_is_separated_by_two_standard_errors():
    kl = np.array([[1.0, 2.0, 3.0], [1.0, 1.5, 3.0], [2.0, 1.0, np.nan], [np.nan] * 3])
    assert nearest_codes(kl)[:3].tolist() == [0, 0, 1]
    assert np.isnan(nearest_codes(kl)[3])
    error = np.full((4, 3), 0.3)  # of a difference: 0.42
    codes = nearest_codes(kl, error)
    assert codes[[0, 2]].tolist() == [0, 1]
    assert np.isnan(codes[[1, 3]]).all()


def test_another_nearest_reference_is_an_event():
    steps = np.arange(60)
    kl = np.stack([steps / 60.0, 1 - steps / 60.0, np.full(60, 2.0)], axis=1)
    given = timeline(steps, {KL: (kl, ("reference",))})
    nearest = nearest_reference(given)
    assert nearest.references == ("0", "1", "2")
    (event,) = [event for event in probe_events(given) if event["what"].startswith("nearest")]
    assert event == {"step": 31, "what": "nearest: 0 → 1", "series": KL, "curve": f"{KL}[reference=1]"}
    one = timeline(steps, {KL: (kl[:, :1], ("reference",))})
    assert nearest_reference(one) is None
