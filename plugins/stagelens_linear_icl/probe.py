"""How many principal components the model uses: where M = sum v k q^T stands between the fixed points of Eq. 4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced
from stagelens_linear_icl.data import Floats

Array = TypeVar("Array", Floats, Tensor)  # what follows is the same for both


def distances(M: Array, fixed_points: Array) -> Array:
    """|M - M_m| / |M_D| for m = 0..D, [D + 1], from M [D, D] and M_0..M_D [D + 1, D, D]."""
    apart: Any = ((M - fixed_points) ** 2).sum((-1, -2)) / (fixed_points[-1] ** 2).sum()
    return apart**0.5  # type: ignore[no-any-return]


def learned(M: Array, fixed_points: Array) -> Array:
    """How much of each eigenvector is learned, [..., D]: <M, e_d e_d^T> as a share of what it is at M_D."""
    parts = fixed_points[1:] - fixed_points[:-1]  # [D, D, D]: each e_d e_d^T with its weight
    share: Any = (M[..., None, :, :] * parts).sum((-1, -2)) / (parts**2).sum((-1, -2))
    return share  # type: ignore[no-any-return]


def cosines(vectors: Array, eigenvectors: Array) -> Array:
    """|cosine| of a head's keys (or queries) [..., H, R, D] with e_1..e_D [D, D], [..., H, D]; 0 where they are 0.

    For R > 1 it is the share of the R vectors' norm that lies along e_d.
    """
    along: Any = ((vectors @ eigenvectors.T) ** 2).sum(-2)  # [..., H, D]
    size: Any = (vectors**2).sum((-1, -2))[..., None]
    return (along / (size + (size == 0))) ** 0.5  # type: ignore[no-any-return]


def component_readings(
    M: Array, v: Array, k: Array, q: Array, fixed_points: Array, eigenvectors: Array
) -> Iterable[Reading]:
    """The readings of one seed: M [D, D], v [H], k and q [H, R, D]."""
    directions = {"direction": [f"e{d}" for d in range(1, len(eigenvectors) + 1)]}
    apart = distances(M, fixed_points)
    yield Reading("count", apart.argmin())  # type: ignore[arg-type]
    yield Reading("distance", apart, ("learned",), {"learned": list(range(len(fixed_points)))})
    yield Reading("learned", learned(M, fixed_points), ("direction",), directions)
    yield Reading("value", v, ("head",))
    yield Reading("key", cosines(k, eigenvectors), ("head", "direction"), directions)
    yield Reading("query", cosines(q, eigenvectors), ("head", "direction"), directions)


class PrincipalComponents(Probe):
    """The fixed point that M is nearest to, its distance to each, and each head's value, key and query."""

    name = "principal_components"
    title = "how many principal components linear attention uses in context"
    gives = ("count", "distance", "learned", "value", "key", "query")
    default = False
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        if not hasattr(context.model, "fixed_points"):
            return "the model names no fixed points"
        if context.model.attention.kind != "linear":
            return "the fixed points are those of linear attention"
        return None

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        model: Any = context.model
        e = context.constant("eigenvectors", lambda: _eigenvectors(context).to(model.fixed_points))
        v, k, q = model.attention.core()
        yield from component_readings(model.product(), v, k, q, model.fixed_points, e)


def _eigenvectors(context: ProbeContext) -> Tensor:
    """e_1..e_D [D, D] from the task's directions of tokens (x, y)."""
    return torch.stack([direction[:-1] for direction in context.directions.values()])
