"""The change of the loss when a head is ablated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced, Site, layers, stack_layers, wide

HEAD_OUTPUT = "attn.hook_z"  # [batch, position, head, d_head]
ONE_SEQUENCE = (
    "the heads' outputs are computed for one sequence, and the mean over one sequence is the output itself; "
    "measure on a batch of several sequences (in models whose heads do not depend on the sequence, see zero)"
)

Replace = Callable[[Tensor], Tensor]


def zero(z: Tensor) -> Tensor:
    """Returns zeros in the shape of a head's output [batch, position, d_head]."""
    return torch.zeros_like(z)


def mean(z: Tensor) -> Tensor:
    """Returns the mean over the batch of a head's output [batch, position, d_head], in the same shape."""
    return z.mean(0, keepdim=True).expand_as(z)


def ablate(head: int, replacement: Replace) -> Callable[..., Tensor]:
    """Returns a hook that replaces the output z of one head by `replacement(z)`."""

    def hook_function(z: Tensor, hook: Any) -> Tensor:  # noqa: ARG001  TransformerLens passes it by name
        z = z.clone()
        z[:, :, head] = replacement(z[:, :, head])
        return z

    return hook_function


class HeadAblation(Probe):
    """Change of the loss when one head's output is set to zero, or to its mean over the batch."""

    name = "head_ablation"
    title = "change of the loss when a head is zeroed or mean-ablated"
    gives = ("zero", "mean")
    hooks = (HEAD_OUTPUT,)
    passes = "2 per head"
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        if context.loss_function is None:
            return "no loss is known: give the recorder loss=function(model, batch), or a task"
        return super().applies(context)

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> tuple[int, int]:  # noqa: ARG002
        """Returns the number of heads of the layer, and of the sequences for which they are computed."""
        return activation.shape[2], activation.shape[0]

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        layer = {"layer": layers(reduced)}
        zeroed = [_changes(context, site, n_heads, zero) for site, (n_heads, _) in reduced.items()]
        yield Reading("zero", stack_layers(zeroed), ("layer", "head"), layer)
        if padded := context.padding():
            yield Omitted("mean", padded)
            return
        if all(n_sequences == 1 for _, n_sequences in reduced.values()):
            yield Omitted("mean", ONE_SEQUENCE)
            return
        meaned = [
            _changes(context, site, n_heads, mean) if n_sequences > 1 else torch.full_like(change, torch.nan)
            for change, (site, (n_heads, n_sequences)) in zip(zeroed, reduced.items(), strict=True)
        ]
        yield Reading("mean", stack_layers(meaned), ("layer", "head"), layer)


def _changes(context: ProbeContext, site: Site, n_heads: int, replacement: Replace) -> Tensor:
    """Returns the loss with each head's output replaced, minus the loss, [head]."""
    assert context.loss is not None  # applies() checked it
    losses = [context.run(hooks=[(site.name, ablate(head, replacement))]) for head in range(n_heads)]
    return wide(torch.stack(losses)) - wide(context.loss)
