"""How the loss curves: the largest and the smallest eigenvalue of its Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.probing import Reduced
from stagelens.scene import Scene
from stagelens.seeds import generator
from stagelens_probes.attention import wide

MOST_PRODUCTS = 60
TOLERANCE = 1e-3  # of the larger of the two eigenvalues

Operator = Callable[[Tensor], Tensor]


def extreme_eigenvalues(operator: Operator, start: Tensor) -> tuple[Tensor, Tensor]:
    """(largest, smallest) eigenvalue of a symmetric `operator` on vectors [n], by Lanczos from `start` [n].

    Every new vector is made orthogonal to all before, twice, so that rounding brings no ghosts. It ends when
    the residuals bound both errors by the tolerance, when the space is exhausted, or after 60 products.
    """
    basis = [start / start.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(MOST_PRODUCTS, len(start))):
        image = operator(basis[-1])
        if not image.isfinite().all():
            raise ValueError("the Hessian is not finite")
        diagonal.append(float(image @ basis[-1]))
        known = torch.stack(basis)  # [product, n]
        for _ in range(2):
            image = image - known.T @ (known @ image)
        left = float(image.norm())
        tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        if beside:
            off = torch.tensor(beside, dtype=torch.float64)
            tridiagonal += torch.diag(off, 1) + torch.diag(off, -1)
        values, vectors = torch.linalg.eigh(tridiagonal)
        scale = float(values.abs().max())
        error = left * float(vectors[-1, [0, -1]].abs().max())
        if error <= TOLERANCE * scale or left <= 1e-7 * max(scale, torch.finfo(torch.float32).tiny):
            break
        beside.append(left)
        basis.append(image / left)
    return values[-1], values[0]


def hessian_operator(loss: Tensor, parameters: list[Tensor]) -> Operator:
    """v [n] -> H v [n] for the Hessian H of `loss` in all numbers of `parameters`."""
    gradient = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
    flat = torch.cat([wide(g).flatten() for g in gradient])  # [n]

    def times(v: Tensor) -> Tensor:
        if not flat.requires_grad:  # a loss that is linear in the parameters
            return torch.zeros_like(v)
        product = torch.autograd.grad(
            flat, parameters, grad_outputs=v, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([wide(p).flatten() for p in product])

    return times


class Curvature(Probe):
    """Largest and smallest eigenvalue of the loss Hessian on the batch: how near a saddle."""

    name = "curvature"
    title = "largest and smallest eigenvalue of the loss Hessian"
    gives = ("largest", "smallest")
    passes = f"1, and up to {MOST_PRODUCTS} Hessian-vector products"
    default = False

    def applies(self, scene: Scene) -> str | None:
        if scene.loss_function is None:
            return "no loss is known: give the recorder loss=function(model, batch), or a task"
        if not any(p.requires_grad for p in scene.model.parameters()):
            return "no parameter of the model can be trained"
        return None

    def readings(self, reduced: Reduced, scene: Scene) -> Iterable[Reading]:  # noqa: ARG002
        parameters = [p for p in scene.model.parameters() if p.requires_grad]
        size = sum(p.numel() for p in parameters)
        start = torch.randn(size, generator=generator(0, "curvature"))
        with torch.enable_grad():
            operator = hessian_operator(scene.forward(scene.batch), parameters)
            largest, smallest = extreme_eigenvalues(operator, start.to(wide(parameters[0])))
        yield Reading("largest", largest)
        yield Reading("smallest", smallest)
