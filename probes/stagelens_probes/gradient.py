"""The loss gradient: its norm in each module, and its direction compared with the previous measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from stagelens import Probe, Reading
from stagelens.experiments import Batch
from stagelens.recording import Omitted, ProbeContext, Reduced, wide
from stagelens_probes.described import GRADIENT
from stagelens_probes.norms import joint_norm, norm


def why_no_gradient(context: ProbeContext) -> str | None:
    """Returns why the loss has no gradient, in one sentence; None if it has one."""
    if context.loss_function is None:
        return "no loss is known: give the recorder loss=function(model, batch), or a task"
    if not any(p.requires_grad for p in context.model.parameters()):
        return "no parameter of the model can be trained"
    return None


def loss_gradient(context: ProbeContext, batch: Batch) -> dict[str, Tensor]:
    """Returns the gradient of the loss on `batch`, by parameter; 0 for a parameter that is frozen or unused.

    It does not change the parameters' `.grad`.
    """
    parameters = dict(context.model.named_parameters())
    free = [p for p in parameters.values() if p.requires_grad]
    with torch.enable_grad():
        loss = context.forward(batch)
        found = torch.autograd.grad(loss, free, allow_unused=True, materialize_grads=True)
    gradients = iter(found)
    return {name: wide(next(gradients)) if p.requires_grad else torch.zeros_like(p) for name, p in parameters.items()}


def halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """Returns the first and the second half of the sequences of `batch`; None if it cannot be divided.

    The batch is a tensor, or tuples, lists and mappings of tensors, whose first dimension is the sequence.
    """
    leaves = tree_leaves(batch)
    sizes = {len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else 0 for leaf in leaves}
    n = sizes.pop() // 2 if len(sizes) == 1 else 0
    return (tree_map(lambda leaf: leaf[:n], batch), tree_map(lambda leaf: leaf[n : 2 * n], batch)) if n else None


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


def group_cosines(a: Mapping[str, Tensor], b: Mapping[str, Tensor], groups: Mapping[str, Sequence[str]]) -> Tensor:
    """Returns the cosine of two gradients in each group of parameters, [group]."""
    along = {name: tensor_cosine(values, b[name]) for name, values in a.items()}
    sizes = [{name: norm(values) for name, values in one.items()} for one in (a, b)]
    parts = (along, *sizes)
    return torch.stack([joint_cosine(*([part[name] for name in names] for part in parts)) for names in groups.values()])


class Gradient(Probe):
    """Norm of the loss gradient per module, and its cosines.

    One cosine is with the gradient at the previous measurement, one between the gradients of two halves of the batch.
    """

    name = "gradient"
    title = "norm of the loss gradient per module, and its cosine with the previous measurement"
    described = GRADIENT
    passes = "2, and 2 backward"
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        return why_no_gradient(context)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        gradient = loss_gradient(context, context.batch)
        groups = parameter_groups(gradient)
        coords = {"group": list(groups)}
        sizes = {name: norm(values) for name, values in gradient.items()}
        norms = torch.stack([joint_norm(sizes[name] for name in names) for names in groups.values()])
        yield Reading("norm", norms, ("group",), coords)
        if self.state:
            before = {name: self.state[name].to(values) for name, values in gradient.items()}
            yield Reading("cosine", group_cosines(gradient, before, groups), ("group",), coords)
        self.state = dict(gradient)
        parts = halves(context.batch)
        if parts is None:
            yield Omitted("halves_cosine", "the batch cannot be divided into two halves of sequences")
            return
        first, second = (loss_gradient(context, part) for part in parts)
        yield Reading("halves_cosine", group_cosines(first, second, groups), ("group",), coords)
