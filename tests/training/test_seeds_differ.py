"""Vectorized seeds have their own checkpoints, padding, batches in reused tensors, and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

import stagelens as sl
from kit.tasks import Crash, CrashAt, Regression, RegressionConfig, TwoMaps, host_with, run, weights
from stagelens.api import run_ensemble
from stagelens.base.seeds import generator
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.training import Training
from stagelens.recording.guard import ModelChanged
from stagelens.recording.recorder import Recorder
from stagelens.runs import checkpoint
from stagelens.training.stackable import why_not
from stagelens.training.stacked_recorder import StackedRecorder
from stagelens.training.stacking import Stacked

SEEDS = (0, 1, 2)
OPTIONS: dict[str, Any] = {"report": False, "device": "cpu"}


def assert_as_alone(task: type[Any], together: Any, folder: Any, **options: Any) -> None:
    """The runs of `together` have the timelines and weights of lone runs, up to rounding."""
    for one in together:
        alone = run(task, folder, seed=one.manifest.seed, **options)
        assert one.timeline.steps.tolist() == alone.timeline.steps.tolist()
        assert list(one.timeline) == list(alone.timeline)
        for name in one.timeline:
            np.testing.assert_allclose(
                one.timeline.series(name), alone.timeline.series(name), rtol=2e-5, atol=2e-6, err_msg=name
            )
        for name, value in weights(alone).items():
            torch.testing.assert_close(weights(one)[name], value, rtol=2e-5, atol=2e-6)


# Checkpoints.


def test_seeds_resume_from_the_newest_checkpoint_that_all_can_load(tmp_path) -> None:
    broken = tmp_path / "broken"
    with pytest.raises(Crash):
        run_ensemble(Regression, seeds=3, runs=broken, host=host_with(CrashAt(20)), **OPTIONS)
    for number, folder in enumerate(sorted(broken.iterdir())):
        steps = checkpoint.steps_in(folder)
        assert len(steps) > 3
        for step in steps[len(steps) - number :]:  # the newest of the second seed, and the two newest of the third
            path = checkpoint.path_of(folder, step)
            content = bytearray(path.read_bytes())
            content[-3] ^= 255
            path.write_bytes(content)
    together = run_ensemble(Regression, seeds=3, runs=broken, resume=True, **OPTIONS)
    assert together.alone == ""
    assert_as_alone(Regression, together, tmp_path / "alone")


# Padding.


class Padded(TwoMaps):
    """The first map is a table, looked up with a `padding_idx`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.table = nn.Embedding(5, 4, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).mean(1) @ self.second


class PaddedByCall(Padded):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.table = nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return embedding(x, self.table.weight, padding_idx=0).mean(1) @ self.second


class Lookup(sl.Task):
    """The padding occurs from step 6 on, after the updates that are compared."""

    id = "small/lookup"
    Config = RegressionConfig
    model: ClassVar[Any] = Padded

    def build_model(self) -> Any:
        return self.model(self.seed)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randint(1, 5, (n, 3), generator=generator)

    def batches(self, device: Any) -> Any:
        return lambda step: self.sample(8, generator(self.seed, "train", step)) * (step < 6)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return (model(batch) - 1).square().mean()


class LookupByCall(Lookup):
    model = PaddedByCall


class LookupWithout(Lookup):
    """An embedding without padding."""

    class model(PaddedByCall):
        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).mean(1) @ self.second


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Lookup, "its embedding 'table' has a padding_idx"),
        (LookupByCall, "it calls an embedding with a padding_idx"),
        (LookupWithout, ""),
    ],
)
def test_embeddings_with_padding_are_trained_alone(task: type[Any], reason: str) -> None:
    found = why_not([Training(task(RegressionConfig(), seed)) for seed in SEEDS])
    assert found.startswith(reason) and bool(found) == bool(reason)


# Batches.


class Reused(Regression):
    """Fills one tensor in place, with new numbers every `every` steps; `lazily` leaves it alone in between."""

    id = "small/reused"
    every, lazily, held = 1, False, "tensor"

    def batches(self, device: Any) -> Any:
        x, y, filled = torch.zeros(8, 3), torch.zeros(8, 1), [-1]
        batch: Any = {"tensor": (x, y), "list": [x, y]}[self.held]

        def at(step: int) -> Any:
            number = step // self.every
            if not (self.lazily and filled[0] == number):
                filled[0] = number
                for own, new in zip((x, y), self.sample(8, generator(self.seed, "train", number)), strict=True):
                    own.copy_(new)
            return batch

        return at


@pytest.mark.parametrize("held", ["tensor", "list"])
@pytest.mark.parametrize(("every", "lazily"), [(1, False), (6, False), (6, True)])
def test_batches_in_reused_tensors_are_those_of_their_step(every: int, lazily: bool, held: str) -> None:
    task = type("Reusing", (Reused,), {"every": every, "lazily": lazily, "held": held})
    together, alone = ([Training(task(RegressionConfig(), seed)) for seed in SEEDS] for _ in range(2))
    assert why_not(together) == ""
    stacked = Stacked(together)
    for step in range(14):
        for trainer in (stacked, *alone):
            trainer.advance(step)
    for one, other in zip(together, alone, strict=True):
        for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)


def test_a_batch_that_never_changes_is_stacked_once() -> None:
    class Fixed(Regression):
        def batches(self, device: Any) -> Any:
            batch = self.sample(8, generator(self.seed, "train"))
            return lambda step: batch

    stacked = Stacked([Training(Fixed(RegressionConfig(), seed)) for seed in SEEDS])
    kept = []
    for step in range(4):
        stacked.advance(step)
        kept.append(stacked._batches)
    assert stacked._lasting and all(one is kept[0] for one in kept)


def test_a_training_set_in_a_reused_tensor_is_not_overwritten() -> None:
    class Buffered(Regression):
        buffer: ClassVar[Any] = (torch.zeros(16, 3), torch.zeros(16, 1))

        def sample(self, n: int, generator: torch.Generator) -> Any:
            for own, new in zip(self.buffer, super().sample(n, generator), strict=True):
                own.copy_(new)
            return self.buffer

    task = Buffered(RegressionConfig(train_size=16, batch_size=16, eval_size=16), 0)
    batches = task.batches("cpu")
    before = batches(0)[0].clone()
    eval_batch(task)
    assert torch.equal(batches(0)[0], before)


# Metrics and directions of each seed.


class Largest(sl.Probe):
    """The projection on the task's direction, of an activation."""

    name, gives, hooks, stacks = "largest", ("value",), ("hook_middle",), True

    def reduce(self, activation: Tensor, site: Any, context: Any) -> Tensor:
        return activation.mean(0) @ context.directions["own"]

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        yield sl.Reading("value", next(iter(reduced.values())))


class OfSeed(Regression):
    """Metrics, directions and conserved quantities that depend on the seed; the metric only late."""

    id = "small/of-seed"

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Any]:
        error = (output - batch[1]).abs().mean()
        return {"close": 1e-9 * (error < 0.5 + 0.1 * self.seed).float(), "seed": float(self.seed)}

    def directions(self) -> dict[str, Tensor]:
        return {"own": torch.randn(4, generator=generator(self.seed, "direction"))}

    def conserved(self, model: Any) -> dict[str, Tensor]:
        return {"scaled": (1 + self.seed) * model.first.sum()}


def recorders(task: type[Any], probes: list[Any]) -> StackedRecorder:
    trainings = [Training(task(RegressionConfig(), seed)) for seed in SEEDS]
    made = [Recorder(t.model, [p() for p in probes], eval_batch(t.task), task=t.task) for t in trainings]
    return StackedRecorder(Stacked(trainings), made)


def numbers(observed: Any) -> dict[str, Any]:
    readings = {f"{probe}/{r.name}": r.array() for probe, found in observed.readings.items() for r in found}
    return {name: float(value) for name, value in observed.values.items()} | readings


def test_metrics_directions_and_conserved_quantities_are_those_of_each_seed() -> None:
    from stagelens_probes.conserved import Conserved

    together, alone = (recorders(OfSeed, [Largest, Conserved]) for _ in range(2))
    metrics = []
    for step in range(60):
        seen = together.observe(step, SEEDS)
        assert seen is not None, together.apart
        for own, one in zip(alone.recorders, seen, strict=True):
            expected = numbers(own.observe(step))
            assert list(numbers(one)) == list(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(numbers(one)[name], value, rtol=1e-4, atol=1e-12, err_msg=name)
        metrics.append([float(one.values["close"]) for one in seen])
        for stacked in (together.stacked, alone.stacked):
            stacked.advance(step)
    assert len({tuple(row) for row in metrics}) > 2, "the metric never depended on the seed"


class OwnGroups(Regression):
    def groups(self) -> dict[str, sl.Group]:
        return {"one": sl.Group(offsets=(self.seed,))}


class Referring(Largest):
    """Calls what may depend on the seed within the vectorized pass."""

    name, hooks = "referring", ()

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        yield sl.Reading("value", context.conserved(context.model)["scaled"])


class LateSeed(Largest):
    """Reads the seed of its recorder from the 8th observation on."""

    name = "late"

    def applies(self, context: Any) -> str | None:
        self.own = float(context.batch[0].sum())
        return None

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        yield sl.Reading("value", next(iter(reduced.values())) + self.own * (context.step >= 7))


@pytest.mark.parametrize(
    ("task", "probe", "reason", "observations"),
    [
        (OwnGroups, Largest, "groups, queries or the names of directions differ", 0),
        (OfSeed, Referring, "calls the task's references or conserved", 0),
        (OfSeed, LateSeed, "'late/value' is another number together than alone", 7),
    ],
)
def test_quantities_that_depend_on_the_seed_are_computed_seed_by_seed(
    task: type[Any], probe: Any, reason: str, observations: int
) -> None:
    together = recorders(task, [probe])
    for step in range(observations):
        assert together.observe(step, SEEDS) is not None, together.apart
    assert together.observe(observations, SEEDS) is None
    assert reason in together.apart


class Setting(sl.Probe):
    """Sets a weight, to the same number each time. It has no hooks, and is read seed by seed."""

    name, gives = "setting", ("value",)

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        context.model.first.data[0, 0] = 3.0
        yield sl.Reading("value", 1.0)


def test_a_probe_that_changes_the_weights_of_a_seed_is_named() -> None:
    with pytest.raises(ModelChanged, match="probe 'setting'"):
        recorders(Regression, [Setting]).observe(0, SEEDS)
