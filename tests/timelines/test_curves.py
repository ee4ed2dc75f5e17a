"""Curves: layers, heads and positions are averaged; every other element is a curve with a name that selects it."""

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
from stagelens.timelines.curves import average, curve_name, curves_of, distinct, one_curve
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
    probes = make_host().probe_names(own=experiment.probes)
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
                # the same mean, whose numbers may be summed in another order
                np.testing.assert_allclose(curve.read(measured)[1], flat[:, number], rtol=1e-13, atol=1e-15)


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
    what, curve = "direction 0: mean over head: half of its rise", "probe/mass[direction=0]"
    assert probe_events(line) == [{"step": pytest.approx(500), "what": what, "series": "probe/mass", "curve": curve}]


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
    name = curve_name(text)
    assert (name.series, name.place, name.is_mean) == (*found, False)


def test_a_dim_or_label_that_is_not_there_is_reported_with_those_that_are(tmp_path) -> None:
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


def per_head() -> Timeline:
    """A series [step, layer, head, group] of distinct numbers."""
    values = np.arange(3 * 2 * 3 * 2, dtype=float).reshape(3, 2, 3, 2)
    dims = ("layer", "head", "group")
    coords = {"group": ["near", "far"]}
    return Timeline([pack(step, [sl.Reading("p/mass", values[step], dims, coords)]) for step in range(3)])


def test_a_star_asks_for_one_curve_each_and_mean_for_one_of_all() -> None:
    line = per_head()
    array, column = line["p/mass"], line.column("p/mass")
    found = curves_of(column, place=curve_name("p/mass[head=*,group=far]").place)
    assert [curve.name for curve in found] == [f"p/mass[head={head},group=far]" for head in range(3)]
    for head, curve in enumerate(found):
        np.testing.assert_allclose(curve.read(line)[1], array.isel(head=head, group=1).mean("layer"))
        assert one_curve(line, curve.name) == curve
    for text, known in {
        "mean(p/mass)": array.mean(["layer", "head", "group"]),
        "mean(p/mass[group=far])": array.isel(group=1).mean(["layer", "head"]),
        "mean( p/mass[layer=1, head=2] )": array.isel(layer=1, head=2).mean("group"),
    }.items():
        curve = one_curve(line, text)
        np.testing.assert_allclose(curve.read(line)[1], known)
        assert one_curve(line, curve.name) == curve


def test_the_same_names_pick_parts_of_a_timeline() -> None:
    line = per_head()
    array = line["p/mass"]
    for text, known in {
        "p/mass[layer=1,group=far]": array.isel(layer=1, group=1),
        "p/mass[layer=1,head=*]": array.isel(layer=1),
        "mean(p/mass[head=*])": array.mean(["layer", "group"]),
        "mean(p/mass[layer=0])": array.isel(layer=0).mean(["head", "group"]),
    }.items():
        assert line[text].dims == known.dims
        np.testing.assert_allclose(line[text], known)
    for text, message in {
        "p/mass[layer=7]": "unknown layer '7'.*0, 1",
        "p/mass[side=1]": "unknown dim 'side'.*group, head, layer",
        "p/mas[layer=0]": "unknown series 'p/mas'.*p/mass",
        "mean(p/mass[layer])": "expected elements such as",
    }.items():
        with pytest.raises(UsageError, match=message):
            line[text]


def test_every_command_understands_the_same_names(tmp_path) -> None:
    curve = staircase(STEPS, [150], [3, 1])
    values = np.stack([curve, 2 * curve], axis=-1)  # [step, head]
    run = write_run(tmp_path, "one", {"loss": curve, "p/score": (values, ("head",))})
    one, mean = "p/score[head=1]", "mean(p/score)"
    for text, factor in ((one, 2.0), (mean, 1.5)):
        assert run.stages(text).transitions[0].at == run.stages("loss").transitions[0].at
        assert parse_measure(f"{text}:final")(run).value == pytest.approx(factor * curve[-1])
        plateau, known = (parse_measure(f"plateau_length:{one}@50%")(run).value for one in (text, "loss"))
        assert plateau == pytest.approx(known)
        assert sl.compare([run], probes=[text]).series[0].name == text
    assert [c.name for c in sl.compare([run], probes=["p/score[head=*]"]).series] == [
        "p/score[head=0]",
        one,
    ]


def test_lines_that_are_the_same_at_every_step_are_one():
    one, other, nans = [1.0, 2.0, np.nan], [1.0, 3.0, np.nan], [np.nan] * 3
    lines = np.array([other, one, other, nans, one, nans]).T
    np.testing.assert_array_equal(distinct(lines), np.array([other, one, nans]).T)
    assert distinct(np.empty((3, 0))).shape == (3, 0)
