"""`--jobs N` measures checkpoints in parallel processes, with the numbers of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.own_models import tokens_like_text
from kit.saved_models import save_series
from stagelens.base.errors import EnvironmentFault
from stagelens.host import make_host
from stagelens.runs import held
from stagelens.training.saved_checkpoints.measuring import packed_states, unpacked_states
from stagelens.training.saved_checkpoints.series import find_series

STATEFUL = ["qk_alignment", "gradient", "attention_sparsity", "induction"]


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_bit_for_bit_and_in_order(tmp_path: Path) -> None:
    """`qk_alignment` and `gradient` carry a state from each checkpoint to the next. One checkpoint is damaged."""
    saved = save_series(tmp_path / "saved", steps=(0, 10, 20, 30, 40))
    (saved / "checkpoint-30" / "model.safetensors").write_bytes(b"junk")
    heard: list[float] = []

    class Observer:
        @sl.hookimpl
        def stagelens_reading_recorded(self, run: sl.Run, step: float) -> None:
            heard.append(step)
            assert run.timeline.steps.tolist() == heard

    def probed(jobs: int) -> sl.Run:
        host = make_host()
        host.load("observer", "1", Observer)
        heard.clear()
        options = {"probes": STATEFUL, "batch": tokens_like_text(), "runs": tmp_path / "runs", "report": False}
        return sl.probe_checkpoints(saved, jobs=jobs, host=host, **options)

    one, two = probed(1), probed(2)
    assert heard == [0, 10, 20, 40]
    assert one.timeline.steps.tolist() == two.timeline.steps.tolist() == heard
    assert list(one.timeline) == list(two.timeline)
    for name in one.timeline:
        np.testing.assert_array_equal(one.timeline.series(name), two.timeline.series(name), err_msg=name)
    assert np.isfinite(two.timeline.series("gradient/cosine")[1:]).all()
    assert one.warnings == two.warnings and "checkpoint-30 cannot be read" in one.warnings[0]
    assert one.status == two.status == "interrupted" and one.manifest.skipped == two.manifest.skipped


def test_a_worker_that_dies_is_one_line_and_what_was_measured_stays(tmp_path: Path) -> None:
    saved = save_series(tmp_path / "saved", steps=(0, 10))
    others = {child.pid for child in multiprocessing.active_children()}  # of other tests

    def kill_the_worker() -> None:
        while not (workers := [child for child in multiprocessing.active_children() if child.pid not in others]):
            time.sleep(0.01)
        os.kill(workers[0].pid or 0, signal.SIGKILL)

    threading.Thread(target=kill_the_worker, daemon=True).start()
    options = {"probes": ["attention_sparsity"], "runs": tmp_path / "runs", "report": False}
    with pytest.raises(EnvironmentFault, match=r"a worker died \(signal 9\) before .*-10 was measured") as error:
        sl.probe_checkpoints(saved, jobs=2, **options)
    assert "\n" not in str(error.value)
    run = sl.load(tmp_path / "runs" / "probe-saved")
    assert run.status == "interrupted" and run.timeline.steps.tolist() == [0]
    with held(run.folder):
        pass  # no process writes it any more


def test_states_arrive_in_another_process_as_they_were() -> None:
    states = {"a": {"x": torch.randn(3, 2, dtype=torch.float64), "n": 3}, "b": {"first": torch.ones(1)}}
    again = unpacked_states(packed_states(states))
    assert again["a"]["n"] == 3 and again.keys() == states.keys()
    assert torch.equal(again["a"]["x"], states["a"]["x"]) and torch.equal(again["b"]["first"], states["b"]["first"])


def test_more_jobs_than_checkpoints_is_no_error(tmp_path: Path) -> None:
    saved = save_series(tmp_path / "saved", steps=(0,))
    assert len(find_series([saved]).files) == 1
    run = sl.probe_checkpoints(saved, jobs=8, probes=["attention_sparsity"], runs=tmp_path / "runs", report=False)
    assert run.status == "finished"
