"""TensorBoard and Weights & Biases receive the numbers of the timeline."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import stagelens as sl
from conftest import STAGELENS
from kit.tiny import is_flow, task_ids, tiny_settings
from stagelens.host.host import make_host

SMALL = {"steps": 6, "batch_size": 16, "train_size": 0, "eval_size": 8}


def numbers(run) -> dict[str, dict[int, float]]:
    """Returns name -> step -> value from the timeline; nan if nothing was measured at that step."""
    found: dict[str, dict[int, float]] = {}
    for index, step in enumerate(run.timeline.steps):
        for name in run.timeline:
            column = run.timeline.column(name)
            reading = sl.Reading(name, run.timeline.series(name)[index], column.dims, dict(column.coords))
            for key, value in reading.scalars().items():
                if not np.isnan(value):
                    found.setdefault(key, {})[int(step)] = value
    return found


def test_a_reading_without_dims_is_one_number_and_one_with_dims_has_one_per_element():
    assert sl.Reading("loss", 2.0).scalars() == {"loss": 2.0}
    reading = sl.Reading("p/x", np.array([[1.0, 2.0]]), ("layer", "head"), {"layer": [3]})
    assert reading.scalars() == {"p/x/layer 3/head 0": 1.0, "p/x/layer 3/head 1": 2.0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_every_number_once_also_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    host = make_host(["stagelens_tensorboard"])
    assert not host.failed
    run = sl.run("markov", settings=SMALL, runs=tmp_path, name="a", host=host, report=False)
    run = sl.run("markov", settings=SMALL, runs=tmp_path, name="a", host=host, report=False, resume=True)
    events = EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    for name, values in numbers(run).items():
        kept = {event.step: event.value for event in events.Scalars(name.replace(" ", ""))}
        assert list(kept) == list(values), name
        assert np.allclose(list(kept.values()), list(values.values()), rtol=1e-6), name


def events_of(folder):
    """name -> its events, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: found.Scalars(name) for name in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("flow", [name for name in task_ids() if is_flow(name)])
def test_tensorboard_has_every_time_of_a_flow_on_a_step_of_its_own(flow, tmp_path):
    pytest.importorskip("tensorboard")
    host = make_host(["stagelens_tensorboard"])
    settings = tiny_settings(flow) | {"points": 200}  # close enough together for steps to collide
    run = sl.run(flow, settings=settings, runs=tmp_path, name="a", host=host, report=False)
    events = events_of(run.folder)["loss"]
    times, values = run.timeline.scalar("loss")
    assert [event.wall_time for event in events] == list(times)
    assert np.allclose([event.value for event in events], values, rtol=1e-6)
    steps = np.array([event.step for event in events])
    assert (np.diff(steps) > 0).all()
    from stagelens_tensorboard import scale_of

    off = np.abs(steps / scale_of(run.manifest.steps) - times)
    assert off.max() <= 1e-5 * run.manifest.steps


class Recorded(SimpleNamespace):
    """The parts of a run that an exporter uses."""

    def __init__(self, folder, kind, steps):
        manifest = SimpleNamespace(kind=kind, steps=steps)
        super().__init__(folder=folder, checkpoints=[], command="stagelens run", manifest=manifest)


TIMES = {
    "close together": [0.0, 1e-9, 2e-9, 0.1, 0.1 + 1e-12, 0.5, np.nextafter(0.5, 1), 1.0],
    "long": [0.0, 0.25, 0.5, 1e8 - 0.5, 1e8],
    "beyond integers": [0.0, 1e30, 2e30, 1e40],
    "short": [0.0, 1e-12, 3e-12],
    "no time at all": [0.0],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_times_of_any_size_and_distance_stay_apart_in_tensorboard(times, tmp_path):
    pytest.importorskip("tensorboard")
    import stagelens_tensorboard as plugin

    run = Recorded(tmp_path, "flow", times[-1])
    plugin.stagelens_run_started(run)
    for index, time in enumerate(times):
        plugin.stagelens_reading_recorded(run, time, [sl.Reading("loss", float(index))])
    plugin.stagelens_run_finished(run)
    events = events_of(tmp_path)["loss"]
    assert [(event.wall_time, event.value) for event in events] == [(time, index) for index, time in enumerate(times)]
    assert (np.diff([event.step for event in events]) > 0).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_that_differ_by_blanks_stay_apart_in_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    import stagelens_tensorboard as plugin

    run = Recorded(tmp_path, "training", 10)
    reading = sl.Reading("x", np.array([1.0, 2.0, 3.0]), ("group",), {"group": ["0 back", "0back", "I(1)"]})
    plugin.stagelens_run_started(run)
    for step in (0, 10):
        plugin.stagelens_reading_recorded(run, step, [reading])
    plugin.stagelens_run_finished(run)
    found = events_of(tmp_path)
    assert {name: [(e.step, e.value) for e in events] for name, events in found.items()} == {
        "x/group0back": [(0, 1.0), (10, 1.0)],
        "x/group 0back": [(0, 2.0), (10, 2.0)],
        "x/groupI(1)": [(0, 3.0), (10, 3.0)],
    }


@pytest.mark.slow
def test_weights_and_biases_keeps_the_run_offline(tmp_path):
    pytest.importorskip("wandb")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {"WANDB_SILENT": "true"}
    command = [*STAGELENS, "--plugin-dir", "stagelens_wandb", "run", "recall/flow", "--set", "points=5", "--name", "a"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=environment, timeout=300)
    run = sl.load(tmp_path / "runs" / "a")
    (kept,) = (run.folder / "wandb").glob("offline-run-*/*.wandb")
    rows = list(_history(kept))
    assert [row["step"] for row in rows] == list(run.timeline.steps)
    assert [row["loss"] for row in rows] == list(run.timeline.series("loss"))


def _history(path):
    """The rows that were logged, from wandb's own file."""
    from wandb.proto import wandb_internal_pb2 as messages

    for data in _records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}


def _records(data: bytes):
    """The records of a LevelDB log: a file header, then blocks of 32 KiB; each piece says length and kind."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last piece
            yield whole
            whole = b""


@pytest.mark.parametrize(
    ("plugin", "package"), [("stagelens_tensorboard", "tensorboard"), ("stagelens_wandb", "wandb")]
)
def test_without_the_package_the_plugin_says_what_to_install(monkeypatch, plugin, package):
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("torch.utils.tensorboard", plugin):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (failed,) = make_host([plugin]).failed
    assert failed.error.endswith(f"pip install {package}")
