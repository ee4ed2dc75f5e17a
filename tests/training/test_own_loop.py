"""A run that a training loop of one's own writes: complete at every moment, and like every other run afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.own_models import next_token_loss, plain_model, tokens_like_text

TOKENS = tokens_like_text()
PROBES = ["attention_sparsity", "induction"]


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loop(recorder: sl.Recorder, model: Any, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in steps:
        recorder.measure(step)
        optimizer.zero_grad()
        next_token_loss(model, TOKENS).backward()
        optimizer.step()


def recorder_of(model: Any, **options: Any) -> sl.Recorder:
    return sl.Recorder(model, PROBES, batch=TOKENS, loss=next_token_loss, **options)


def test_a_with_block_leaves_a_run_that_every_command_can_use(cli: Any) -> None:
    @dataclass
    class Settings:
        lr: float = 0.01
        dtype: Any = torch.float32

    model = plain_model("scaled")
    with recorder_of(model, run="mine", config=Settings(), stage_names=["first"]) as recorder:
        loop(recorder, model, range(8))
        assert sl.load("mine").status == "running"  # it can be read meanwhile
        assert list(sl.load("mine").timeline.steps) == list(range(8))
    run = sl.load("mine")
    assert (run.status, run.manifest.steps, run.manifest.config) == (
        "finished",
        7,
        {"lr": 0.01, "dtype": "torch.float32"},
    )
    assert (run.folder / "report.html").exists()
    for name in recorder.timeline:
        np.testing.assert_array_equal(run.timeline.series(name), recorder.timeline.series(name))
    for words in (
        ["show", "mine"],
        ["runs"],
        ["stages", "mine", "--metric", "attention_sparsity/sparsity"],
        ["compare", "mine", "mine"],
        ["report", "mine"],
        ["export", "mine", "--format", "csv"],
    ):
        answer = cli(*words)
        assert answer.code == 0, (words, answer.err)
    assert "mine" in cli("runs").out


def test_resuming_continues_the_timeline() -> None:
    model = plain_model("scaled")
    whole = recorder_of(plain_model("scaled"))
    loop(whole, whole.context.model.model, range(6))
    first = recorder_of(model, run="mine", config={"lr": 1})
    loop(first, model, range(3))
    first.finish()
    again = recorder_of(model, run="mine", config={"lr": 1}, resume=True)
    loop(again, model, range(3, 6))
    run = again.finish()
    assert run is not None
    for timeline in (run.timeline, again.timeline):
        assert list(timeline.steps) == list(range(6))
        for name in whole.timeline:
            np.testing.assert_allclose(timeline.series(name), whole.timeline.series(name), rtol=1e-6, atol=1e-9)


def test_a_loop_that_raises_leaves_a_failed_run_with_its_measurements() -> None:
    model = plain_model("scaled")
    with pytest.raises(ZeroDivisionError), recorder_of(model, run="mine") as recorder:
        loop(recorder, model, range(3))
        _ = 1 / 0
    run = sl.load("mine")
    assert (run.status, list(run.timeline.steps)) == ("failed", [0, 1, 2])
    assert "ZeroDivisionError" in run.manifest.error


def test_a_killed_process_loses_no_measurement() -> None:
    tests = Path(__file__).parents[1]
    script = (
        "from kit.own_models import *\n"
        "import stagelens as sl\n"
        "model = plain_model('scaled')\n"
        "recorder = sl.Recorder(model, ['attention_sparsity'], batch=tokens_like_text(), run='mine')\n"
        "for step in range(10**6):\n"
        "    recorder.measure(step)\n"
        "    print(step, flush=True)\n"
    )
    paths = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        seen = -1
        while seen < 5:
            seen = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = [int(line) for line in process.stdout.read().split()]
    last = max([seen, *rest])
    run = sl.load("mine")
    assert run.status == "interrupted"
    assert list(run.timeline.steps)[: last + 1] == list(range(last + 1))
    recorder = sl.Recorder(plain_model("scaled"), ["attention_sparsity"], batch=TOKENS, run="mine", resume=True)
    recorder.measure(10**6)
    recorder.finish()
    assert sl.load("mine").status == "finished"


def test_mistakes_are_reported_in_one_line() -> None:
    model = plain_model("scaled")
    recorder_of(model, run="mine").finish()
    (Path("runs") / "other").mkdir()
    (Path("runs") / "other" / "file.txt").write_text("x")
    for words, options in {
        "run 'mine' exists in runs; give resume=True": {"run": "mine"},
        "holds other files and is not a run": {"run": "other"},
        "belong to a run": {"config": {"lr": 1}},
        "config is a list": {"run": "new", "config": [1]},
    }.items():
        with pytest.raises(sl.StagelensError, match=words):
            recorder_of(model, **options)
    held = recorder_of(model, run="busy")
    with pytest.raises(sl.StagelensError, match="busy"):
        recorder_of(model, run="busy", resume=True)
    held.finish()
    recorder_of(model, run="busy", resume=True).finish()
