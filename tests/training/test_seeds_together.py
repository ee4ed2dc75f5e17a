"""Vectorized seeds have the numbers of seeds trained alone: every task, every optimizer, one to three heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.tasks import run
from kit.tiny import in_float64
from kit.vectorized import NEAR, PHASE, PROBES, SEEDS, STEPS, Sizes, Small, apart
from stagelens.api import run_ensemble
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import as_settings, make_config
from stagelens.experiments.task import Task
from stagelens.experiments.training import Training
from stagelens.host.host import Host, make_host
from stagelens.models import Transformer
from stagelens.recording.recorder import Recorder
from stagelens.runs.manifest import VECTORIZED
from stagelens.training.stackable import why_not
from stagelens.training.stacked_recorder import StackedRecorder
from stagelens.training.stacking import ELEMENTWISE, Stacked

RATES = {torch.optim.SGD: 0.05, torch.optim.ASGD: 0.05, torch.optim.Adadelta: 1.0, torch.optim.RMSprop: 3e-4}

# Small versions of the tasks that can be vectorized.
STACKABLE: dict[str, dict[str, Any]] = {
    "emergence/toy": {"T": 8, "d": 4},
    "emergence/regression": {"T": 6, "d": 3, "layers": 1, "heads": 2, "d_model": 6, "d_head": 3, "batch_size": 8},
    "emergence/recall": {"pairs": 2, "tokens": 4, "heads": 2, "d_model": 8, "d_head": 3, "batch_size": 8},
    "linear-icl/separate": {},
    "linear-icl/sequences": {"P": 0, "batch_size": 8, "N": 7},
    "markov/minimal": {"d": 4, "T": 8, "batch_size": 8},
    "markov/full": {"d": 4, "T": 8, "d_model": 12, "d_mlp": 8, "batch_size": 8, "dropout": 0.0},
    "recall/simplified": {"order": 3},
    "recall/original": {"order": 3, "batch_size": 8},
    "recall/transformer": {"order": 3, "d_model": 8, "batch_size": 8},
    "rich/toy": {"L": 8, "batch_size": 8, "first_steps": 0},
    "rich/text": {"L": 8, "D": 8, "W": 8, "vocab": 20, "batch_size": 4},
}
# The others, as they come, with their reasons.
REASONS = {
    "markov/full": "its loss is random",
    "rich/high-dim": "its batches are not made of tensors alone",
}


def trained_by(kind: type[Any], optimizer: type[torch.optim.Optimizer], some: Sequence[str]) -> type[Any]:
    """`kind` with an optimizer that decays weights, a cosine schedule, and a phase that trains `some` before all."""
    phases = [sl.TrainingPhase("some", PHASE, tuple(some)), sl.TrainingPhase("all", STEPS, ("*",))]
    made = {"lr": RATES.get(optimizer, 1e-3), "weight_decay": 0.05}
    members = {
        "optimizer": lambda self, model: optimizer(model.parameters(), **made),
        "scheduler": lambda self, own: torch.optim.lr_scheduler.CosineAnnealingLR(own, T_max=STEPS),
        "phases": lambda self: phases,
        "schedule": lambda self: sl.Schedule(log=3, even=3),
    }
    return type(kind.__name__, (kind,), members)


@cache
def host() -> Host:
    return make_host()


@cache
def registered() -> dict[str, type[Task]]:
    kinds = {name: ref.load() for name, ref in host().tasks}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, Task)}


def readings_apart(name: str, one: Any, other: Any) -> float:
    """Returns the relative difference of two readings. The scale of a cosine is 1, even for orthogonal gradients."""
    return apart(one, other, 1.0) if "cosine" in name else apart(one, other)


def is_rounding(name: str) -> bool:
    """Returns True for the biases of keys: attention does not depend on them, so their gradients are pure rounding."""
    return name.endswith("b_K")


def numbers(observed: Any) -> Iterator[tuple[str, Any]]:
    """Every number of an observation, by its full name."""
    yield from observed.values.items()
    for probe, readings in observed.readings.items():
        for reading in (one for one in readings if isinstance(one, sl.Reading)):
            values = reading.array()
            for index in np.ndindex(values.shape[:1]):
                labels = reading.coords.get(reading.dims[0]) if reading.dims else None
                yield f"{probe}/{reading.name}/{labels[index[0]] if labels else index}", values[index]


class ByForm(dict[Any, Any]):
    """Traced functions, shared between stacks whose batches are equal: a constant batch is found by its form.

    `Stacked` finds such a batch by its identity, because its numbers become constants of the function.
    """

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(self._form(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._form(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._form(key), value)

    def _form(self, key: Any) -> Any:
        return (getattr(key[0], "form", key[0]), *key[1:])


class Both:
    """The same seeds trained together and alone, with their recorders."""

    def __init__(self, kind: type[Any], config: Any, functions: dict[Any, Any], probes: Sequence[str]) -> None:
        self.alone, members = ([Training(kind(config, seed)) for seed in SEEDS] for _ in range(2))
        self.stacked = Stacked(members)
        self.stacked._functions = functions  # the traced loss and gradients, the same for every optimizer
        self.own, together = (
            [Recorder(t.model, probes, eval_batch(t.task), task=t.task, host=host()) for t in trainings]
            for trainings in (self.alone, members)
        )
        self.recorder = StackedRecorder(self.stacked, together)

    def advance(self, step: int) -> None:
        for trainer in (self.stacked, *self.alone):
            trainer.advance(step)

    def differences(self, step: int) -> Iterator[tuple[str, float]]:
        """Returns the differences of parameters, losses and gradient norms at `step`."""
        for trainer in (self.stacked, *self.alone):
            trainer.enter_phase(step)
        self.stacked.settle()
        for member, training in zip(self.stacked.members, self.alone, strict=True):
            for (name, one), other in zip(member.model.named_parameters(), training.model.parameters(), strict=True):
                yield name, 0.0 if is_rounding(name) else apart(one, other)
            for key, value in training.scalars().items():
                yield key, apart(member.scalars()[key], value)

    def differences_of_readings(self, step: int) -> Iterator[tuple[str, float]]:
        """Returns the differences of the readings at `step`; call it after `differences`."""
        observed = self.recorder.observe(step, range(len(SEEDS)))
        for index, recorder in enumerate(self.own):
            seen = observed[index] if observed else self.recorder.recorders[index].observe(step)
            for (name, one), (other_name, other) in zip(numbers(seen), numbers(recorder.observe(step)), strict=True):
                assert name == other_name
                yield name, 0.0 if is_rounding(name) else readings_apart(name, one, other)


def check(kind: type[Any], config: Any, optimizers: Sequence[Any], probes: Sequence[str] = PROBES) -> None:
    """Compares parameters with every optimizer, and readings, which follow from the parameters, with the first two."""
    functions = ByForm()
    names = [name for name, _ in kind(config).build_model().named_parameters()]
    for optimizer in optimizers:
        both = Both(trained_by(kind, optimizer, names[1::2] or names), config, functions, probes)
        moved = [p.detach().clone() for p in both.alone[0].model.parameters()]
        for step in range(STEPS + 1):
            if step in (0, PHASE, STEPS):
                found = list(both.differences(step))
                found += both.differences_of_readings(step) if optimizer in optimizers[:2] else ()
                worst = max(found, key=lambda item: item[1])
                assert worst[1] < NEAR, (kind.id, optimizer.__name__, step, worst)
            both.advance(step)
        assert max(map(apart, both.alone[0].model.parameters(), moved)) > 10 * NEAR, "nothing was trained"


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_transformers_with_every_optimizer(heads: int) -> None:
    check(Small, Sizes(heads=heads, clip=0.5), ELEMENTWISE, ("attention_sparsity", *PROBES))


@pytest.mark.parametrize("name", STACKABLE)
def test_every_task_with_every_optimizer(name: str) -> None:
    kind = registered()[name]
    small = {"steps": STEPS, "eval_size": 4, "clip": 0.5} | STACKABLE[name]
    config = make_config(kind.Config, kind.presets, "quick", as_settings(small))
    if isinstance(kind(config).build_model(), Transformer):
        kind = in_float64(kind)  # a ReLU whose input is 0 but for rounding then has no chance to differ
    check(kind, config, ELEMENTWISE if name != "rich/text" else ELEMENTWISE[:2])  # each of its models reads the corpus


@pytest.mark.parametrize("name", REASONS)
def test_why_the_other_tasks_are_not_vectorized(name: str) -> None:
    kind = registered()[name]
    config = make_config(kind.Config, kind.presets, "quick", [])
    assert why_not([Training(kind(config, seed)) for seed in SEEDS]).startswith(REASONS[name])


def test_every_task_is_vectorized_or_has_a_reason() -> None:
    assert set(registered()) == {*STACKABLE, *REASONS}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("seeds", [(0, 1, 2), (2, 0)])
def test_runs_of_seeds_together_equal_runs_alone_in_any_order(heads: int, seeds: tuple[int, ...], tmp_path) -> None:
    kind = trained_by(Small, torch.optim.AdamW, ["blocks.0.attn.*"])
    options: dict[str, Any] = {"settings": {"heads": heads, "clip": 0.5}, "report": False, "device": "cpu"}
    options["probes"] = Small.probes  # the default qk_alignment reads b_K, which depends on rounding
    together = run_ensemble(kind, seeds=seeds, runs=tmp_path / "together", **options)
    assert together.alone == ""
    for seed, one in zip(seeds, together, strict=True):
        assert (one.manifest.seed, one.manifest.vectorized) == (seed, VECTORIZED)
        alone = run(kind, tmp_path / "alone", seed=seed, **options)
        assert alone.manifest.vectorized == 0
        assert one.timeline.steps.tolist() == alone.timeline.steps.tolist()
        assert list(one.timeline) == list(alone.timeline)
        for name in one.timeline:
            ours, theirs = (timeline.series(name) for timeline in (one.timeline, alone.timeline))
            column = one.timeline.column(name)
            if column.dims and isinstance((names := column.coordinate(column.dims[0]))[0], str):
                kept = [index for index, parameter in enumerate(names) if not is_rounding(parameter)]
                ours, theirs = ours[:, kept], theirs[:, kept]
            scale = np.nanmax(np.abs(theirs))
            np.testing.assert_allclose(ours, theirs, rtol=NEAR, atol=NEAR * scale, err_msg=name)


def test_only_the_keys_biases_and_what_reads_them_depend_on_rounding() -> None:
    """Adam moves b_K by its learning rate, in the direction of rounding; the loss does not depend on b_K."""
    kind = type("Fast", (Small,), {"optimizer": lambda self, model: torch.optim.AdamW(model.parameters(), lr=0.01)})
    probes = ("weight_norms", "qk_alignment", "attention_sparsity", "gradient")
    both = Both(kind, Sizes(), {}, probes)
    for step in range(STEPS):
        both.advance(step)
    both.stacked.settle()
    for recorder, other in zip(both.recorder.recorders, both.own, strict=True):
        keys = [(own, theirs) for (name, own), theirs in zip(
            recorder.context.model.named_parameters(), other.context.model.parameters(), strict=True
        ) if is_rounding(name)]  # fmt: skip
        assert keys and all(apart(own, theirs) > NEAR for own, theirs in keys)
        seen, alone = dict(numbers(recorder.observe(STEPS))), dict(numbers(other.observe(STEPS)))
        differ = {name.split("/")[0] for name in alone if readings_apart(name, seen[name], alone[name]) > NEAR}
        assert differ == {"weight_norms", "qk_alignment"}
        for own, theirs in keys:
            own.data.copy_(theirs.data)
        seen = dict(numbers(recorder.observe(STEPS)))
        same = {
            name for name in alone if not name.startswith("weight_norms/from_start")
        }  # it counts from before the copy
        assert max(readings_apart(name, seen[name], alone[name]) for name in same) < NEAR


def test_a_measurement_sees_the_parameters_that_its_step_trains(tmp_path) -> None:
    """The second phase begins with step `PHASE`: until then only the attention has gradients, at step 0 too."""
    kind = trained_by(Small, torch.optim.Adam, ["blocks.0.attn.*"])
    options: dict[str, Any] = {"probes": ["gradient"], "report": False, "device": "cpu"}
    kind.schedule = lambda self: sl.Schedule(log=0, even=STEPS)
    together = run_ensemble(kind, seeds=2, runs=tmp_path, **options)
    assert together.alone == ""
    for one in (*together, run(kind, tmp_path / "alone", **options)):
        steps, norms = one.timeline.steps, one.timeline.series("gradient/norm")
        groups = list(one.timeline.column("gradient/norm").coordinate("group"))
        assert {0, PHASE} <= set(steps)
        assert ((norms[:, groups.index("embed")] > 0) == (steps >= PHASE)).all()
        assert (norms[:, groups.index("blocks.0.attn")] > 0).all()


@pytest.mark.parametrize("optimizer", ELEMENTWISE)
def test_a_stack_of_one_is_a_training(optimizer: Any) -> None:
    kind = trained_by(Small, optimizer, ["blocks.0.*"])
    (member,), alone = [Training(kind(Sizes(clip=0.5), 3))], Training(kind(Sizes(clip=0.5), 3))
    stacked = Stacked([member])
    for step in range(4):
        stacked.advance(step)
        alone.advance(step)
    for (name, one), other in zip(member.model.named_parameters(), alone.model.parameters(), strict=True):
        assert is_rounding(name) or apart(one, other) < NEAR


def test_scalar_parameters_continue_from_a_checkpoint() -> None:
    """What an optimizer stores once per parameter has the shape of a scalar parameter, but is not one per number."""
    rich = registered()["rich/toy"]
    config = make_config(rich.Config, rich.presets, "quick", ["batch_size=4", "L=6", "first_steps=0", "clip=0.5"])
    for optimizer in (torch.optim.NAdam, torch.optim.ASGD):
        kind = trained_by(rich, optimizer, ["*"])
        members, alone = ([Training(kind(config, seed)) for seed in SEEDS] for _ in range(2))
        for step in range(3):
            for training in (*members, *alone):
                training.advance(step)
        stacked = Stacked(members)
        for step in range(3, 6):
            for trainer in (stacked, *alone):
                trainer.advance(step)
        stacked.settle(saving=True)
        for one, other in zip(members, alone, strict=True):
            assert max(map(apart, one.model.parameters(), other.model.parameters())) < NEAR
            for mine, theirs in zip(one.optimizer.state.values(), other.optimizer.state.values(), strict=True):
                assert [v.shape for v in mine.values()] == [v.shape for v in theirs.values()]
