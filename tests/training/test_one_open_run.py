"""From the end of training to the report there is one open `Run`: its timeline and stages are read only once."""

from __future__ import annotations

from collections import Counter

import pytest

import stagelens as sl
from kit.tasks import Decay, Regression
from stagelens import stages
from stagelens.host import make_host
from stagelens.runs import run as runs_run, store


@pytest.fixture
def counted(monkeypatch):
    """Counts the reads of timelines, and the detections of stages by curve."""
    counts: Counter[str] = Counter()
    read, detect = store.read_measurements, stages.detect_stages

    def read_measurements(*args, **options):
        counts["reads"] += 1
        return read(*args, **options)

    def detect_stages(steps, values, *args, **options):
        counts["detections"] += 1
        return detect(steps, values, *args, **options)

    monkeypatch.setattr(runs_run, "read_measurements", read_measurements)
    monkeypatch.setattr(store, "read_measurements", read_measurements)
    monkeypatch.setattr(stages, "detect_stages", detect_stages)
    return counts


class Predicted(Regression):
    """Theory predicts levels of the metric: scoring them and reporting the stages need the same stages."""

    id = "small/predicted"

    def predictions(self):
        return [sl.Prediction(f"level {n}", "level", level, "Eq. 1") for n, level in enumerate((1.0, 0.1))]


@pytest.mark.parametrize("task", [Regression, Predicted, Decay])
def test_a_run_reads_its_timeline_once_and_finds_its_stages_once(task, tmp_path, counted):
    host = make_host()
    done = sl.run(task, runs=tmp_path, host=host, report=True)
    assert (done.folder / "report.html").exists() and not done.problems
    assert counted == {"reads": 1, "detections": 1}
    assert done.stages().to_dicts() == done.manifest.stages == sl.load(done.folder).stages().to_dicts()
    assert done.timeline.steps.tolist() == sl.load(done.folder).timeline.steps.tolist()


def test_an_observer_sees_every_measurement_in_the_timeline_of_the_run(tmp_path):
    seen = []

    class Observer:
        @sl.hookimpl
        def stagelens_reading_recorded(self, run, step, readings):
            seen.append((step, run.timeline.steps[-1], run.manifest.step, run.status))

    host = make_host()
    host.load("observer", "1", Observer)
    done = sl.run(Regression, runs=tmp_path, host=host, report=False)
    assert [step for step, *_ in seen] == done.timeline.steps.tolist()
    assert all(step == last == at for step, last, at, _ in seen)
    assert {status for *_, status in seen} == {"running"}
