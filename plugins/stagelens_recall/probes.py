"""The probe of the recall circuit, in the paper's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced
from stagelens.timelines import ReadingInfo
from stagelens_recall.theory import alpha_of


class RecallCircuit(Probe):
    """Reads beta_h and alpha_h of the simplified model, or the blocks of Q^T K of the original model."""

    name = "recall_circuit"
    title = "beta and alpha of each head, or the centred identity in each block of Q^T K"
    described = {
        "beta": ReadingInfo("beta_h of the simplified model; recall_head is the paper's h, from 1", ("recall_head",)),
        "alpha": ReadingInfo(
            "alpha_h of the simplified model; recall_head is the paper's h, from 1", ("recall_head",), "fraction"
        ),
        "coefficient": ReadingInfo(
            "coefficient of the centred identity in each block of Q^T K", ("query_slot", "key_slot")
        ),
    }
    default = False
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        if hasattr(context.model, "beta") or hasattr(context.model, "coefficients"):
            return None
        return "the model is not one of the recall plugin's"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        model: Any = context.model
        if hasattr(model, "beta"):
            heads = {"recall_head": list(range(1, len(model.beta) + 1))}
            yield Reading("beta", model.beta, ("recall_head",), heads)
            yield Reading("alpha", alpha_of(model.w), ("recall_head",), heads)
            yield Omitted("coefficient", "the simplified model has no matrix Q^T K; it has beta and alpha instead")
        else:
            for name in ("beta", "alpha"):
                yield Omitted(name, "only the simplified model has beta and alpha; this one has `coefficient`")
            yield Reading("coefficient", model.coefficients(), ("query_slot", "key_slot"))
