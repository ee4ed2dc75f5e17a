"""The training of every task is the same with and without measuring, after a crash, and on both forward paths.

The runs are those of `kit.tiny`. Runs in float64 have every registered probe; runs with a report have the task's own.
"""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.store import host
from kit.tasks import Crash, CrashAt, assert_same_run, assert_same_weights, host_with, weights
from kit.tiny import (
    STEPS,
    exact_run,
    in_float64,
    is_flow,
    reported_run,
    run_exactly,
    run_tiny,
    task_ids,
    tiny_settings,
    tiny_task,
    trained,
)
from stagelens.api import run_ensemble
from stagelens.experiments import Training
from stagelens.experiments.flow import integrate
from stagelens.models import FastTransformer
from stagelens.runs import checkpoint

TASKS = [name for name in task_ids() if not is_flow(name)]
FLOWS = [name for name in task_ids() if is_flow(name)]
TRANSFORMERS = {"emergence/regression", "emergence/recall", "markov/full", "recall/transformer", "rich/text"}
NEAR = 2e-5  # of a parameter's largest value, between seeds trained together and alone
every_task = pytest.mark.parametrize("task_id", TASKS)


def variant(task_id: str, **members: Any) -> type[Any]:
    """The class of a task with other members."""
    kind = host().task(task_id).load()
    return type(kind.__name__, (kind,), members)


def with_two_checkpoints(run: sl.Run) -> sl.Run:
    """The run without its checkpoints between the first and the last."""
    for step in run.checkpoints[1:-1]:
        checkpoint.path_of(run.folder, step).unlink()
    run = sl.load(run.folder, host=host())
    assert run.checkpoints == [0, STEPS]
    return run


@every_task
def test_neither_probes_nor_their_schedule_change_the_weights(task_id, tmp_path):
    """No probe; the task's own at its own steps; the costly ones at other steps; all of them in float64."""
    unmeasured = trained(tiny_task(task_id))
    assert_same_weights(weights(reported_run(task_id)), unmeasured[-1])
    seldom = variant(task_id, schedule=lambda self: sl.Schedule(log=0, even=2, refine=1))
    costly = [name for name, ref in host().probes if not ref.default]
    measured = run_tiny(seldom, 0, tmp_path / "seldom", probes=costly, report=False)
    assert measured.timeline.steps.tolist() == [0, 1, STEPS // 2, STEPS]
    assert_same_weights(weights(measured), unmeasured[-1])
    kind = in_float64(host().task(task_id).load())
    assert_same_weights(weights(exact_run(task_id, 0)), trained(tiny_task(task_id, kind))[-1])


@every_task
def test_a_run_that_crashed_and_was_resumed_is_the_uninterrupted_one(task_id, tmp_path):
    """The run has every probe, so the states of probes between measurements must survive the crash too."""
    with pytest.raises(Crash):
        run_exactly(task_id, 0, tmp_path / "broken", host=host_with(CrashAt(STEPS // 2)))
    assert sl.load(tmp_path / "broken").status == "failed"
    resumed = run_exactly(task_id, 0, tmp_path / "broken", resume=True)
    assert resumed.status == "finished"
    assert_same_run(resumed, exact_run(task_id, 0))


@every_task
def test_the_model_between_two_checkpoints_is_the_one_that_the_training_had(task_id, tmp_path):
    """Includes both training phases of a task that has two, and steps within and after the first pass over a set."""
    expected = trained(tiny_task(task_id))
    folder = shutil.copytree(reported_run(task_id).folder, tmp_path / "copy")
    copy = with_two_checkpoints(sl.load(folder, host=host()))
    for step in (2, STEPS - 1):
        model = copy.model_at(step)
        assert not model.training and all(p.grad is None for p in model.parameters())
        assert_same_weights(dict(model.state_dict()), expected[step])


@pytest.mark.parametrize("task_id", ["emergence/recall", "rich/toy"])  # two heads and Adam; two training phases
def test_the_model_between_two_checkpoints_of_vectorized_seeds_is_that_of_each_seed(task_id, tmp_path):
    settings = tiny_settings(task_id)
    together = run_ensemble(
        task_id, seeds=2, settings=settings, runs=tmp_path, device="cpu", host=host(), report=False, probes=["gradient"]
    )
    assert together.alone == ""
    for seed, one in enumerate(together):
        expected = trained(tiny_task(task_id, seed=seed))
        one = with_two_checkpoints(one)
        for step in (2, STEPS - 1, STEPS):
            for name, value in one.model_at(step).named_parameters():
                other = expected[step][name]
                if not name.endswith("b_K"):  # see test_seeds_together
                    assert (value - other).abs().max() <= NEAR * max(1e-3, other.abs().max()), (step, name)


@every_task
def test_the_fused_forward_path_trains_as_the_hooked_one(task_id):
    """Hooks make a transformer take TransformerLens' own path; in float64 both are the same to 1e-9.

    Toy models have one path, and hooks that only read change no bit.
    """
    kind = in_float64(host().task(task_id).load())
    plain = trained(tiny_task(task_id, kind))[-1]
    hooked = Training(tiny_task(task_id, kind))
    seen = []
    for point in hooked.model.hook_dict.values():
        point.add_hook(lambda value, hook: seen.append(hook.name), is_permanent=True)
    for step in range(STEPS):
        hooked.advance(step)
    fused = isinstance(hooked.model, FastTransformer)
    assert fused == (task_id in TRANSFORMERS) and (seen or not fused)
    for name, value in hooked.model.named_parameters():
        if not fused:
            assert torch.equal(value, plain[name]), name
        elif not name.endswith("b_K"):  # see test_seeds_together
            assert (value - plain[name]).abs().max() <= 1e-9 * max(1e-3, plain[name].abs().max()), name


@pytest.mark.parametrize("task_id", FLOWS)
def test_a_flow_does_not_depend_on_how_many_points_of_it_are_recorded(task_id, tmp_path):
    few = reported_run(task_id)
    settings = tiny_settings(task_id)
    settings |= {"points": 2 * settings["points"] - 1}
    options = {"runs": tmp_path, "host": host(), "report": False}
    many = sl.run(task_id, settings=settings, **options)
    assert len(many.timeline.steps) > len(few.timeline.steps)
    assert few.manifest.events.keys() == many.manifest.events.keys()
    for name, at in few.manifest.events.items():
        assert many.manifest.events[name] == pytest.approx(at, rel=1e-9), name
    shared = np.isin(few.timeline.steps, many.timeline.steps)
    assert shared.sum() >= 3
    there = np.isin(many.timeline.steps, few.timeline.steps[shared])
    for name in few.timeline:
        one, other = few.timeline.series(name)[shared], many.timeline.series(name)[there]
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("task_id", FLOWS)
def test_a_flow_does_not_depend_on_its_solver(task_id):
    """The default, a multistep method, and an implicit Runge-Kutta method give the same trajectory."""
    tolerances = {"rtol": 1e-7, "atol": 1e-10}
    one, other = (integrate(tiny_task(task_id, settings=tolerances | {"method": name})) for name in ("LSODA", "Radau"))
    assert not one.error and not other.error
    assert other.events == pytest.approx(one.events, rel=1e-4)
    for ours, theirs in zip(one.readings, other.readings, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            if mine.name != "conserved/drift":  # it is the solver's error
                scale = max(1e-3, np.nanmax(np.abs(mine.array()), initial=0.0))
                np.testing.assert_allclose(its.array(), mine.array(), rtol=0, atol=5e-4 * scale, err_msg=mine.name)


def test_hooks_that_change_the_training_are_seen_by_these_tests():
    """The comparison of weights is exact: one changed bit of one number fails it."""
    one = trained(tiny_task("recall/simplified"))[-1]
    other = {name: value.clone() for name, value in one.items()}
    first = next(value for value in other.values() if value.is_floating_point())
    first.view(-1)[0] = torch.nextafter(first.view(-1)[0], torch.tensor(9e9))
    with pytest.raises(AssertionError):
        assert_same_weights(one, other)
