"""The next-token loss at each position of the context."""

from __future__ import annotations

from collections.abc import Iterable

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced
from stagelens_probes.next_token import no_next_token, scored_losses


class LossByPosition(Probe):
    """The cross-entropy of the next token at each scored position, in nats, as a mean over the batch."""

    name = "loss_by_position"
    title = "next-token loss at each position of the context"
    gives = ("loss",)

    def applies(self, context: ProbeContext) -> str | None:
        return no_next_token(context)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        positions, losses = scored_losses(context)
        yield Reading("loss", losses.mean(0), ("position",), {"position": positions})
