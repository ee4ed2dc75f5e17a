"""Checks that trainings can be vectorized over their seeds: vectorized updates must equal those of each seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stagelens.base import untouched_rng
from stagelens.experiments import Training
from stagelens.training.stacking import PADDING, NotStackable, Stacked

UPDATES = 3  # that are made both ways; from the second on the optimizer's state matters too
# By dtype: the largest relative difference of losses and gradients at the first update, and of the total change.
AGREE = {torch.float64: (1e-9, 1e-7), torch.float32: (1e-4, 1e-3)}
NEGLIGIBLE = 1e-6  # a difference below this fraction of the effect of all updates on the loss is ignored

Tensors = dict[str, Tensor]


def why_not(members: Sequence[Training]) -> str:
    """Returns why these trainings cannot be vectorized; an empty string if they can.

    Fresh copies of the members make the first three updates, together and each alone, with the optimizer, clipping,
    scheduler and training phase in use. The losses, the gradients, the updated parameters and the buffers must agree.
    The members and all random states are left as they were.
    """
    try:
        with untouched_rng():
            _compare(Stacked([_copy(member) for member in members]), [_copy(member) for member in members])
    except NotStackable as reason:
        return str(reason)
    except Exception as error:  # vmap does not support something that the model does, so the seeds are trained alone
        return f"torch.func.vmap refuses it ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    return ""


class _RefusingPadding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises NotStackable at an embedding with a `padding_idx`, wherever the model calls it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.embedding.default and len(args) > 2 and args[2] >= 0:
            raise NotStackable(f"it calls an embedding with a padding_idx, {PADDING}")
        return func(*args, **(kwargs or {}))


def _copy(member: Training) -> Training:
    """Returns the same training, from its start."""
    return Training(member.task, member.device, member.batches)


def _compare(stacked: Stacked, alone: Sequence[Training]) -> None:
    """Makes the first updates both ways; raises unless they agree in every member."""
    start = [_parameters(training) for training in alone]
    gradients: list[Tensors] = [{} for _ in alone]  # the sum of their absolute values over the updates, by parameter
    for step in range(UPDATES):
        stacked.advance(step)
        for index, training in enumerate(alone):
            with _RefusingPadding() if step == 0 else nullcontext():  # type: ignore[no-untyped-call]
                training.advance(step)
            if step == 0:
                _compare_step(stacked, index, training)
            for name, parameter in training.model.named_parameters():
                if parameter.grad is not None:
                    gradients[index][name] = gradients[index].get(name, 0.0) + parameter.grad.abs()
    for index, training in enumerate(alone):
        _compare_updates(stacked.members[index], training, start[index], gradients[index])
        _compare_buffers(stacked.members[index], training)


def _compare_step(stacked: Stacked, index: int, alone: Training) -> None:
    """Raises unless the loss of the first update and its gradients are those of the member alone."""
    assert stacked.loss is not None and alone.loss is not None
    near, _ = AGREE.get(alone.loss.dtype, (1e-3, 1e-2))
    own = {name: parameter.grad for name, parameter in alone.model.named_parameters()}
    size = max((float(gradient.abs().max()) for gradient in own.values() if gradient is not None), default=0.0)
    differ = abs(float(stacked.loss[index] - alone.loss)) > near * max(abs(float(alone.loss)), 1e-30)
    for name, gradient in own.items():
        other = stacked.parameters[name].grad
        if gradient is None or other is None:
            differ |= (gradient is None) != (other is None)
        else:
            differ |= float((gradient - other[index]).abs().max()) > near * size
    if differ:
        raise NotStackable(
            "its loss is random, depends on the seed through more than parameters and batch, or amplifies rounding"
        )


def _compare_updates(together: Training, alone: Training, start: Tensors, gradients: Tensors) -> None:
    """Raises unless the updates changed the parameters as they change those of the member alone.

    Differences are weighted by the size of the gradient. The gradient of a parameter may be rounding alone, as for the
    biases of keys. Adam then moves it in a random direction, and the loss does not depend on it.
    """
    assert alone.loss is not None
    _, near = AGREE.get(alone.loss.dtype, (1e-3, 1e-2))
    ours, theirs = _parameters(together), _parameters(alone)
    wrong, whole = {}, {}
    for name, size in gradients.items():
        rounding = 4 * torch.finfo(size.dtype).eps * theirs[name].abs()
        difference = ((ours[name] - theirs[name]).abs() - rounding).clamp(min=0)
        wrong[name] = float((size * difference).sum())
        whole[name] = float((size * (theirs[name] - start[name]).abs()).sum())
    for name, error in wrong.items():
        if error > near * whole[name] + NEGLIGIBLE * sum(whole.values()):
            raise NotStackable(f"after {UPDATES} updates its {name!r} is not that of a seed alone")


def _compare_buffers(together: Training, alone: Training) -> None:
    """Raises if training changes the model's buffers, because vectorized training treats them as constants."""
    buffers = dict(together.model.named_buffers())
    for name, buffer in alone.model.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise NotStackable(f"training changes its buffer {name!r}")


def _parameters(training: Training) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
