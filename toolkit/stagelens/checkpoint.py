"""Checkpoints: weights, optimizer, scheduler and probe states in one safetensors file. Never pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stagelens.errors import EnvironmentFault, StagelensError, UsageError
from stagelens.files import writing

FOLDER = "checkpoints"
STEP_WIDTH = 9

Tensors = dict[str, Tensor]


def path_of(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"{step:0{STEP_WIDTH}d}.safetensors"


def steps_in(folder: Path) -> list[int]:
    """The steps that have a checkpoint, sorted."""
    return sorted(int(path.stem) for path in (folder / FOLDER).glob("[0-9]*.safetensors"))


def save(folder: Path, step: int, task: str, states: dict[str, Any]) -> Path:
    """Writes `states`, named trees (dicts and lists) of tensors and plain values, as the checkpoint of `step`."""
    tensors: Tensors = {}
    trees = {name: _strip(state, name, tensors) for name, state in states.items()}
    path = path_of(folder, step)
    metadata = {"stagelens": "1", "task": task, "step": str(step), "trees": json.dumps(trees)}
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from error
    with writing(path) as aside:
        try:
            save_file(tensors, aside, metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error
    return path


def load(path: Path, task: str | None = None, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The states in `path`; with `task`, a checkpoint of another task is refused."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise UsageError(f"there is no checkpoint {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise EnvironmentFault(f"checkpoint {path} is damaged ({' '.join(str(error).split())}); delete it") from None
    if metadata.get("stagelens") != "1":
        raise UsageError(f"{path} is not a stagelens checkpoint; it was written by another program")
    if task is not None and metadata["task"] != task:
        raise UsageError(f"checkpoint {path} is of task {metadata['task']!r}, expected {task!r}; resume another run")
    try:
        return {name: _fill(tree, tensors) for name, tree in json.loads(metadata["trees"]).items()}
    except (KeyError, ValueError) as error:
        raise EnvironmentFault(f"checkpoint {path} is damaged ({error!r}); delete it") from None


def latest(folder: Path, task: str, most: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """The newest checkpoint that can be read (of at most step `most`), with its step; a damaged one is passed over."""
    for step in reversed([step for step in steps_in(folder) if most is None or step <= most]):
        try:
            return step, load(path_of(folder, step), task)
        except EnvironmentFault:
            continue
    return None


def _strip(tree: Any, path: str, tensors: Tensors) -> Any:
    """`tree` as JSON, its tensors moved to `tensors` and replaced by their names there."""
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
