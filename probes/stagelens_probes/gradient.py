"""The loss gradient: its size in each part of the model, and whether it still points where it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.probing import Reduced
from stagelens.scene import Scene
from stagelens_probes.attention import wide


def loss_gradient(scene: Scene) -> dict[str, Tensor]:
    """The gradient of the loss on the batch, by parameter; 0 for those that are frozen or unused.

    No parameter's `.grad` is written.
    """
    parameters = dict(scene.model.named_parameters())
    free = [p for p in parameters.values() if p.requires_grad]
    with torch.enable_grad():
        loss = scene.forward(scene.batch)
        found = torch.autograd.grad(loss, free, allow_unused=True, materialize_grads=True)
    gradients = iter(found)
    return {name: wide(next(gradients)) if p.requires_grad else torch.zeros_like(p) for name, p in parameters.items()}


def parameter_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """`all`, and the module that each parameter belongs to; a parameter of the root is its own group."""
    groups: dict[str, list[str]] = {"all": list(names)}
    for name in groups["all"]:
        groups.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return groups


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Sum over the parameters `names` of <a, b>."""
    return torch.stack([torch.sum(a[name] * b[name].to(a[name])) for name in names]).sum()


class Gradient(Probe):
    """Norm of the loss gradient per module, and its cosine with the gradient at the measurement before."""

    name = "gradient"
    title = "norm of the loss gradient per module, and its cosine with the measurement before"
    gives = ("norm", "cosine")
    passes = "1, and 1 backward"
    default = False

    def applies(self, scene: Scene) -> str | None:
        if scene.loss_function is None:
            return "no loss is known: give the recorder loss=function(model, batch), or a task"
        if not any(p.requires_grad for p in scene.model.parameters()):
            return "no parameter of the model can be trained"
        return None

    def readings(self, reduced: Reduced, scene: Scene) -> Iterable[Reading]:  # noqa: ARG002
        gradient = loss_gradient(scene)
        groups = parameter_groups(gradient)
        coords = {"group": list(groups)}
        norm = torch.stack([inner(gradient, gradient, names) for names in groups.values()]).sqrt()
        yield Reading("norm", norm, ("group",), coords)
        if self.state:
            before = torch.stack([inner(self.state, self.state, names) for names in groups.values()]).sqrt().to(norm)
            along = torch.stack([inner(gradient, self.state, names) for names in groups.values()])
            size = norm * before
            cosine = torch.where(size > 0, along / size.where(size > 0, 1.0), 0.0).clamp(-1, 1)
            yield Reading("cosine", cosine, ("group",), coords)
        self.state = dict(gradient)
