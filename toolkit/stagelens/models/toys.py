"""Configs of toy models: HookedRootModules that are not HookedTransformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ToyConfig:
    """What a HookedRootModule toy model puts in `self.cfg`.

    The names are those of TransformerLens, so that a probe can read `model.cfg.n_heads` of any model.
    """

    n_layers: int
    n_heads: int
    n_ctx: int
    d_vocab: int | None = None  # None: continuous inputs
    attention_dir: Literal["causal", "bidirectional"] = "causal"
