"""Golden numbers: every series of every task's tiny runs, pinned in `golden.npz`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stagelens as sl
from kit.tiny import exact_run, task_ids

FILE = Path(__file__).with_name("golden.npz")
SEEDS = (0, 1)
TOLERANCE = 1e-6  # of the largest value of a series
FLOOR = 1e-3  # a series whose values are all below this is compared as if this were its largest value
# The drift of a conserved quantity is the solver's error. It is compared with the quantity, which is of order one.
FLOORS = {"conserved/drift": 1.0}


@dataclass(frozen=True)
class Series:
    """The values of one series, [step, *dims]."""

    dims: tuple[str, ...]
    values: Any


Numbers = dict[str, Series]  # by the name of the series


def numbers_of(run: sl.Run) -> Numbers:
    """Returns the measurements of a run, namely its steps, series and events, and the predictions of theory.

    Measured values of predictions are left out: on a curve of a few points a rounding error decides about a plateau.
    """
    assert run.manifest.problems == {}, f"{run.manifest.task}: {run.manifest.problems}"
    timeline = run.timeline
    found = {"step": Series((), timeline.steps.astype(float))}
    found |= {name: Series(timeline.column(name).dims, timeline.series(name)) for name in timeline}
    found |= {f"event: {name}": _number(time) for name, time in run.manifest.events.items()}
    return found | {f"expected: {one['name']}": _number(one["expected"]) for one in run.predictions}


def _number(value: float | None) -> Series:
    return Series((), np.array([np.nan if value is None else value], dtype=float))


def measure() -> dict[str, Numbers]:
    """The numbers of every registered task and seed, by `task seed`."""
    return {key_of(task, seed): numbers_of(exact_run(task, seed)) for task in task_ids() for seed in SEEDS}


def key_of(task: str, seed: int) -> str:
    return f"{task} {seed}"


def save(numbers: Mapping[str, Numbers], path: Path = FILE) -> None:
    """Writes one array of float32 for each run, and their layouts as one JSON text.

    float32 is exact to 6e-8 of a value, which is far below `TOLERANCE`.
    """
    layouts = {
        key: [[name, one.dims, one.values.shape] for name, one in series.items()] for key, series in numbers.items()
    }
    flat = {key: np.concatenate([one.values.ravel() for one in series.values()]) for key, series in numbers.items()}
    arrays = {key: values.astype(np.float32) for key, values in flat.items()}
    np.savez_compressed(path, layouts=np.array(json.dumps(layouts)), **arrays)


def load(path: Path = FILE) -> dict[str, Numbers]:
    with np.load(path) as file:
        layouts = json.loads(str(file["layouts"]))
        return {key: _unpacked(layout, file[key].astype(float)) for key, layout in layouts.items()}


def _unpacked(layout: list[Any], flat: Any) -> Numbers:
    ends = np.cumsum([int(np.prod(shape)) for _, _, shape in layout])
    parts = np.split(flat, ends[:-1])
    return {
        name: Series(tuple(dims), part.reshape(shape)) for (name, dims, shape), part in zip(layout, parts, strict=True)
    }


def differences(pinned: Numbers, found: Numbers) -> Iterator[str]:
    """One line for each series that is not as pinned."""
    for name in [*pinned, *(name for name in found if name not in pinned)]:
        if name not in found:
            yield f"{name} is gone"
        elif name not in pinned:
            yield f"{name} is new"
        else:
            yield from _difference(name, pinned[name], found[name])


def unexpected(pinned: Mapping[str, Numbers], found: Mapping[str, Numbers], changed: Collection[str]) -> Iterator[str]:
    """One line for each difference that is neither a new task or series nor in a series of `changed`."""
    for key, numbers in pinned.items():
        before = {name: one for name, one in numbers.items() if name not in changed}
        after = {name: one for name, one in found.get(key, {}).items() if name in before}
        yield from (f"{key}: {line}" for line in differences(before, after))


def _difference(name: str, pinned: Series, found: Series) -> Iterator[str]:
    if (pinned.dims, pinned.values.shape) != (found.dims, found.values.shape):
        yield f"{name} has {found.dims} {found.values.shape}; pinned: {pinned.dims} {pinned.values.shape}"
        return
    scale = max(float(np.nanmax(np.abs(pinned.values), initial=0.0)), FLOORS.get(name, FLOOR))
    off = np.abs(found.values - pinned.values)
    wrong = ~((off <= TOLERANCE * scale) | (np.isnan(pinned.values) & np.isnan(found.values)))
    if wrong.any():
        worst = np.unravel_index(np.nanargmax(np.where(wrong, np.nan_to_num(off, nan=np.inf), -1.0)), off.shape)
        yield (
            f"{name} at {tuple(map(int, worst))}: {found.values[worst]:.9g}, pinned {pinned.values[worst]:.9g} "
            f"({off[worst] / scale:.2g} of the scale {scale:.3g})"
        )
