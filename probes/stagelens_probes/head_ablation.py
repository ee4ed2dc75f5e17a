"""What the loss loses when a head is taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.probing import Reduced, layers, stack_layers
from stagelens.scene import Scene, Site

HEAD_OUTPUT = "attn.hook_z"  # [batch, position, head, d_head]

Replace = Callable[[Tensor], Tensor]


def zero(z: Tensor) -> Tensor:
    """A head's output [batch, position, d_head] -> nothing."""
    return torch.zeros_like(z)


def mean(z: Tensor) -> Tensor:
    """A head's output [batch, position, d_head] -> its mean over the batch at each position."""
    return z.mean(0, keepdim=True).expand_as(z)


def ablate(head: int, replacement: Replace) -> Callable[..., Tensor]:
    """A hook that puts `replacement` in the place of one head's output."""

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

    def applies(self, scene: Scene) -> str | None:
        if scene.loss_function is None:
            return "no loss is known: give the recorder loss=function(model, batch), or a task"
        return super().applies(scene)

    def reduce(self, activation: Tensor, site: Site, scene: Scene) -> int:  # noqa: ARG002
        """How many heads the layer has."""
        return activation.shape[2]

    def readings(self, reduced: Reduced, scene: Scene) -> Iterable[Reading]:
        for name, replacement in (("zero", zero), ("mean", mean)):
            change = [
                torch.stack([_change(scene, site, head, replacement) for head in range(n_heads)])
                for site, n_heads in reduced.items()
            ]
            yield Reading(name, stack_layers(change), ("layer", "head"), {"layer": layers(reduced)})


def _change(scene: Scene, site: Site, head: int, replacement: Replace) -> Tensor:
    assert scene.loss is not None  # applies() saw to it
    return scene.run(hooks=[(site.name, ablate(head, replacement))]) - scene.loss
