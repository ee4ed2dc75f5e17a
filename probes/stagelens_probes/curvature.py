"""The curvature of the loss: the largest and the smallest eigenvalue of its Hessian."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.base import generator
from stagelens.recording import ProbeContext, Reduced, wide
from stagelens_probes.described import CURVATURE
from stagelens_probes.gradient import why_no_gradient
from stagelens_probes.norms import norm

MOST_PRODUCTS = 100  # maximum number of Hessian-vector products
FEWEST_PRODUCTS = 30  # minimum number of Hessian-vector products
STABLE = 10  # the iteration has converged if neither end moved in so many last products
TOLERANCE = 1e-3  # an end has moved if its relative change is larger than this
FLOOR = 1e-5  # smaller changes, relative to the larger end, are rounding errors of float32

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ends:
    """The ends of a symmetric operator's spectrum, and the residual |H v - value v| of each with its unit vector v.

    Each residual is computed with one more product. The estimate that the iteration itself gives holds in exact
    arithmetic only: it falls below the rounding error.
    """

    largest: float
    smallest: float
    residual_largest: float
    residual_smallest: float
    converged: bool  # False if an end still moved when the products were used up


def extreme_eigenvalues(operator: Operator, start: Tensor) -> Ends:
    """Returns the ends of the spectrum of a symmetric `operator` on vectors [n], by Lanczos iteration from `start` [n].

    A small residual shows only that some eigenvalue is near, not that it is an end. So the iteration stops if neither
    end has moved in the last 10 products (after at least 30), if the space is exhausted, or after 100 products. Each
    new vector is made orthogonal to all vectors before it, twice: otherwise rounding would add spurious eigenvalues.
    """
    basis = [start / norm(start)]
    diagonal: list[float] = []
    beside: list[float] = []
    found: list[tuple[float, float]] = []
    converged = False
    for _ in range(min(MOST_PRODUCTS, len(start))):
        image = operator(basis[-1])
        if not image.isfinite().all():
            raise ValueError("the Hessian is not finite")
        diagonal.append(float(image @ basis[-1]))
        known = torch.stack(basis)  # [product, n]
        for _ in range(2):
            image = image - known.T @ (known @ image)
        left = float(norm(image))
        values, vectors = ritz_pairs(diagonal, beside)
        found.append((values[-1], values[0]))
        scale = max(map(abs, found[-1]))
        converged = left <= 1e-7 * scale or left == 0 or settled(found) or len(found) == len(start)
        if converged:
            break
        beside.append(left)
        basis.append(image / left)
    high, low = (residual(operator, values[i], vectors[:, i].to(known) @ known) for i in (-1, 0))
    return Ends(*found[-1], high, low, converged)


def residual(operator: Operator, value: float, vector: Tensor) -> float:
    """Returns |H v - value v| for the unit vector v along `vector` [n]."""
    unit = vector / norm(vector)
    return float(norm(operator(unit) - value * unit))


def ritz_pairs(diagonal: list[float], beside: list[float]) -> tuple[list[float], Tensor]:
    """Returns the eigenvalues, smallest first, and eigenvectors [product, value] of the Lanczos tridiagonal matrix.

    `diagonal` are its diagonal entries, `beside` those next to the diagonal.
    """
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside, dtype=torch.float64)
        tridiagonal += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    return values.tolist(), vectors


def settled(found: Sequence[tuple[float, float]]) -> bool:
    """Returns True if there were enough products and neither end (largest, smallest) moved in the last ones."""
    if len(found) < max(FEWEST_PRODUCTS, STABLE + 1):
        return False
    now, before = found[-1], found[-1 - STABLE]
    floor = FLOOR * max(map(abs, now))
    return all(abs(new - old) <= max(TOLERANCE * abs(new), floor) for new, old in zip(now, before, strict=True))


def hessian_operator(loss: Tensor, parameters: list[Tensor]) -> Operator:
    """Returns the function v [n] -> H v [n], where H is the Hessian of `loss` in all n entries of `parameters`."""
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
    """Largest and smallest eigenvalue of the loss Hessian on the batch.

    If the smallest one is negative, the loss curves down along its eigenvector, as near a saddle.
    """

    name = "curvature"
    title = "largest and smallest eigenvalue of the loss Hessian"
    described = CURVATURE
    passes = f"1, and up to {MOST_PRODUCTS + 2} Hessian-vector products"
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        return why_no_gradient(context)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        parameters = [p for p in context.model.parameters() if p.requires_grad]
        size = sum(p.numel() for p in parameters)
        start = torch.randn(size, generator=generator(0, "curvature"))
        with torch.enable_grad():
            operator = hessian_operator(context.forward(context.batch), parameters)
            ends = extreme_eigenvalues(operator, start.to(wide(parameters[0])))
        if not ends.converged:
            warnings.warn(
                f"curvature did not converge in {MOST_PRODUCTS} products at step {context.step:g}: the eigenvalues "
                f"{ends.largest:.4g} and {ends.smallest:.4g} have residuals {ends.residual_largest:.2g} and "
                f"{ends.residual_smallest:.2g}; the true ones are larger in size",
                stacklevel=2,
            )
        for name in self.gives:
            yield Reading(name, float(getattr(ends, name)))
