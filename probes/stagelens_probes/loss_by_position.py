"""The next-token loss at each position of the context."""

from __future__ import annotations

from collections.abc import Iterable

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced
from stagelens_probes.described import LOSS_BY_POSITION
from stagelens_probes.next_token import no_next_token, scored_losses
from stagelens_probes.repeats import ONE_SEQUENCE, mean_and_error


class LossByPosition(Probe):
    """The cross-entropy of the next token at each scored position, in nats, as a mean over the batch."""

    name = "loss_by_position"
    title = "next-token loss at each position of the context"
    gives = ("loss", "loss_error")
    described = LOSS_BY_POSITION

    def applies(self, context: ProbeContext) -> str | None:
        return no_next_token(context)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        positions, losses = scored_losses(context)
        yield Reading("loss", losses.mean(0), ("position",), {"position": positions})
        if len(losses) > 1:
            yield Reading("loss_error", mean_and_error(losses)[1], ("position",), {"position": positions})
        else:
            yield Omitted("loss_error", ONE_SEQUENCE)
