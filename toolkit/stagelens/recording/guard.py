"""The guard: a measurement must not change the model, its modes or the random states, nor leak memory.

The guard finds the probe that does, and names it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stagelens.base import StagelensError
from stagelens.recording.limits import MEMORY_LIMIT, TIME_LIMIT, armed, limit

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
ONLY_MODES = ("torch", "transformer_lens", "transformers")  # whose `train` and `eval` leave weights alone
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integer types by the bytes of a number
GLOBAL: Any = np.random  # numpy's global generator, which others may rely on


class ModelChanged(StagelensError):
    """A probe changed the parameters of the model that it measured, so the training cannot continue."""


class Misbehaved(Exception):
    """A probe changed the random state or leaked memory. The recorder drops it and measures without it."""


class Guard:
    """Watches the measurements of one model.

    It restores the random states after every measurement, and checks at the first one that no parameter changed.
    Runs and `check_probe` have a `strict` guard: it checks the parameters every time and stops probes that hang or
    leak memory. In a user's own loop the guard is not strict: it installs no signal handler.

    To compare before and after a measurement costs little, but does not tell which probe is to blame. So if the random
    state changed or memory grew, the next measurement makes a pass for each probe, inside `watching`.
    """

    def __init__(self, model: nn.Module, strict: bool = False) -> None:
        self._model, self._strict = model, strict
        self._limit = limit(MEMORY_LIMIT) if strict else 0.0
        if strict:
            limit(TIME_LIMIT)  # so that a wrong limit is an error here, not one of a probe
        self._measured = 0
        self._resident = 0.0  # MiB, after the first measurement
        self._resigned = False
        self.suspicious = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Surrounds a measurement: restores the random states, and sets `suspicious` for the next measurement."""
        states = RandomStates.now()
        with self.unchanged():
            try:
                with self.timed(), torch.random.fork_rng(enabled=torch.accelerator.is_available()):
                    yield
            finally:
                if drawn := RandomStates.now() != states:
                    states.restore()
        self._measured += 1
        if self._measured == 1 or self.suspicious:  # lazy allocations are done by now, or every probe was checked
            self._measured, self._resident = 1, resident()
        self.suspicious = not self._resigned and (drawn or self._leaks())

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raises ModelChanged if the block changes the parameters. A non-strict guard checks only the first one."""
        if self._measured and not self._strict:
            yield
            return
        weights = fingerprint(self._model)
        yield
        if fingerprint(self._model) != weights:
            raise ModelChanged("the model's parameters were changed while it was measured")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Surrounds the pass of one probe. Raises an error if it changes parameters or random states, or leaks."""
        weights, states, before = fingerprint(self._model), RandomStates.now(), resident()
        yield
        if fingerprint(self._model) != weights:
            raise ModelChanged("changed the model's parameters")
        if RandomStates.now() != states:
            states.restore()
            raise Misbehaved("it changed the global random state; let it draw from a generator of its own")
        grown, growth = resident() - before, resident() - self._resident
        if self._leaks() and grown > max(1.0, growth / self._measured / 2):
            raise Misbehaved(
                f"memory has grown by {growth:,.0f} MiB since the first measurement, by {grown:,.0f} MiB in its last "
                f"one (${MEMORY_LIMIT} sets the limit)"
            )

    @contextmanager
    def shaken(self) -> Iterator[None]:
        """Adds 1 to all parameters while the block lasts.

        A probe that sets parameters to a fixed value may have done so before. Now it changes them again, and is found.
        """
        parameters = [one.data for one in self._model.parameters() if one.is_floating_point()]
        kept = [one.clone() for one in parameters]
        for one in parameters:
            one.add_(1.0)
        try:
            yield
        finally:
            for one, value in zip(parameters, kept, strict=True):
                one.copy_(value)

    def timed(self) -> AbstractContextManager[None]:
        """Surrounds calls of probes: a strict guard limits their time."""
        return armed() if self._strict else nullcontext()

    def resign(self) -> None:
        """Stops the search for the probe: the task itself changes the random state or leaks memory."""
        self._resigned = True

    def _leaks(self) -> bool:
        return self._measured > 0 and 0 < self._limit < resident() - self._resident


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode. Afterwards every module that `model.eval()` reaches has its own mode again.

    A model with a `train` of its own may do more there than set modes, such as merge weights. So its own `train` undoes
    that, before each module gets its mode. Merging and undoing it rounds, so the parameters are put back bit for bit.
    """
    modules = list(reached(model))
    modes = [module.training for module in modules]
    custom = [module for module in modules if _has_own_modes(module)]
    kept = _copies(model) if any(map(_may_change_weights, custom)) else []
    mode = model.training
    if custom:
        model.eval()
    else:
        _set_modes((module, False) for module in modules)
    merged = fingerprint(model) if kept else ()
    try:
        yield
    finally:
        changed = bool(kept) and fingerprint(model) != merged  # by other code, which is reported and not restored
        if custom:
            model.train(mode)
        if not changed:
            _put_back(kept)
        _set_modes(zip(modules, modes, strict=True))


def _set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Sets the mode of each module that has another one: most have it already, and setting takes longer than asking."""
    for module, mode in modes:
        if module.training != mode:
            module.training = mode


Copies = list[tuple[nn.Parameter, Tensor, Tensor]]  # parameters, their memory, and a copy of their values


def _copies(model: nn.Module) -> Copies:
    return [(parameter, parameter.data, parameter.detach().clone()) for parameter in model.parameters()]


@torch.no_grad()
def _put_back(kept: Copies) -> None:
    for parameter, data, value in kept:
        if parameter.data_ptr() != data.data_ptr():
            parameter.data = data
        if not torch.equal(data, value):
            data.copy_(value)


def _may_change_weights(module: nn.Module) -> bool:
    """False if `train` and `eval` are those of a library whose modules only set modes there, such as bridges."""
    methods = (getattr(module, name) for name in ("train", "eval"))
    return any(method.__module__.partition(".")[0] not in ONLY_MODES for method in methods)


def reached(model: nn.Module) -> Iterator[nn.Module]:
    """Yields every module of `model`, and those that a module with its own `train` method holds outside `modules()`.

    A TransformerBridge holds the model that it bridges that way.
    """
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        held = waiting.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, nn.Module):
            yield held
            waiting += held.__dict__.values() if _has_own_modes(held) else held._modules.values()
        elif isinstance(held, Mapping):
            waiting += held.values()
        elif isinstance(held, list | tuple | set):
            waiting += held


def _has_own_modes(module: nn.Module) -> bool:
    kind, own = type(module), module.__dict__
    return not (
        kind.train is nn.Module.train and kind.eval is nn.Module.eval and "train" not in own and "eval" not in own
    )


def fingerprint(model: nn.Module) -> tuple[int, ...]:
    """Returns a checksum of each parameter: the sum of its bits, read as integers, computed on its own device."""
    sums: dict[torch.device, list[Tensor]] = {}
    for parameter in model.parameters():
        flat = parameter.detach().contiguous().reshape(-1)
        bits = flat.view(BITS.get(flat.element_size(), torch.uint8))
        sums.setdefault(flat.device, []).append(bits.sum(dtype=torch.int64))
    return tuple(number for one in sums.values() for number in torch.stack(one).tolist())


@dataclass(frozen=True)
class RandomStates:
    """The global random states of torch (CPU), numpy (whatever its bit generator is) and Python."""

    torch: bytes
    numpy: tuple[Any, ...]  # as in `_frozen`
    python: tuple[Any, ...]
    generator: Any = field(compare=False)  # numpy's bit generator and its state, to be put back
    state: Any = field(compare=False)

    @classmethod
    def now(cls) -> RandomStates:
        generator, state = GLOBAL.get_bit_generator(), GLOBAL.get_state(legacy=False)
        frozen = (id(generator), *_frozen(state))
        return cls(torch.get_rng_state().numpy().tobytes(), frozen, random.getstate(), generator, state)

    def restore(self) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))
        GLOBAL.set_bit_generator(self.generator)
        GLOBAL.set_state(self.state)
        random.setstate(self.python)


def _frozen(state: Any) -> Iterable[Any]:
    """Yields the entries of a numpy state with arrays as bytes, so that two states can be compared."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _frozen(value)
        else:
            yield name, value.tobytes() if isinstance(value, np.ndarray) else value


def resident() -> float:
    """Returns the resident memory of this process in MiB; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  twice as fast
            return int(file.read().split()[1]) * PAGE / 2**20
    except (OSError, ValueError, IndexError):
        return 0.0
