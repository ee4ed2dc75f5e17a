"""Recorders of an ensemble measure in one vectorized pass, with the numbers of single passes, or else one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stagelens as sl
from kit.tasks import Regression, RegressionConfig, TwoMaps, run
from stagelens.api import run_ensemble
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.training import Training
from stagelens.host.host import make_host
from stagelens.host.references import ProbeRef
from stagelens.recording.probes import Omitted
from stagelens.recording.recorder import Recorder
from stagelens.training.stacked_recorder import LARGEST, StackedRecorder
from stagelens.training.stacking import Stacked

SEEDS = (0, 1, 2)


class Double(Regression):
    """In float64, with a metric."""

    id = "small/double-probed"

    def build_model(self) -> TwoMaps:
        return super().build_model().double()

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = super().sample(n, generator)
        return x.double(), y.double()

    def metrics(self, output: Tensor, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"worst": (output - batch[1]).abs().max()}


class Largest(sl.Probe):
    """The largest mean of the middle layer so far: it has hooks, and a state."""

    name, gives, hooks, stacks = "largest", ("value",), ("hook_middle",), True

    def reduce(self, activation: Tensor, site: Any, context: Any) -> Tensor:
        return activation.mean(0)

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        (mean,) = reduced.values()
        self.state["most"] = torch.maximum(self.state.get("most", mean), mean)
        yield sl.Reading("value", self.state["most"], ("unit",))


class Plain(sl.Probe):
    """Returns plain numbers, which cannot be vectorized, and needs no hooks."""

    name, gives = "plain", ("rounded",)

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        yield sl.Reading("rounded", float(round(float(context.loss), 3) + float(context.output.sum()) + context.step))


class HookedPlain(Largest):
    name, stacks = "hooked_plain", False


class Branching(Largest):
    name = "branching"

    def reduce(self, activation: Tensor, site: Any, context: Any) -> Tensor:
        return activation.mean(0) if activation.sum() > 0 else -activation.mean(0)


class Counting(Largest):
    """Stores its state outside of `self.state`."""

    name = "counting"
    count = 0

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        self.count += 1
        yield sl.Reading("value", reduced.popitem()[1] + self.count, ("unit",))


class Rooted(Largest):
    """Is nan for some batches, and so for some seeds."""

    name = "rooted"

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        yield sl.Reading("value", context.batch[0].mean().sqrt())


def recorders(*probes: Any, task: type[Any] = Double, **settings: Any) -> StackedRecorder:
    trainings = [Training(task(RegressionConfig(**settings), seed)) for seed in SEEDS]
    own = [Recorder(t.model, [probe() for probe in probes], eval_batch(t.task), task=t.task) for t in trainings]
    return StackedRecorder(Stacked(trainings), own)


def numbers(observed: Any) -> dict[str, Any]:
    readings = {f"{name}/{r.name}": r.array() for name, found in observed.readings.items() for r in found}
    return {name: float(value) for name, value in observed.values.items()} | readings


@pytest.mark.parametrize("members", [(0, 1, 2), (0, 2)])
def test_vectorized_recorders_have_the_readings_of_single_ones(members):
    together, alone = recorders(Largest, Plain), recorders(Largest, Plain)
    for step in range(5):
        seen = together.observe(step, members)
        assert together.apart == ""
        for member, observed in zip(members, seen, strict=True):
            own = numbers(alone.recorders[member].observe(step))
            assert list(numbers(observed)) == list(own) == ["loss", "worst", "largest/value", "plain/rounded"]
            for name, value in own.items():
                np.testing.assert_allclose(numbers(observed)[name], value, rtol=1e-12, err_msg=name)
        for stacked in (together.stacked, alone.stacked):
            stacked.advance(step)


class Omitting(Largest):
    """Omits a reading before one that it gives."""

    name, gives = "omitting", ("missing", "value")

    def readings(self, reduced: Any, context: Any) -> Iterable[Any]:
        yield Omitted("missing", "this model has none")
        yield from super().readings(reduced, context)


class OmittingPlain(Plain):
    name, gives = "omitting_plain", ("rounded", "missing")

    def readings(self, reduced: Any, context: Any) -> Iterable[Any]:
        yield from super().readings(reduced, context)
        yield Omitted("missing", f"nor at step {context.step}")


def test_together_each_omits_what_it_omits_alone():
    together = recorders(Omitting, Largest, OmittingPlain)
    for step in range(4):
        for recorder, observed in zip(together.recorders, together.observe(step, SEEDS), strict=True):
            given = [reading.name for reading in recorder.record(step, observed, {})]
            assert given == ["loss", "worst", "omitting/value", "largest/value", "omitting_plain/rounded"]
            skipped = {"omitting/missing": "this model has none", "omitting_plain/missing": "nor at step 0"}
            assert recorder.skipped == skipped and not recorder.problems
            values = recorder.timeline.series("omitting/value"), recorder.timeline.series("largest/value")
            np.testing.assert_array_equal(*values)
        assert together.apart == ""


def test_a_recorder_that_alone_is_due_measures_by_itself():
    together = recorders(Largest)
    assert together.observe(0, [1]) is None
    assert together.apart == ""


@pytest.mark.parametrize(
    ("probes", "settings", "reason"),
    [
        ((HookedPlain,), {}, "the probe 'hooked_plain' has hooks"),
        ((Branching,), {}, "data-dependent control flow"),
        ((Counting,), {}, "'counting/value' is another number together than alone"),
        ((Largest,), {"eval_size": LARGEST}, "the batches are large"),
    ],
)
def test_probes_that_cannot_be_vectorized_measure_seed_by_seed(probes, settings, reason):
    together = recorders(*probes, **settings)
    before = [probe.state for recorder in together.recorders for probe in recorder.probes.values()]
    assert together.observe(0, SEEDS) is None
    assert reason in together.apart
    assert not any(recorder.problems for recorder in together.recorders)
    assert before == [probe.state for recorder in together.recorders for probe in recorder.probes.values()]


@pytest.mark.parametrize("probe", [Largest, HookedPlain, Branching, Rooted])
def test_an_ensembles_readings_are_those_of_its_seeds_alone(probe, tmp_path):
    host = make_host()
    host.probes.add({probe.name: ProbeRef.of(probe)}, "test")
    options = {"probes": (probe.name, "weight_norms"), "host": host, "device": "cpu", "report": False}
    together = run_ensemble(Double, runs=tmp_path / "together", seeds=SEEDS, **options)
    for seed, one in zip(SEEDS, together, strict=True):
        alone = run(Double, tmp_path / "alone", seed=seed, **options)
        assert one.timeline.steps.tolist() == alone.timeline.steps.tolist()
        assert list(one.timeline) == list(alone.timeline)
        assert one.manifest.problems == alone.manifest.problems
        for name in one.timeline:
            np.testing.assert_allclose(one.timeline.series(name), alone.timeline.series(name), rtol=1e-6, atol=1e-12)
    lost = [probe.name in one.manifest.problems for one in together]
    assert (any(lost), all(lost)) == (probe is Rooted, False)


@pytest.mark.parametrize(("task", "steps"), [("linear-icl/separate", 60), ("recall/simplified", 30)])
def test_the_papers_exact_tasks_are_measured_together_with_the_numbers_of_one_seed(task, steps, tmp_path):
    host = make_host()
    kind = host.task(task).load()
    trainings = [Training(kind(kind.Config(steps=steps), seed)) for seed in (0, 1)]
    own = [Recorder(t.model, kind.probes, eval_batch(t.task), task=t.task, host=host) for t in trainings]
    together = StackedRecorder(Stacked(trainings), own)
    assert together.observe(0, [0, 1]) is not None, together.apart
    done = run_ensemble(task, seeds=2, settings={"steps": steps}, runs=tmp_path, report=False, host=host)
    alone = sl.run(task, seed=1, settings={"steps": steps}, runs=tmp_path / "alone", report=False, host=host)
    assert not done[1].manifest.problems
    for name in alone.timeline:
        exact = {"rtol": 1e-6, "atol": 1e-9} if "linear" in task else {"rtol": 1e-3, "atol": 1e-5}  # recall is float32
        np.testing.assert_allclose(done[1].timeline.series(name), alone.timeline.series(name), **exact, err_msg=name)
