"""Checkpoints: any tree of tensors and plain values, written completely or not at all, and only of the same task."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file

from stagelens.base.errors import EnvironmentFault, StagelensError, UsageError
from stagelens.runs import checkpoint

STATE = {
    "model": {"blocks.0.W": torch.randn(3, 4), "half": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(5)},
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2)}, 1: {}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "foreach": None, "maximize": False}],
    },
    "scheduler": {"best": math.inf, "last_epoch": 7, "name": "x", "rate": 0.1 + 0.2},
    "loss": None,
}


def test_a_state_comes_back_as_it_went_in(tmp_path):
    path = checkpoint.save(tmp_path, 12, "a/b", STATE)
    assert path == tmp_path / "checkpoints" / "000000012.safetensors"
    found = checkpoint.load(path, "a/b")
    assert found["scheduler"] == STATE["scheduler"] and found["loss"] is None
    assert found["optimizer"]["param_groups"] == [STATE["optimizer"]["param_groups"][0] | {"betas": [0.9, 0.999]}]
    assert list(found["optimizer"]["state"]) == [0, 1]
    for name, tensor in STATE["model"].items():
        assert torch.equal(found["model"][name], tensor) and found["model"][name].dtype == tensor.dtype


def test_tensors_that_share_memory_are_saved_apart(tmp_path):
    tied = torch.randn(4, 4)
    path = checkpoint.save(tmp_path, 0, "a/b", {"model": {"in": tied, "out": tied.T, "part": tied[:2]}})
    found = checkpoint.load(path)["model"]
    assert torch.equal(found["out"], tied.T) and torch.equal(found["part"], tied[:2])


def test_steps_are_sorted_as_numbers_and_other_files_passed_over(tmp_path):
    assert checkpoint.steps_in(tmp_path) == []
    for step in (100, 20, 3):
        checkpoint.save(tmp_path, step, "a/b", {"model": {}})
    (tmp_path / "checkpoints" / ".000000999.safetensors.1.part").touch()
    assert checkpoint.steps_in(tmp_path) == [3, 20, 100]


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    path = checkpoint.save(tmp_path, 1, "their/task", STATE)
    with pytest.raises(UsageError, match="is of task 'their/task', expected 'my/task'"):
        checkpoint.load(path, "my/task")
    with pytest.raises(UsageError, match="their/task"):
        checkpoint.latest(tmp_path, "my/task")


def test_a_safetensors_file_of_another_program_is_refused(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "theirs.safetensors")
    with pytest.raises(UsageError, match="not a stagelens checkpoint"):
        checkpoint.load(tmp_path / "theirs.safetensors")
    with pytest.raises(UsageError, match="there is no checkpoint"):
        checkpoint.load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("length", [0, 5, 200, -8])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, length):
    checkpoint.save(tmp_path, 1, "a/b", {"model": {"w": torch.ones(2)}})
    path = checkpoint.save(tmp_path, 2, "a/b", STATE)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(EnvironmentFault, match="damaged"):
        checkpoint.load(path)
    step, state = checkpoint.latest(tmp_path, "a/b")
    assert step == 1 and state["model"]["w"].tolist() == [1, 1]


def test_what_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(StagelensError, match=r"scheduler\.rule holds a function"):
        checkpoint.save(tmp_path, 0, "a/b", {"scheduler": {"rule": lambda: 0}})
    assert checkpoint.steps_in(tmp_path) == []
