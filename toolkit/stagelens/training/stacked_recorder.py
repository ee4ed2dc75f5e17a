"""The recorders of vectorized seeds: those that measure at the same step share one vectorized pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from stagelens.experiments import Batch
from stagelens.recording import ModelChanged, Observed, Omitted, Probe, ProbeContext, Recorder, Site, observe
from stagelens.timelines import Reading
from stagelens.training.stacking import Stacked

LARGEST = 2**18  # numbers in a member's batch; with more, vectorizing saves no time
CHECKED = 2  # observations that are made both ways at first; from the second on, probes continue from a state
AGREE = {torch.float64: (1e-6, 1e-12), torch.float32: (1e-3, 1e-7)}  # relative and absolute

States = dict[str, dict[str, Tensor]]  # what each probe carries on


class Apart(Exception):
    """Recorders cannot share a pass; the message gives the reason."""


class StackedRecorder:
    """Observes for the recorders of vectorized trainings what each would observe alone.

    The pass and the probes that set `stacks` are vectorized, with the batch and the directions of each member. The
    metrics and the other probes are computed member by member after the pass, with the member's own task.

    If every recorder has to make its own pass, `apart` gives the reason. There are four: a probe that does not set
    `stacks` has hooks; the batches are large; groups or queries differ; a number differs from that of a member alone.
    At the first two observations, all members are compared with passes of their own. At the 4th, 8th, 16th, ... one
    member is, in turn.
    """

    def __init__(self, stacked: Stacked, recorders: Sequence[Recorder]) -> None:
        self.stacked, self.recorders = stacked, list(recorders)
        self.apart = ""
        self._observed = 0
        try:
            self._stack_inputs()
        except (Apart, RuntimeError) as reason:
            self.apart = f"what the probes see cannot be stacked: {reason}"

    def observe(self, step: float, members: Sequence[int]) -> list[Observed] | None:
        """Returns what the recorders of `members` observe at `step`; None if each has to make its own pass."""
        recorders = [self.recorders[member] for member in members]
        if self.apart or len(members) < 2 or any(recorder.suspicious for recorder in recorders):
            return None
        before = [_states(recorder.probes) for recorder in recorders]
        try:
            together = self._together(step, members)
            for index in self._to_check(len(members)):
                _check(recorders[index], step, before[index], together[index])
        except ModelChanged:
            for recorder in recorders:
                recorder.name_culprit(step)
            raise
        except Exception as reason:  # vmap does not support something: each recorder makes its own pass from now on
            self.apart = f"{type(reason).__name__}: {' '.join(str(reason).split())[:200]}"
            for recorder, states in zip(recorders, before, strict=True):
                _put_states(recorder.probes, states)
            return None
        return together

    def _to_check(self, members: int) -> Sequence[int]:
        """Returns the members of a shared pass whose result is compared with a pass of their own."""
        self._observed += 1
        if self._observed <= CHECKED:
            return range(members)
        doublings = self._observed.bit_length() - 1
        turn = 1 + doublings % (members - 1)  # not the first member, whose probes do the vectorized pass
        return [turn] if self._observed == 2**doublings else []

    def _stack_inputs(self) -> None:
        """Batches and directions as tensors [seed, ...], of which the batches of the recorders become views."""
        contexts = [recorder.context for recorder in self.recorders]
        if any(_fixed_parts(context) != _fixed_parts(contexts[0]) for context in contexts):
            raise Apart("groups, queries or the names of directions differ between seeds")
        given = [(context.batch, [torch.as_tensor(one) for one in context.directions.values()]) for context in contexts]
        leaves, trees = zip(*map(tree_flatten, given), strict=True)
        if any(tree != trees[0] for tree in trees) or not all(isinstance(leaf, Tensor) for leaf in leaves[0]):
            raise Apart("the batches are not tensors alone")
        if sum(leaf.numel() for leaf in leaves[0]) > LARGEST:
            raise Apart("the batches are large")
        self._leaves, self._tree = [torch.stack(one) for one in zip(*leaves, strict=True)], trees[0]
        for index, context in enumerate(contexts):
            context.batch, _ = tree_unflatten([leaf[index] for leaf in self._leaves], self._tree)

    def _together(self, step: float, members: Sequence[int]) -> list[Observed]:
        recorders = [self.recorders[member] for member in members]
        alone = _read_alone(recorders)
        lens = _Lens(recorders[0], alone, step)
        carried = [list(_flat(_states(recorder.probes, lens.probes))) for recorder in recorders]
        names = [name for name, _ in carried[0]]
        if any([name for name, _ in own] != names for own in carried):
            raise Apart("the probes' states differ in form")
        which: Any = slice(None) if len(members) == len(self.recorders) else torch.tensor(members)
        held = {f"model.{name}": tensor for name, tensor in self.stacked.state().items()}
        model = [tensor.detach() if place is None else tensor.detach()[which] for tensor, place in held.values()]
        inputs = [leaf[which] for leaf in self._leaves]
        states = [torch.stack([tensor for _, tensor in one]) for one in zip(*carried, strict=True)]

        def see(model: list[Tensor], inputs: list[Tensor], states: list[Tensor]) -> list[Tensor]:
            given = tree_unflatten(inputs, self._tree), zip(names, states, strict=True)
            seen: list[Tensor] = functional_call(lens, dict(zip(held, model, strict=True)), given)
            return seen

        with recorders[0].looking():
            places = ([place for _, place in held.values()], 0, 0 if states else None)
            found = torch.vmap(see, in_dims=places)(model, inputs, states)
            return lens.sorted_out(found, recorders)


class _Lens(nn.Module):
    """The shared pass of one member as a module, so that `functional_call` can set its parameters.

    It maps ((batch, directions), states of the probes) to the tensors that the probes return.
    """

    def __init__(self, recorder: Recorder, alone: Sequence[str], step: float) -> None:
        super().__init__()
        self.model = recorder.context.model
        self.recorder, self.alone, self.step = recorder, alone, step
        self.probes = {name: probe for name, probe in recorder.probes.items() if name not in alone}
        self.values: list[str] = []
        self.readings: list[tuple[str, Reading | Omitted]] = []  # of each probe, but for their values
        self.states: list[tuple[str, str]] = []
        self.tree: Any = None  # of the output
        self.after = bool(alone) or recorder.metrics is not None  # True if something is computed from the output

    def _context(self, batch: Batch, directions: Sequence[Tensor]) -> ProbeContext:
        """Returns what the member's probes observe. Refuses functions of the task, which may depend on the seed."""
        own = self.recorder.context
        return replace(
            own,
            batch=batch,
            directions=dict(zip(own.directions, directions, strict=True)),
            references=dict.fromkeys(own.references, _not_stacked),
            conserved=_not_stacked,
            step=self.step,
            output=None,
            loss=None,
            constants={},
        )

    def forward(self, given: Any, states: Iterable[tuple[tuple[str, str], Tensor]]) -> list[Tensor]:
        context = self._context(*given)
        _put_states(self.probes, _nested(states, self.probes))
        observed = observe(context, self.probes, None, _raise)
        after = list(_flat(_states(self.probes)))
        self.values = list(observed.values)
        self.readings = [(name, reading) for name, found in observed.readings.items() for reading in found]
        self.states = [name for name, _ in after]
        output, self.tree = tree_flatten([context.output, context.loss] if self.after else [])
        tensors = [
            *observed.values.values(),
            *(reading.values for _, reading in self.readings if isinstance(reading, Reading)),
        ]
        return [torch.as_tensor(tensor) for tensor in (*tensors, *(tensor for _, tensor in after), *output)]

    def sorted_out(self, found: Sequence[Tensor], recorders: Sequence[Recorder]) -> list[Observed]:
        """Returns what each member observed, from tensors [member, ...], and sets the new states of its probes."""
        numbers = len(self.values) + sum(isinstance(reading, Reading) for _, reading in self.readings)
        arrays = [tensor.to("cpu", torch.float64).numpy() for tensor in found[:numbers]]
        states, output = found[numbers : numbers + len(self.states)], found[numbers + len(self.states) :]
        observed = []
        for index, recorder in enumerate(recorders):
            own = zip(self.states, (tensor[index] for tensor in states), strict=True)
            _put_states(recorder.probes, _nested(own, self.probes))
            values: dict[str, Any] = {name: array[index] for name, array in zip(self.values, arrays, strict=False)}
            readings: dict[str, list[Reading | Omitted]] = {name: [] for name in recorder.probes}
            taken = iter(arrays[len(values) :])
            for name, form in self.readings:
                if isinstance(form, Reading):
                    form = replace(form, values=next(taken)[index])
                readings[name].append(form)
            if self.after:
                ends = tree_unflatten([tensor[index] for tensor in output], self.tree)
                own_part = recorder.read(self.alone, self.step, *ends)
                values, readings = {**own_part.values}, {**readings, **own_part.readings}
            observed.append(Observed(values, readings))
        return observed


def _states(probes: Mapping[str, Probe], names: Iterable[str] | None = None) -> States:
    """Returns the states of the probes `names`."""
    return {name: dict(probes[name].state) for name in (probes if names is None else names)}


def _put_states(probes: Mapping[str, Probe], states: States) -> None:
    for name, state in states.items():
        if name in probes:
            probes[name].state = dict(state)


def _flat(states: States) -> Iterable[tuple[tuple[str, str], Tensor]]:
    return (((name, key), tensor) for name, state in states.items() for key, tensor in state.items())


def _nested(states: Iterable[tuple[tuple[str, str], Tensor]], names: Iterable[str]) -> States:
    nested: States = {name: {} for name in names}
    for (name, key), tensor in states:
        nested[name][key] = tensor
    return nested


def _fixed_parts(context: ProbeContext) -> Any:
    """Returns what the vectorized pass takes from the first member. It must be equal in all members."""
    return list(context.groups.items()), context.queries, list(context.directions)


def _not_stacked(*_: Any) -> NoReturn:
    raise Apart("a probe that sets `stacks` calls the task's references or conserved quantities")


def _read_alone(recorders: Sequence[Recorder]) -> list[str]:
    """Returns the probes that are read for each member after the pass."""
    probes = recorders[0].probes
    alone = [name for name, probe in probes.items() if not probe.stacks]
    if hooked := [name for name in alone if probes[name].hooks]:
        raise Apart(f"the probe {hooked[0]!r} has hooks, and does not say that it stacks")
    if any(list(recorder.probes) != list(probes) for recorder in recorders):
        raise Apart("some have lost a probe")
    return alone


def _check(recorder: Recorder, step: float, before: States, together: Observed) -> None:
    """Raises an error unless `together` equals what the recorder observes alone. Probes continue from `together`."""
    after = _states(recorder.probes)
    _put_states(recorder.probes, before)
    alone = recorder.observe(step)
    _put_states(recorder.probes, after)
    near, nearly = AGREE.get(next(recorder.context.model.parameters()).dtype, (1e-2, 1e-3))
    for one, other in zip(_listed(together), _listed(alone), strict=True):
        if isinstance(one, Omitted) or isinstance(other, Omitted):
            if (type(one), one.name) != (type(other), other.name):
                raise Apart(f"together there is {one.name!r}, alone {other.name!r}, and one of them is omitted")
            continue
        if (one.name, one.dims, one.coords, one.labels) != (other.name, other.dims, other.coords, other.labels):
            raise Apart(f"together there is {one.name!r}, alone {other.name!r}")
        if not np.allclose(one.array(), other.array(), near, nearly, equal_nan=True):
            raise Apart(f"{one.name!r} is another number together than alone")


def _listed(observed: Observed) -> list[Reading | Omitted]:
    """Returns everything observed, under full names."""
    values = [Reading(name, value) for name, value in observed.values.items()]
    probes = observed.readings.items()
    return [*values, *(replace(reading, name=f"{name}/{reading.name}") for name, found in probes for reading in found)]


def _raise(probe: Probe, error: Exception, site: Site | None) -> NoReturn:  # noqa: ARG001
    raise error
