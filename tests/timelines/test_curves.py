"""Curves: layers, heads and positions are averaged, everything else stays apart and has a name that finds it again."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from kit.written_runs import STEPS, staircase, timeline, write_run
from stagelens.base.errors import UsageError
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens.experiments.flow import Flow
from stagelens.experiments.training import Training
from stagelens.host.host import make_host
from stagelens.report.charts import run_chart
from stagelens.sweeps.measures import parse_measure
from stagelens.timelines import places, probe_events
from stagelens.timelines.curves import average, curves_of, one_curve, parse_curve
from stagelens.timelines.timeline import Timeline, pack

MEANS = {"layer", "head", "position", "query", "key"}  # what one number per step may be a mean over
TASKS = dict(make_host().tasks)


@pytest.fixture(scope="module", params=TASKS)
def measured(request) -> Timeline:
    """One measurement of a task with its default probes, or of a flow at its start."""
    kind = TASKS[request.param].load()
    experiment = kind(make_config(kind.Config, kind.presets, "quick", []), 0)
    if isinstance(experiment, Flow):
        return Timeline([pack(0.0, experiment.observables(0.0, experiment.initial()))])
    probes = list(experiment.probes) if experiment.probes else None
    recorder = sl.Recorder(Training(experiment).model, probes, eval_batch(experiment, "cpu"), task=experiment)
    recorder.measure(0)
    return recorder.timeline


def test_every_curve_of_every_task_is_a_mean_over_layers_heads_and_positions_only(measured) -> None:
    for name in measured:
        array, column = measured[name], measured.column(name)
        others = [dim for dim in array.dims[1:] if dim not in MEANS]
        found = curves_of(column)
        assert len(found) == np.prod([array.sizes[dim] for dim in others], dtype=int)
        for curve, index in zip(found, np.ndindex(*(array.sizes[dim] for dim in others)), strict=True):
            assert set(curve.averaged) <= MEANS
            assert one_curve(measured, curve.name) == curve
            part = array.isel(dict(zip(others, index, strict=True)))
            if not column.labels and part.notnull().any():
                known = part.mean([dim for dim in part.dims if dim != "step"]).values
                np.testing.assert_allclose(curve.read(measured)[1], known, rtol=1e-12)


def test_what_averaging_leaves_is_what_the_curves_are(measured) -> None:
    for name in measured:
        column, values, rule = average(measured.column(name), measured.series(name))
        found = curves_of(measured.column(name))
        assert not MEANS & set(column.dims)
        assert len(places(column)) == len(found)
        assert rule == found[0].rule
        flat = values.reshape(len(values), -1)
        for number, curve in enumerate(found):
            if not np.isnan(flat[:, number]).any():
                np.testing.assert_array_equal(curve.read(measured)[1], flat[:, number])


def test_a_series_of_several_curves_is_refused_with_their_names_wherever_one_is_needed(tmp_path) -> None:
    run = with_references(tmp_path)
    names = "ref/kl[reference=far], ref/kl[reference=near, [x]=1]"
    for ask in (
        lambda: run.stages("ref/kl"),
        lambda: parse_measure("ref/kl:final")(run),
        lambda: parse_measure("plateau_length:ref/kl@50%")(run),
    ):
        with pytest.raises(UsageError) as told:
            ask()
        assert str(told.value) == f"series 'ref/kl' has 2 curves; give one of them: {names}"


def with_references(runs, name: str = "a", **manifest):
    """A run with the KL to two references over two layers: one falls at 200, the other at 600."""
    far, near = staircase(STEPS, (200,), (4.0, 1.0)), staircase(STEPS, (600,), (8.0, 2.0))
    values = np.stack([np.stack([far, near], 1)] * 2, 1) * np.array([0.5, 1.5])[None, :, None]  # [step, layer, ref]
    readings = [
        pack(
            float(step),
            [
                sl.Reading("loss", far[i]),
                sl.Reading(
                    "ref/kl", values[i], ("layer", "reference"), {"reference": ["far", "near, [x]=1"], "layer": [0, 1]}
                ),
            ],
        )
        for i, step in enumerate(STEPS)
    ]
    from stagelens.runs.store import Store

    run = write_run(runs, name, {}, steps=[], planned=1000, **manifest)
    store = Store(run.folder)
    store.add(*readings)
    store.close()
    return sl.load(run.folder)


def test_a_name_with_brackets_picks_a_curve_in_stages_measures_and_compare(tmp_path) -> None:
    run = with_references(tmp_path)
    (drop,) = run.stages("ref/kl[reference=near, [x]=1]").transitions
    assert drop.at == pytest.approx(600, abs=10)
    (drop,) = run.stages("ref/kl[layer=0,reference=far]").transitions
    assert drop.at == pytest.approx(200, abs=10)
    assert parse_measure("ref/kl[reference=far]")(run).value == pytest.approx(1.0)
    assert parse_measure("ref/kl[layer=1,reference=near, [x]=1]:final")(run).value == pytest.approx(3.0)
    assert parse_measure("plateau_length:ref/kl[reference=near, [x]=1]@50%")(run).value == pytest.approx(605, abs=10)
    picked = sl.compare([run], "ref/kl[layer=1,reference=far]")
    assert [(series.name, series.rule) for series in picked.series] == [("ref/kl[layer=1,reference=far]", "")]
    assert picked.table[-1]["ref/kl[layer=1,reference=far]"] == pytest.approx(1.5)


def test_a_comparison_has_one_curve_for_each_reference(tmp_path) -> None:
    for seed in (0, 1):
        with_references(tmp_path, f"seed{seed}", seed=seed)
    both = sl.compare(["seed0", "seed1"], "ref", folder=tmp_path)
    labels = [f"ref/kl[reference={name}] (mean over layer)" for name in ("far", "near, [x]=1")]
    assert [series.label for series in both.series] == labels
    assert [both.table[-1][label] for label in labels] == pytest.approx([1.0, 2.0])
    assert {label: (curve.middle[0], curve.middle[-1]) for label, curve in zip(labels, both.curves, strict=True)} == {
        labels[0]: pytest.approx((4.0, 1.0)),
        labels[1]: pytest.approx((8.0, 2.0)),
    }
    assert [axis.get_ylabel() for axis in both.figure().axes] == [
        label.replace("kl[", "kl\n[").replace(" (mean", "\n(mean") for label in labels
    ]


def test_runs_share_the_curves_whose_labels_they_share() -> None:
    def with_labels(*labels):
        values = np.arange(len(labels)) + 1.0
        readings = [sl.Reading("loss", 1.0), sl.Reading("kl", values, ("reference",), {"reference": labels})]
        return Timeline([pack(float(step), readings) for step in range(5)])

    def names(*timelines):
        return [series.name for series in sl.compare(timelines, "kl").series]

    assert names(with_labels("a"), with_labels("a")) == ["kl"]
    assert names(with_labels("a", "b"), with_labels("b", "c")) == ["kl[reference=b]"]
    assert names(with_labels("a"), with_labels("a", "b")) == ["kl[reference=a]"]
    with pytest.raises(UsageError, match="has no curve that all the runs have"):
        names(with_labels("a"), with_labels("b"))


def test_events_and_charts_of_many_elements_keep_what_is_no_layer_head_or_position_apart() -> None:
    rise = staircase(STEPS, (500,), (0.0, 1.0))
    values = np.stack([np.stack([rise, 0 * rise, 1 - rise], 1)] * 40, 1)  # [step, head, direction]: one of three rises
    line = timeline(STEPS, {"probe/mass": (values, ("head", "direction"))})
    assert probe_events(line) == [
        {"step": pytest.approx(500), "what": "direction 0: mean over head: half of its rise", "series": "probe/mass"}
    ]


def test_the_chart_of_a_run_averages_heads_and_draws_each_direction(tmp_path) -> None:
    values = np.broadcast_to(np.arange(3.0), (len(STEPS), 40, 3))
    chart = run_chart(write_run(tmp_path, "a", {"loss": STEPS, "probe/mass": (values, ("head", "direction"))}))
    (drawn,) = (series for series in chart["series"] if series["name"] == "probe/mass")
    assert drawn["title"] == "probe/mass (mean over head)"
    assert [(trace["name"], trace["y"][0]) for trace in drawn["traces"]] == [
        (f"direction {number}", float(number)) for number in range(3)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loss", ("loss", {})),
        ("a/b[layer=1,head=0]", ("a/b", {"layer": "1", "head": "0"})),
        ("a/b[ layer = 1 , head = 0 ]", ("a/b", {"layer": "1", "head": "0"})),
        ("norm[parameter=blocks.0.W_Q]", ("norm", {"parameter": "blocks.0.W_Q"})),
        ("kl[reference=n-gram, n=2]", ("kl", {"reference": "n-gram", "n": "2"})),
        ("kl[reference=a, then b]", ("kl", {"reference": "a, then b"})),
        ("value[quantity=w^2 - v^2 [0]]", ("value", {"quantity": "w^2 - v^2 [0]"})),
    ],
)
def test_a_curve_is_named_by_its_series_and_elements(text, found) -> None:
    assert parse_curve(text) == found


def test_a_dim_or_label_that_is_not_there_is_told_with_those_that_are(tmp_path) -> None:
    run = with_references(tmp_path)
    for text, word in (
        ("ref/kl[refrence=far]", "unknown dim 'refrence'.*reference"),
        ("ref/kl[reference=fra]", "unknown reference 'fra'.*far"),
        ("ref/kl[far]", "expected elements such as"),
        ("ref/lk[reference=far]", "unknown series 'ref/lk'.*ref/kl"),
    ):
        with pytest.raises(UsageError, match=word):
            run.stages(text)


def test_a_series_whose_name_has_brackets_is_itself() -> None:
    line = timeline([0, 1, 2], {"loss[0]": np.array([3.0, 2.0, 1.0])})
    assert one_curve(line, "loss[0]").read(line)[1].tolist() == [3.0, 2.0, 1.0]
