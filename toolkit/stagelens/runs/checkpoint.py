"""Checkpoints: weights, optimizer, scheduler and probe states in one safetensors file. Never pickle.

The metadata contain a checksum of the names, shapes and bytes of all tensors and of the rest of the metadata, because
the format has none. They also contain the task and the step, and a digest of the config and seed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stagelens.base import EnvironmentFault, StagelensError, UsageError, free_memory, make_folder, own, writing

FOLDER = "checkpoints"
ENDING = ".safetensors"
STEP_WIDTH = 9

Tensors = dict[str, Tensor]


def path_of(folder: Path, step: int) -> Path:
    """Returns the path of the checkpoint of `step` of the run in `folder`."""
    return own(folder, FOLDER, f"{step:0{STEP_WIDTH}d}{ENDING}")


def steps_in(folder: Path) -> list[int]:
    """Returns the steps that have a checkpoint, sorted."""
    names = [path.stem for path in own(folder, FOLDER).glob(f"[0-9]*{ENDING}")]
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def save(folder: Path, step: int, task: str, states: dict[str, Any], content: str = "") -> Path:
    """Writes `states`, named trees (dicts and lists) of tensors and plain values, as the checkpoint of `step`.

    `content` is the digest of what decides the run's numbers.
    """
    tensors: Tensors = {}
    trees = {name: _strip(state, name, tensors) for name, state in states.items()}
    metadata = {"stagelens": "1", "task": task, "step": str(step), "content": content, "trees": json.dumps(trees)}
    metadata["checksum"] = _checksum(metadata, tensors)
    path = path_of(folder, step)
    make_folder(path.parent, "free disk space or fix the directory, then resume", parents=False)
    with writing(path) as aside:
        try:
            save_file(tensors, aside, metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error
    return path


def load(path: Path, task: str | None = None, content: str = "") -> dict[str, Any]:
    """Returns the states in `path`. With `task` and `content`, a checkpoint of another task or run is refused.

    A file that is larger than the free memory is refused before anything is read.
    """
    try:
        check_size(path)
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise UsageError(f"there is no checkpoint {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, " ".join(str(error).split())) from None
    if metadata.get("stagelens") != "1":
        raise UsageError(f"{path} is not a stagelens checkpoint; it was written by another program")
    stored = metadata.pop("checksum", None)
    if stored is not None and stored != _checksum(metadata, tensors):  # None: written by an older version
        raise _damaged(path, "it does not match its checksum")
    _check_whose(path, metadata, task, content)
    try:
        return {name: _fill(tree, tensors) for name, tree in json.loads(metadata["trees"]).items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, repr(error)) from None


def check_size(path: Path) -> None:
    """Raises an error if a file is larger than the free memory. A sparse file can be, whatever the size of the disk."""
    size, free = path.stat().st_size, free_memory()
    if free is not None and size > free:
        raise ValueError(f"it has {size:,} bytes, and there are {free:,} bytes of memory")


def latest(folder: Path, task: str, most: int | None = None, content: str = "") -> tuple[int, dict[str, Any]] | None:
    """Returns the newest readable checkpoint (up to step `most`) with its step. Damaged ones are skipped."""
    for step in reversed([step for step in steps_in(folder) if most is None or step <= most]):
        try:
            return step, load(path_of(folder, step), task, content)
        except EnvironmentFault:
            continue
    return None


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turns the errors of loading the states of `path` into an environment error of one line."""
    try:
        yield
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise _damaged(path, f"it does not fit the run: {' '.join(str(error).split())}") from None


def _check_whose(path: Path, metadata: dict[str, str], task: str | None, content: str) -> None:
    """Raises an error if a checkpoint is of another task, step, config or seed."""
    theirs = metadata.get("task", "")
    if task is not None and theirs != task:
        raise UsageError(f"checkpoint {path} is of task {theirs!r}, expected {task!r}; resume another run")
    if path.stem.isdecimal() and metadata.get("step") != str(int(path.stem)):
        raise _damaged(path, f"it is of step {metadata.get('step')!r}")
    if content and metadata.get("content", "") not in ("", content):
        raise _damaged(path, "it is of a run with another config or seed")


def _damaged(path: Path, reason: str) -> EnvironmentFault:
    return EnvironmentFault(f"checkpoint {path} is damaged ({reason[:200]}); delete it")


def _checksum(metadata: dict[str, str], tensors: Tensors) -> str:
    """Returns a checksum of all content of the file. crc32 is at least as fast as the disk."""
    found = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def _strip(tree: Any, path: str, tensors: Tensors) -> Any:
    """Returns `tree` as JSON. Its tensors are moved to `tensors` and replaced by their names there."""
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().cpu().contiguous().clone()
        return {"$tensor": path}
    if isinstance(tree, dict):
        return {"$dict": [[key, _strip(value, f"{path}.{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return [_strip(value, f"{path}.{index}", tensors) for index, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise StagelensError(
        f"{path} holds a {type(tree).__name__}, which a checkpoint cannot store; use plain values and tensors"
    )


def _fill(tree: Any, tensors: Tensors) -> Any:
    """The inverse of `_strip`; tuples come back as lists."""
    if isinstance(tree, list):
        return [_fill(value, tensors) for value in tree]
    if isinstance(tree, dict):
        if "$tensor" in tree:
            return tensors[tree["$tensor"]]
        return {key: _fill(value, tensors) for key, value in tree["$dict"]}
    return tree
