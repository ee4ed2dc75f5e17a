"""Which principal components the model uses: where M = sum v k q^T is relative to the fixed points of Eq. 4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.experiments import Floats
from stagelens.recording import ProbeContext, Reduced
from stagelens.timelines import ReadingInfo

Array = TypeVar("Array", Floats, Tensor)  # the functions below work on both


def distances(M: Array, fixed_points: Array) -> Array:
    """Returns |M - M_m| / |M_D| for m = 0..D, [D + 1], from M [D, D] and M_0..M_D [D + 1, D, D]."""
    squared: Any = ((M - fixed_points) ** 2).sum((-1, -2)) / (fixed_points[-1] ** 2).sum()
    return squared**0.5  # type: ignore[no-any-return]


def learned(M: Array, fixed_points: Array) -> Array:
    """Returns the learned fraction of each eigenvector, <M, e_d e_d^T> over its value at M_D, [..., D]."""
    parts = fixed_points[1:] - fixed_points[:-1]  # [D, D, D]: each e_d e_d^T with its weight
    fraction: Any = (M[..., None, :, :] * parts).sum((-1, -2)) / (parts**2).sum((-1, -2))
    return fraction  # type: ignore[no-any-return]


def cosines(vectors: Array, eigenvectors: Array) -> Array:
    """Returns |cosine| of a head's keys (or queries) [..., H, R, D] with e_1..e_D [D, D], as [..., H, D].

    For R > 1 it is the fraction of the R vectors' norm along e_d. It is 0 for vectors that are 0.
    """
    along: Any = ((vectors @ eigenvectors.T) ** 2).sum(-2)  # [..., H, D]
    size: Any = (vectors**2).sum((-1, -2))[..., None]
    return (along / (size + (size == 0))) ** 0.5  # type: ignore[no-any-return]


def component_readings(
    M: Array, v: Array, k: Array, q: Array, fixed_points: Array, eigenvectors: Array
) -> Iterable[Reading]:
    """Yields the readings of one seed, from M [D, D], v [H], k and q [H, R, D]."""
    directions = {"direction": [f"e{d}" for d in range(1, len(eigenvectors) + 1)]}
    distance = distances(M, fixed_points)
    yield Reading("count", distance.argmin())  # type: ignore[arg-type]
    yield Reading("distance", distance, ("learned",), {"learned": list(range(len(fixed_points)))})
    yield Reading("learned", learned(M, fixed_points), ("direction",), directions)
    yield Reading("value", v, ("head",))
    yield Reading("key", cosines(k, eigenvectors), ("head", "direction"), directions)
    yield Reading("query", cosines(q, eigenvectors), ("head", "direction"), directions)


class PrincipalComponents(Probe):
    """The fixed point nearest to M, the distance to each of them, and each head's value, key and query."""

    name = "principal_components"
    title = "how many principal components linear attention uses in context"
    described = {
        "count": ReadingInfo("number of the fixed point nearest to M: components learned so far", (), "components", 0),
        "distance": ReadingInfo("distance of M from each fixed point, over the norm of the last", ("learned",), "", 0),
        "learned": ReadingInfo("learned fraction of each eigenvector", ("direction",), "fraction"),
        "value": ReadingInfo("the value weight of each head", ("head",)),
        "key": ReadingInfo("|cosine| of a head's key with each eigenvector", ("head", "direction"), "cosine", 0, 1),
        "query": ReadingInfo("|cosine| of a head's query with each eigenvector", ("head", "direction"), "cosine", 0, 1),
    }
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
    """Returns e_1..e_D [D, D] from the task's directions of the tokens (x, y)."""
    return torch.stack([direction[:-1] for direction in context.directions.values()])
