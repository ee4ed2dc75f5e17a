"""Every task at a tiny size: its numbers are the pinned ones, and it runs to its report with all of its figures."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

import stagelens as sl
from kit.tiny import exact_run, host, reported_run, task_ids, tiny_settings
from project import golden

HOW = "if the change is meant, run `python tests/project/pin.py golden SERIES` and say why in the changelog"
PINNED = golden.load()
STANDARD = ("quick", "paper")


def test_every_task_and_no_other_is_pinned():
    registered = {golden.key_of(task, seed) for task in task_ids() for seed in golden.SEEDS}
    assert PINNED.keys() == registered, HOW


@pytest.mark.parametrize("task_id", task_ids())
@pytest.mark.parametrize("seed", golden.SEEDS)
def test_the_numbers_of_a_task_are_the_pinned_ones(task_id, seed):
    pinned = PINNED.get(golden.key_of(task_id, seed), {})
    wrong = list(golden.differences(pinned, golden.numbers_of(exact_run(task_id, seed))))
    assert not wrong, "\n".join([f"{task_id}, seed {seed}:", *wrong, HOW])


def test_a_change_of_a_few_millionths_is_a_difference():
    before = {"loss": golden.Series((), np.array([2.0, 1.0])), "gone": golden.Series((), np.zeros(1))}
    after = {"loss": golden.Series((), np.array([2.0, 1.0 + 5e-6])), "new": golden.Series((), np.zeros(1))}
    assert [line.split()[0] for line in golden.differences(before, after)] == ["loss", "gone", "new"]
    assert not list(golden.differences(before, before))
    nan = {"loss": golden.Series((), np.array([2.0, np.nan]))}
    assert len(list(golden.differences(nan, {"loss": before["loss"]}))) == 1
    assert len(list(golden.differences({"loss": before["loss"]}, nan))) == 1


def test_pinning_adds_what_is_new_and_refuses_what_changed_unless_it_is_named():
    one, two = (golden.Series((), np.array([value])) for value in (1.0, 2.0))
    pinned = {"task 0": {"loss": one, "gone": one}}
    found = {"task 0": {"loss": two, "new": one}, "new task 0": {"loss": one}}
    assert [line.split()[2] for line in golden.unexpected(pinned, found, ())] == ["loss", "gone"]
    assert [line.split()[2] for line in golden.unexpected(pinned, found, ("loss",))] == ["gone"]
    assert not list(golden.unexpected(pinned, found, ("loss", "gone")))


@pytest.mark.parametrize("task_id", task_ids())
def test_a_task_runs_to_its_report_with_all_figures(task_id):
    run = reported_run(task_id)
    assert run.status == "finished" and run.manifest.error == ""
    assert run.manifest.problems == {}
    drawn = {path.stem for path in run.folder.glob("figures/*.png")}
    own = run.experiment.figures(run)
    assert drawn >= {"loss", *own}, f"not drawn: {own.keys() - drawn}"
    for path in run.folder.glob("figures/*"):
        assert path.stat().st_size > 3000, path.name
    for name, figure in own.items():
        assert_drawn(name, figure)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert len(re.findall('<img alt="[^"]*" src="data:image/png', page)) == len(drawn)
    assert run.name in page and '"chart-data"' in page


@pytest.mark.parametrize("task_id", task_ids())
def test_in_float32_the_loss_is_the_pinned_one_up_to_rounding(task_id):
    pinned, found = PINNED[golden.key_of(task_id, 0)]["loss"].values, reported_run(task_id).timeline.series("loss")
    assert np.allclose(found, pinned, rtol=2e-4, atol=1e-5)


def special_presets():
    """The presets that are a figure of their own, and settings that change which figure is drawn."""
    for name, reference in host().tasks:
        yield from (pytest.param(name, preset, {}, id=f"{name}-{preset}") for preset in reference.presets)
    yield pytest.param("rich/toy", "quick", {"tokens": "boolean"}, id="rich/toy-boolean")
    yield pytest.param("rich/flow", "quick", {"system": "first-layer"}, id="rich/flow-first-layer")


@pytest.mark.parametrize(
    ("task_id", "preset", "settings"),
    [one for one in special_presets() if one.values[1] not in STANDARD or one.values[2]],
)
def test_the_figures_of_the_other_presets_can_be_drawn(task_id, preset, settings, tmp_path):
    settings = tiny_settings(task_id) | settings
    run = sl.run(task_id, preset=preset, settings=settings, runs=tmp_path, device="cpu", host=host(), report=False)
    assert run.status == "finished" and run.manifest.problems == {}
    figures = run.experiment.figures(run)
    assert figures
    for name, figure in figures.items():
        assert_drawn(name, figure)
        figure.savefig(io.BytesIO(), format="png", dpi=40)


def assert_drawn(name, figure):
    """Some axis of the figure shows finite data."""
    assert figure is not None, name
    lines = [line.get_ydata() for axis in figure.axes for line in axis.lines]
    shown = any(np.isfinite(np.asarray(values, dtype=float)).sum() > 1 for values in lines)
    assert shown or any(axis.images or axis.collections for axis in figure.axes), f"{name} is empty"
