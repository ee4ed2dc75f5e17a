"""The positions' and the dot products' parameters, as Fig. 2 draws them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced
from stagelens_probes.norms import norm, row_norms

SLOPE = ".attn.alibi_slope"
Floats = NDArray[np.float64]


class PositionNorms(Probe):
    """The slopes p and the norm of (W_K, W_Q) of each head, and the norms of all of them together."""

    name = "position_norms"
    title = "ALiBi slopes p and the norm of (W_K, W_Q), of each head and of all together"
    gives = ("p", "kq", "all_p", "all_kq")
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        found = any(name.endswith(SLOPE) for name, _ in context.model.named_parameters())
        return None if found else "the model has no learnable ALiBi slopes"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        parameters = dict(context.model.named_parameters())
        blocks = [name.removesuffix(SLOPE) for name in parameters if name.endswith(SLOPE)]
        p = torch.stack([parameters[f"{block}{SLOPE}"] for block in blocks])  # [layer, head]
        kq = torch.stack(
            [
                row_norms(torch.cat([parameters[f"{block}.attn.{w}"].flatten(1) for w in ("W_K", "W_Q")], dim=1))
                for block in blocks
            ]
        )  # [layer, head]
        coords = {"layer": [int(block.rpartition(".")[2]) for block in blocks]}
        for name, values in (("p", p), ("kq", kq)):
            yield Reading(name, values, ("layer", "head"), coords)
            yield Reading(f"all_{name}", norm(values))


def half_time(steps: NDArray[np.number], values: Floats, start: float | None = None) -> float:
    """The step from which on `values` [step] have gone half of the way from `start` to the last of them, for good.

    `start` None is the first value, which makes it half of the change; 0 makes it half of the last value. Between two
    steps the way is taken to be straight. nan where there is no way to go.
    """
    origin = values[0] if start is None else start
    way = values[-1] - origin
    if way == 0:
        return float("nan")
    gone = (values - origin) / way
    before = np.flatnonzero(gone < 0.5)
    if not len(before):
        return float(steps[0])
    last = before[-1]
    return float(np.interp(0.5, gone[last : last + 2], steps[last : last + 2]))
