"""How many principal components the model uses: where M = sum v k q^T stands between the fixed points of Eq. 4."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stagelens import Probe, Reading
from stagelens.probing import Reduced
from stagelens.scene import Scene
from stagelens_linear_icl.data import Floats
from stagelens_linear_icl.descent import Weights, product


def distances(M: Floats, fixed_points: Floats) -> Floats:
    """|M - M_m| / |M_D| for m = 0..D, [D + 1], from M [D, D] and M_0..M_D [D + 1, D, D]."""
    apart: Floats = np.linalg.norm(M - fixed_points, axis=(-1, -2)) / np.linalg.norm(fixed_points[-1])
    return apart


def learned(M: Floats, fixed_points: Floats) -> Floats:
    """How much of each eigenvector is learned, [..., D]: <M, e_d e_d^T> as a share of what it is at M_D."""
    parts = np.diff(fixed_points, axis=0)  # [D, D, D]: each e_d e_d^T with its weight
    share: Floats = np.einsum("...ij,dij->...d", M, parts) / (parts**2).sum((-1, -2))
    return share


def cosines(vectors: Floats, eigenvectors: Floats) -> Floats:
    """|cosine| of a head's keys (or queries) [..., H, R, D] with e_1..e_D [D, D], [..., H, D]; 0 where they are 0.

    For R > 1 it is the share of the R vectors' norm that lies along e_d.
    """
    along = np.linalg.norm(vectors @ eigenvectors.T, axis=-2)  # [..., H, D]
    size = np.linalg.norm(vectors, axis=(-1, -2))[..., None]
    share: Floats = along / np.where(size == 0, 1.0, size)
    return share


def component_readings(weights: Weights, fixed_points: Floats, eigenvectors: Floats) -> Iterable[Reading]:
    """The readings of one seed's weights."""
    M = product(weights)
    directions = {"direction": [f"e{d}" for d in range(1, len(eigenvectors) + 1)]}
    apart = distances(M, fixed_points)
    yield Reading("count", float(apart.argmin()))
    yield Reading("distance", apart, ("learned",), {"learned": list(range(len(fixed_points)))})
    yield Reading("learned", learned(M, fixed_points), ("direction",), directions)
    yield Reading("value", weights.v, ("head",))
    yield Reading("key", cosines(weights.k, eigenvectors), ("head", "direction"), directions)
    yield Reading("query", cosines(weights.q, eigenvectors), ("head", "direction"), directions)


class PrincipalComponents(Probe):
    """The fixed point that M is nearest to, its distance to each, and each head's value, key and query."""

    name = "principal_components"
    title = "how many principal components linear attention uses in context"
    gives = ("count", "distance", "learned", "value", "key", "query")
    default = False

    def applies(self, scene: Scene) -> str | None:
        if not hasattr(scene.model, "fixed_points"):
            return "the model names no fixed points"
        if scene.model.attention.kind != "linear":
            return "the fixed points are those of linear attention"
        return None

    def readings(self, reduced: Reduced, scene: Scene) -> Iterable[Reading]:  # noqa: ARG002
        model = scene.model
        eigenvectors = np.stack([direction[:-1].numpy() for direction in scene.directions.values()])
        yield from component_readings(model.weights(), model.fixed_points.cpu().numpy(), eigenvectors)
