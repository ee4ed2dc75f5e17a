"""Distributed training: the first process measures and writes, and the training is the same as without a recorder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import stagelens as sl
from kit.own_models import next_token_loss, plain_model, tokens_like_text
from recording.test_own_models import EVERY, assert_same, train

TOKENS = tokens_like_text()


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_wrapped_model_in_one_process(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        plain = train(DistributedDataParallel(plain_model("by hand", dropout=0.2)), lambda step: None)
        model = DistributedDataParallel(plain_model("by hand", dropout=0.2))
        recorder = sl.Recorder(model, EVERY, batch=TOKENS, loss=next_token_loss)
        assert_same(plain, train(model, recorder.measure))
        assert recorder.problems == {}
        assert "weight_norms/norm" in recorder.timeline
    finally:
        dist.destroy_process_group()


def test_two_processes_by_hand_and_by_lightning() -> None:
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kit.two_processes"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    first, second = found["wrapped"]
    for plain, measured in (first, second):
        assert plain == measured  # losses, weights and random state of one process
    assert first[0][0] != second[0][0] and first[0][1] == second[0][1]  # other batches, the same weights
    assert found["lightning"][0] == found["lightning"][1]
    for name, steps in (("wrapped", [0, 1, 2]), ("lightning", [0, 1, 2, 3])):
        run = sl.load(name)
        assert (run.status, list(run.timeline.steps), run.problems) == ("finished", steps, {})


def test_a_model_that_is_split_over_processes_is_refused() -> None:
    class FlatParameter(torch.nn.Parameter):
        """As FSDP's: a part of many parameters."""

    model = plain_model("scaled")
    model.head.weight = FlatParameter(model.head.weight.detach())
    with pytest.raises(sl.StagelensError, match="split over processes"):
        sl.watch(model, TOKENS)
