"""The recorders of stacked trainings: those that are due at a step look at their models in one vectorized pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from stagelens.observing import Observed, observe
from stagelens.probing import Probe
from stagelens.reading import Reading
from stagelens.recorder import Recorder
from stagelens.scene import Site
from stagelens.stacking import Stacked
from stagelens.task import Batch

CHECKED = 2  # the first observations are made both ways; at the second the probes have a state to go on from
AGREE = {torch.float64: (1e-6, 1e-9), torch.float32: (1e-3, 1e-5)}  # relative and absolute

States = dict[str, dict[str, Tensor]]  # what each probe carries on


class Apart(Exception):
    """Why recorders have to look one by one, in a few words."""


class StackedRecorder:
    """Observes for the recorders of stacked trainings what each would observe alone.

    Vectorized are the pass, the task's metrics, and the probes that say so (`stacks`). Other probes are read member by
    member after the pass. Where one of those has hooks, or where the numbers are not what a member finds alone,
    `apart` says why, and every recorder looks for itself from then on.
    """

    def __init__(self, stacked: Stacked, recorders: Sequence[Recorder]) -> None:
        self.stacked, self.recorders = stacked, list(recorders)
        self.apart = ""
        self._to_check = CHECKED
        try:
            self._stack_batches()
        except (Apart, RuntimeError) as reason:
            self.apart = f"the evaluation batches cannot be stacked ({reason})"

    def observe(self, step: float, members: Sequence[int]) -> list[Observed] | None:
        """What the recorders of `members` see at `step`; None where each has to look for itself."""
        recorders = [self.recorders[member] for member in members]
        if self.apart or len(members) < 2 or any(recorder.suspicious for recorder in recorders):
            return None
        before = [states_of(recorder.probes) for recorder in recorders]
        try:
            together = self._together(step, members)
            if self._to_check:
                self._to_check -= 1
                for recorder, states, seen in zip(recorders, before, together, strict=True):
                    _check(recorder, step, states, seen)
        except Exception as reason:  # whatever vmap does not do: each looks for itself, and fails by itself
            self.apart = f"{type(reason).__name__}: {' '.join(str(reason).split())[:200]}"
            for recorder, states in zip(recorders, before, strict=True):
                put_states(recorder.probes, states)
            return None
        return together

    def _stack_batches(self) -> None:
        """The evaluation batches as tensors [seed, ...], of which the recorders' own become views."""
        leaves, trees = zip(*(tree_flatten(recorder.scene.batch) for recorder in self.recorders), strict=True)
        if any(tree != trees[0] for tree in trees) or not all(isinstance(leaf, Tensor) for leaf in leaves[0]):
            raise Apart("they are not tensors alone")
        self._leaves, self._tree = [torch.stack(one) for one in zip(*leaves, strict=True)], trees[0]
        for index, recorder in enumerate(self.recorders):
            recorder.scene.batch = tree_unflatten([leaf[index] for leaf in self._leaves], self._tree)

    def _together(self, step: float, members: Sequence[int]) -> list[Observed]:
        recorders = [self.recorders[member] for member in members]
        first = recorders[0]
        alone = _read_alone(recorders)
        lens = _Lens(first, {name: probe for name, probe in first.probes.items() if name not in alone}, step)
        states, trees = zip(*(tree_flatten(states_of(r.probes, lens.probes)) for r in recorders), strict=True)
        if any(tree != trees[0] for tree in trees):
            raise Apart("the probes' states differ in form")
        which: Any = slice(None) if len(members) == len(self.recorders) else torch.tensor(members)
        named = {f"model.{name}": held for name, held in self.stacked.state().items()}
        own = [tensor if place is None else tensor[which] for tensor, place in named.values()]
        batch = [leaf[which] for leaf in self._leaves]
        carried = [torch.stack(one) for one in zip(*states, strict=True)]

        def see(model: list[Tensor], batch: list[Tensor], carried: list[Tensor]) -> list[Tensor]:
            given = (tree_unflatten(batch, self._tree), tree_unflatten(carried, trees[0]))
            seen: list[Tensor] = functional_call(lens, dict(zip(named, model, strict=True)), given)
            return seen

        with first.looking():
            places = ([place for _, place in named.values()], 0, 0 if carried else None)
            seen = tree_unflatten(torch.vmap(see, in_dims=places)(own, batch, carried), lens.tree)
        arrays = tree_map(lambda tensor: tensor.to("cpu", torch.float64).numpy(), [seen["values"], seen["readings"]])
        found = []
        for index, recorder in enumerate(recorders):
            put_states(recorder.probes, _of(seen["states"], index))
            values, readings = _of(arrays, index)
            named_readings = {name: _filled(lens.forms[name], readings[name]) for name in lens.probes}
            if alone:
                named_readings |= recorder.read(alone, step, *_of(seen["ends"], index))
            found.append(Observed(values, {name: named_readings[name] for name in recorder.probes}))
        return found


class _Lens(nn.Module):
    """(batch, states) -> what one member's probes see, as tensors. The member's parameters are put in from outside."""

    def __init__(self, recorder: Recorder, probes: dict[str, Probe], step: float) -> None:
        super().__init__()
        self.model = recorder.scene.model
        self.recorder, self.probes, self.step = recorder, probes, step
        self.forms: dict[str, list[Reading]] = {}  # the readings of each probe, but for their values
        self.tree: Any = None  # what holds the tensors

    def forward(self, batch: Batch, states: States) -> list[Tensor]:
        scene = replace(self.recorder.scene, batch=batch, step=self.step, output=None, loss=None, constants={})
        put_states(self.probes, states)
        observed = observe(scene, self.probes, self.recorder.metrics, _raise)
        self.forms = dict(observed.readings)
        seen = {
            "values": observed.values,
            "readings": {name: [reading.values for reading in found] for name, found in observed.readings.items()},
            "states": states_of(self.probes),
            "ends": [scene.output, scene.loss] if len(self.probes) < len(self.recorder.probes) else [],
        }
        leaves, self.tree = tree_flatten(seen)
        return [torch.as_tensor(leaf) for leaf in leaves]


def states_of(probes: Mapping[str, Probe], names: Sequence[str] | Mapping[str, Any] | None = None) -> States:
    """What the probes (of `names`) carry on."""
    return {name: dict(probes[name].state) for name in (probes if names is None else names)}


def put_states(probes: Mapping[str, Probe], states: States) -> None:
    for name, state in states.items():
        if name in probes:
            probes[name].state = dict(state)


def _read_alone(recorders: Sequence[Recorder]) -> list[str]:
    """The probes that are read member by member after the pass."""
    probes = recorders[0].probes
    alone = [name for name, probe in probes.items() if not probe.stacks]
    if hooked := [name for name in alone if probes[name].hooks]:
        raise Apart(f"the probe {hooked[0]!r} has hooks, and does not say that it stacks")
    if any(list(recorder.probes) != list(probes) for recorder in recorders):
        raise Apart("some have lost a probe")
    return alone


def _of(tree: Any, index: int) -> Any:
    """The part of one member."""
    return tree_map(lambda values: values[index], tree)


def _filled(forms: Sequence[Reading], values: Sequence[Any]) -> list[Reading]:
    return [Reading(form.name, value, form.dims, form.coords, form.labels) for form, value in zip(forms, values, strict=True)]


def _check(recorder: Recorder, step: float, before: States, together: Observed) -> None:
    """Raises unless `together` is what the recorder sees when it looks for itself; its probes go on from `together`."""
    after = states_of(recorder.probes)
    put_states(recorder.probes, before)
    alone = recorder.observe(step)
    put_states(recorder.probes, after)
    near, nearly = AGREE.get(next(recorder.scene.model.parameters()).dtype, (1e-2, 1e-3))
    for one, other in zip(_listed(together), _listed(alone), strict=True):
        if (one.name, one.dims, one.coords, one.labels) != (other.name, other.dims, other.coords, other.labels):
            raise Apart(f"together there is {one.name!r}, alone {other.name!r}")
        if not np.allclose(one.array(), other.array(), near, nearly, equal_nan=True):
            raise Apart(f"{one.name!r} is another number together than alone")


def _listed(observed: Observed) -> list[Reading]:
    """All that was observed, under full names."""
    values = [Reading(name, value) for name, value in observed.values.items()]
    probes = observed.readings.items()
    return values + [replace(reading, name=f"{name}/{reading.name}") for name, found in probes for reading in found]


def _raise(probe: Probe, error: Exception, site: Site | None) -> NoReturn:  # noqa: ARG001
    raise error
