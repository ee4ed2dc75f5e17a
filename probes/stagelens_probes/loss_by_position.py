"""The next-token loss at each position of the context."""

from __future__ import annotations

from collections.abc import Iterable

from stagelens import Probe, Reading
from stagelens.probing import DoesNotApply, Reduced
from stagelens.scene import Scene
from stagelens_probes.next_token import batch_losses, no_next_token


class LossByPosition(Probe):
    """Cross-entropy of the next token in nats, a mean over the batch, at each scored position."""

    name = "loss_by_position"
    title = "next-token loss at each position of the context"
    gives = ("loss",)

    def applies(self, scene: Scene) -> str | None:
        return no_next_token(scene)

    def readings(self, reduced: Reduced, scene: Scene) -> Iterable[Reading]:  # noqa: ARG002
        losses = batch_losses(scene)  # [position]
        scored = range(scene.output.shape[1])[scene.queries]
        positions = [position for position in scored if position < len(losses)]
        if not positions:
            raise DoesNotApply("no scored position has a next token in the batch")
        yield Reading("loss", losses[positions], ("position",), {"position": positions})
