"""Batches: the data of a training step, a function of (seed, step) alone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stagelens.base import UsageError, generator
from stagelens.experiments.groups import Batch
from stagelens.experiments.task import Task


def map_leaves(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """Returns `batch` with `function` applied to every leaf of its mappings, lists, tuples and dataclasses."""
    if isinstance(batch, dict):
        return {key: map_leaves(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        values = [map_leaves(function, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if isinstance(batch, MutableMapping):  # such as the BatchEncoding of a tokenizer
        mapped = copy.copy(batch)
        for key, value in batch.items():
            mapped[key] = map_leaves(function, value)
        return mapped
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        replaced = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(replaced, field.name, map_leaves(function, getattr(batch, field.name)))
        return replaced
    return function(batch)


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Returns `batch` with `function` applied to each of its tensors."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, batch)


def move(batch: Batch, device: torch.device | str) -> Batch:
    """Returns `batch` on `device`."""
    return map_tensors(lambda tensor: tensor.to(device), batch)


def own(batch: Batch, device: torch.device | str | None = None) -> Batch:
    """Returns a copy of `batch`, on `device` if one is given. Changing `batch` in place does not change the copy.

    Tensors (without their graph) and numpy arrays are copied. Other objects are shared.
    """

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().to(device, copy=True).requires_grad_(leaf.requires_grad)
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return map_leaves(copied, batch)


class Batches:
    """Training batches of a task: fresh at every step, or passes over a fixed set of `train_size` sequences."""

    def __init__(self, task: Task, device: torch.device | str = "cpu") -> None:
        config = task.config
        if 0 < config.train_size < config.batch_size:
            raise UsageError(
                f"train_size {config.train_size} is smaller than batch_size {config.batch_size}; "
                f"give at least one batch of sequences, or train_size=0 for fresh data at every step"
            )
        self._task = task
        self._device = device
        self._set: Batch | None = None
        self._pass: tuple[int, Tensor] | None = None
        if config.train_size:
            self._set = own(task.sample_train(config.train_size, generator(task.seed, "train")), device)

    def __call__(self, step: int) -> Batch:
        """Returns the batch of `step`."""
        config = self._task.config
        if self._set is None:
            return move(
                self._task.sample_train(config.batch_size, generator(self._task.seed, "train", step)), self._device
            )
        per_pass = config.train_size // config.batch_size
        number, index = divmod(step, per_pass)
        chosen = self._order(number)[index * config.batch_size : (index + 1) * config.batch_size]
        return map_tensors(lambda tensor: tensor[chosen], self._set)

    def _order(self, number: int) -> Tensor:
        """Returns the order of the sequences in pass `number`, [sequence]."""
        if self._pass is None or self._pass[0] != number:
            order = torch.randperm(self._task.config.train_size, generator=generator(self._task.seed, "order", number))
            self._pass = (number, order.to(self._device))
        return self._pass[1]


class FixedBatch:
    """The same training batch at every step: for a task that trains on all of its data, or on their exact moments.

        def batches(self, device):
            return FixedBatch(self.moments, device)

    `batch` is moved to `device` once. It is what `Task.loss` gets in training; None if the loss needs no data.
    """

    def __init__(self, batch: Batch, device: torch.device | str = "cpu") -> None:
        self._batch = move(batch, device)

    def __call__(self, step: int) -> Batch:  # noqa: ARG002
        """Returns the batch, whatever the step."""
        return self._batch


def eval_batch(task: Task, device: torch.device | str = "cpu") -> Any:
    """Returns the fixed batch on which a run is evaluated and probed."""
    return move(task.sample(task.config.eval_size, generator(task.seed, "eval")), device)
