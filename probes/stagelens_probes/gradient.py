"""The loss gradient: its norm in each module, and its direction compared with the measurement before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced, wide
from stagelens_probes.norms import joint_norm, norm


def loss_gradient(context: ProbeContext) -> dict[str, Tensor]:
    """Returns the gradient of the loss on the batch, by parameter; 0 for a parameter that is frozen or unused.

    It does not change the parameters' `.grad`.
    """
    parameters = dict(context.model.named_parameters())
    free = [p for p in parameters.values() if p.requires_grad]
    with torch.enable_grad():
        loss = context.forward(context.batch)
        found = torch.autograd.grad(loss, free, allow_unused=True, materialize_grads=True)
    gradients = iter(found)
    return {name: wide(next(gradients)) if p.requires_grad else torch.zeros_like(p) for name, p in parameters.items()}


def parameter_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the parameters of the group `all` and of each module; a parameter of the root is a group of its own."""
    groups: dict[str, list[str]] = {"all": list(names)}
    for name in groups["all"]:
        groups.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return groups


def tensor_cosine(a: Tensor, b: Tensor) -> Tensor:
    """Returns <a, b> / |a| |b|, a scalar; 0 if one of them is 0.

    Both are normalized first, because products of tiny numbers underflow.
    """
    return torch.sum(a / nonzero(norm(a)) * (b / nonzero(norm(b))))


def joint_cosine(cosines: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Returns the cosine of two vectors that consist of parts, from the parts' `cosines` and norms `a` and `b`."""
    weights = [torch.stack(list(sizes)) / nonzero(joint_norm(sizes)) for sizes in (a, b)]
    return (torch.stack(list(cosines)) * weights[0] * weights[1]).sum().clamp(-1, 1)


def nonzero(size: Tensor) -> Tensor:
    """Returns `size` with 1 in place of 0, to divide by."""
    return torch.where(size == 0, 1.0, size)


class Gradient(Probe):
    """Norm of the loss gradient per module, and its cosine with the gradient at the measurement before."""

    name = "gradient"
    title = "norm of the loss gradient per module, and its cosine with the measurement before"
    gives = ("norm", "cosine")
    passes = "1, and 1 backward"
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        if context.loss_function is None:
            return "no loss is known: give the recorder loss=function(model, batch), or a task"
        if not any(p.requires_grad for p in context.model.parameters()):
            return "no parameter of the model can be trained"
        return None

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        gradient = loss_gradient(context)
        groups = parameter_groups(gradient)
        coords = {"group": list(groups)}
        sizes = {name: norm(values) for name, values in gradient.items()}
        norms = torch.stack([joint_norm(sizes[name] for name in names) for names in groups.values()])
        yield Reading("norm", norms, ("group",), coords)
        if self.state:
            before = {name: self.state[name].to(values) for name, values in gradient.items()}
            along = {name: tensor_cosine(values, before[name]) for name, values in gradient.items()}
            parts = along, sizes, {name: norm(values) for name, values in before.items()}
            cosines = [joint_cosine(*([part[name] for name in names] for part in parts)) for names in groups.values()]
            yield Reading("cosine", torch.stack(cosines), ("group",), coords)
        self.state = dict(gradient)
