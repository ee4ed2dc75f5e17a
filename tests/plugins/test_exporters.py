"""TensorBoard and Weights & Biases get what the timeline has."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from conftest import STAGELENS

import stagelens as sl
from stagelens.host import make_host

SMALL = {"steps": 6, "batch_size": 16, "train_size": 0, "eval_size": 8}


def numbers(run) -> dict[str, dict[int, float]]:
    """name -> step -> value, as the timeline has them; nan where nothing was measured."""
    found: dict[str, dict[int, float]] = {}
    for index, step in enumerate(run.timeline.steps):
        for name in run.timeline:
            column = run.timeline.column(name)
            reading = sl.Reading(name, run.timeline.series(name)[index], column.dims, dict(column.coords))
            for key, value in reading.scalars().items():
                if not np.isnan(value):
                    found.setdefault(key, {})[int(step)] = value
    return found


def test_a_reading_without_dims_is_one_number_and_one_with_dims_is_one_per_place():
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
    assert failed.error.endswith(f"pip install 'stagelens[{package}]'")
