"""The change of the loss when a head is ablated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Reduced, Site, layers, stack_layers, wide
from stagelens_probes.described import HEAD_ABLATION
from stagelens_probes.next_token import scored_losses
from stagelens_probes.repeats import mean_and_error

HEAD_OUTPUT = "attn.hook_z"  # [batch, position, head, d_head]
ONE_SEQUENCE = (
    "the heads' outputs are computed for one sequence, and the mean over one sequence is the output itself; "
    "measure on a batch of several sequences (in models whose heads do not depend on the sequence, see zero)"
)
NO_ERRORS = "the loss of each sequence is not known: it is not the next-token loss of a batch of several sequences"

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
    gives = ("zero", "zero_error", "mean", "mean_error")
    described = HEAD_ABLATION
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
        zeroed = {site: _changes(context, site, n_heads, zero) for site, (n_heads, _) in reduced.items()}
        yield from _given("zero", zeroed)
        if padded := context.padding():
            yield Omitted("mean", padded)
            return
        if all(n_sequences == 1 for _, n_sequences in reduced.values()):
            yield Omitted("mean", ONE_SEQUENCE)
            return
        meaned = {
            site: _changes(context, site, n_heads, mean) if n_sequences > 1 else (change * torch.nan, error * torch.nan)
            for (change, error), (site, (n_heads, n_sequences)) in zip(zeroed.values(), reduced.items(), strict=True)
        }
        yield from _given("mean", meaned)


def _given(name: str, changes: Mapping[Site, tuple[Tensor, Tensor]]) -> Iterable[Reading | Omitted]:
    """Yields the changes of the loss and their standard errors, [layer, head]; these are omitted if all are nan."""
    layer = {"layer": layers(changes)}
    values, errors = (stack_layers([parts[i] for parts in changes.values()]) for i in (0, 1))
    yield Reading(name, values, ("layer", "head"), layer)
    if errors.isnan().all():
        yield Omitted(f"{name}_error", NO_ERRORS)
    else:
        yield Reading(f"{name}_error", errors, ("layer", "head"), layer)


def _changes(context: ProbeContext, site: Site, n_heads: int, replacement: Replace) -> tuple[Tensor, Tensor]:
    """Returns the loss with each head's output replaced, minus the loss, and its standard error, [head] each."""
    assert context.loss is not None  # applies() checked it
    before = sequence_losses(context)
    changes, errors = [], []
    for head in range(n_heads):
        ablated = without_head(context, site, head, replacement)
        changes.append(wide(ablated.loss) - wide(context.loss))
        after = None if before is None else sequence_losses(ablated)
        error = torch.nan if before is None or after is None else mean_and_error(after - before)[1]
        errors.append(torch.as_tensor(error).to(changes[-1]))
    return torch.stack(changes), torch.stack(errors)


def without_head(context: ProbeContext, site: Site, head: int, replacement: Replace) -> Any:
    """Returns the context with the output and the loss of a pass in which the output of one head is replaced."""
    outputs: list[Any] = []
    handle = context.model.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    try:
        loss = context.run(hooks=[(site.name, ablate(head, replacement))])
    finally:
        handle.remove()
    return replace(context, output=outputs[-1] if outputs else None, loss=loss)


def sequence_losses(context: ProbeContext) -> Tensor | None:
    """Returns the next-token loss of each sequence, [batch]; None for another loss, or for a single sequence."""
    try:
        losses = scored_losses(context)[1]
    except DoesNotApply:
        return None
    return losses.mean(1) if len(losses) > 1 else None
