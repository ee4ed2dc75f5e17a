# frozen: do not edit. Written against the import paths of stagelens 0.1.0, which later versions must keep.
"""Three probes: a function, one as `stagelens new-plugin` writes it, and one with a memory and a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import stagelens as sl
from stagelens import Probe, Reading
from stagelens.probing import DoesNotApply, Reduced, layers, stack_layers


@sl.probe(hooks="attn.hook_pattern", dims=("head",))
def first_key(pattern: Tensor, scene: Any) -> Tensor:
    return pattern[..., 0].mean((0, 2))


class Source(Probe):
    """Attention to the token that is to be copied next."""

    name = "frozen_source"
    title = "attention to the source"
    gives = ("attention",)
    hooks = ("attn.hook_pattern",)
    default = False

    def applies(self, scene: Any) -> str | None:
        return super().applies(scene) or (None if "source" in scene.groups else "the task names no group 'source'")

    def reduce(self, activation: Tensor, site: Any, scene: Any) -> Tensor:
        mask = scene.groups["source"].mask(*activation.shape[-2:], device=activation.device)
        return (activation * mask).sum(-1)[:, :, scene.queries].mean((0, 2))

    def readings(self, reduced: Reduced, scene: Any) -> Iterable[Reading]:
        yield Reading("attention", stack_layers(reduced), ("layer", "head"), {"layer": layers(reduced)})


class Growth(sl.Probe):
    """The norm of the residual stream after each layer over that before, and its change since the last measurement."""

    name = "frozen_growth"
    title = "growth of the stream"
    gives = ("ratio", "change")
    hooks = ("hook_resid_pre", "hook_resid_post")
    default = False

    def reduce(self, activation: Tensor, site: Any, scene: Any) -> Tensor:
        return activation.norm(dim=-1).mean()

    def readings(self, reduced: Reduced, scene: Any) -> Iterable[Reading]:
        norms = {(site.layer, site.hook): value for site, value in reduced.items()}
        known = sorted({layer for layer, _ in norms})
        if scene.model.cfg.n_layers != len(known):
            raise DoesNotApply("some layer has no residual stream")
        ratio = torch.stack([norms[layer, "hook_resid_post"] / norms[layer, "hook_resid_pre"] for layer in known])
        change = ratio - self.state.get("ratio", ratio)
        self.state["ratio"] = ratio
        yield Reading("ratio", ratio, ("layer",), {"layer": known})
        yield Reading("change", change, ("layer",), {"layer": known})
