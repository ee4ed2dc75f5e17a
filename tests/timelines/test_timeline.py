"""The timeline: labelled arrays over the steps."""

from __future__ import annotations

import numpy as np
import pytest

from stagelens import Reading, Timeline
from stagelens.base.errors import UsageError
from stagelens.timelines.timeline import Measurement, layout_from_json, layout_to_json, pack


def readings(step):
    mass = np.arange(6).reshape(2, 3) + step / 10
    yield Reading("loss", 1 / (1 + step))
    yield Reading("probe/mass", mass, ("layer", "head"), {"layer": [2, 5], "head": ["a", "b", "c"]})
    if step >= 10:
        yield Reading("probe/phase", np.array([0.0, 1.0]), ("layer",), {"layer": [2, 5]}, labels=("diffuse", "sharp"))


STEPS = [20, 0, 10]
TIMELINE = Timeline([pack(step, readings(step)) for step in STEPS], {"run": "r", "seed": 3})


def test_steps_are_sorted_integers():
    assert TIMELINE.steps.tolist() == [0, 10, 20] and TIMELINE.steps.dtype == np.int64
    assert Timeline([pack(0.5, []), pack(1, [])]).steps.tolist() == [0.5, 1.0]


def test_a_series_has_its_dims_and_coordinates():
    mass = TIMELINE["probe/mass"]
    assert mass.dims == ("step", "layer", "head")
    assert mass.sel(step=10, layer=5, head="b").item() == 4 + 1.0
    assert TIMELINE["loss"].sel(step=20).item() == 1 / 21


def test_what_was_not_measured_is_nan_and_left_out_of_scalars():
    assert np.isnan(TIMELINE["probe/phase"].sel(step=0)).all()
    late = Timeline([pack(0, [Reading("a", 1.0)]), pack(1, [Reading("a", 2.0), Reading("b", 3.0)])])
    steps, values = late.scalar("b")
    assert (steps.tolist(), values.tolist()) == ([1], [3.0])


def test_categories_keep_their_labels():
    expected = {"labels": '["diffuse", "sharp"]', "flag_values": [0, 1], "flag_meanings": "diffuse sharp"}
    assert TIMELINE["probe/phase"].attrs == expected


def test_a_code_between_two_labels_has_none():
    column = TIMELINE.column("probe/phase")
    assert [column.label(code) for code in (0, 1.0, 0.5, 2, -1)] == ["diffuse", "sharp", "0.5", "2", "-1"]


def test_the_dataset_holds_every_series_and_the_runs_attributes():
    dataset = TIMELINE.dataset
    assert set(dataset.data_vars) == {"loss", "probe/mass", "probe/phase"} == set(TIMELINE)
    assert dict(dataset.sizes) == {"step": 3, "layer": 2, "head": 3}
    assert dataset.attrs == {"run": "r", "seed": 3}
    assert dataset["probe/mass"].sel(layer=2, step=20).values.tolist() == [2.0, 3.0, 4.0]


def test_series_with_different_layers_share_one_axis():
    found = Timeline([pack(0, [Reading("a", np.ones(2), ("layer",)), Reading("b", np.ones(3), ("layer",))])]).dataset
    assert found["layer"].values.tolist() == [0, 1, 2]
    assert found["a"].values[0, :2].tolist() == [1, 1] and np.isnan(found["a"].values[0, 2])


def test_nothing_measured_is_an_empty_dataset():
    empty = Timeline([])
    assert len(empty) == 0 and empty.dataset.sizes["step"] == 0 and "0 steps" in repr(empty)


def test_unknown_series_list_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown series 'los' \(did you mean 'loss'\?\)"):
        TIMELINE["los"]
    with pytest.raises(UsageError, match="a single number was expected"):
        TIMELINE.scalar("probe/mass")


def test_a_layout_survives_json():
    layout = pack(0, readings(10)).layout
    assert layout_from_json(layout_to_json(layout)) == layout


def test_a_timeline_puts_stored_measurements_together_by_name():
    """Whatever order, coordinates and labels each measurement has; what one does not have is nan."""
    first = Reading("x", np.array([[1.0, 2.0], [3.0, 4.0]]), ("layer", "head"), {"layer": [0, 1], "head": ["a", "b"]})
    turned = Reading("x", np.array([[4.0, 2.0], [3.0, 1.0]]), ("head", "layer"), {"layer": [1, 0], "head": ["b", "a"]})
    more = Reading("x", np.array([[9.0]]), ("layer", "head"), {"layer": [2], "head": ["a"]})
    codes = [
        Reading("c", 0.0, labels=("rest", "0 back")),
        Reading("c", 1.0, labels=("0 back", "rest")),
        Reading("c", 1.0, labels=("new", "rest")),
    ]
    given = [pack(s, [a, c]) for s, a, c in zip([2, 0, 1], [first, turned, more], codes, strict=True)]
    timeline = Timeline(given)
    x = timeline["x"]
    for step, known in ((2, first), (0, first), (1, more)):
        for layer in (0, 1, 2):
            for head in "ab":
                inside = layer in known.coords["layer"] and head in known.coords["head"]
                expected = known.array()[known.coords["layer"].index(layer), "ab".index(head)] if inside else np.nan
                assert np.array_equal(x.sel(step=step, layer=layer, head=head), expected, equal_nan=True)
    assert [timeline.column("c").label(code) for code in timeline.series("c")] == ["rest"] * 3
    with pytest.raises(UsageError, match=r"series 'x' has dims \('layer', 'head'\) at some steps and \('head',\)"):
        Timeline([given[0], pack(3, [Reading("x", np.ones(2), ("head",))])])


def test_of_two_measurements_of_one_step_the_later_counts():
    timeline = Timeline([pack(step, [Reading("x", value)]) for step, value in [(10, 0.0), (5, 1.0), (10.0, 2.0)]])
    assert timeline.steps.tolist() == [5, 10] and timeline.series("x").tolist() == [1.0, 2.0]
    with pytest.raises(UsageError, match="step nan is not a finite number"):
        Timeline([Measurement(float("nan"), (), np.empty(0))])


def test_a_reading_must_fit_its_dims_and_coordinates():
    with pytest.raises(ValueError, match=r"shape \(2,\) but dims \(\)"):
        Reading("x", np.ones(2)).array()
    with pytest.raises(ValueError, match="coords of 'layer' do not fit"):
        Reading("x", np.ones(2), ("layer",), {"layer": [1]}).array()
