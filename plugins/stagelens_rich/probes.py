"""The probe of the parameters of positions and of dot products, as Fig. 2 shows them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced
from stagelens.timelines import ReadingInfo
from stagelens_probes.norms import norm, row_norms

SLOPE = ".attn.alibi_slope"


class PositionNorms(Probe):
    """Reads the slopes p and the norm of (W_K, W_Q) of each head, and the norms over all heads."""

    name = "position_norms"
    title = "ALiBi slopes p and the norm of (W_K, W_Q), of each head and of all together"
    described = {
        "p": ReadingInfo("ALiBi slope of each head", ("layer", "head")),
        "kq": ReadingInfo("norm of (W_K, W_Q) of each head", ("layer", "head"), "", 0),
        "all_p": ReadingInfo("norm of the slopes of all heads", (), "", 0),
        "all_kq": ReadingInfo("norm of (W_K, W_Q) of all heads", (), "", 0),
    }
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
