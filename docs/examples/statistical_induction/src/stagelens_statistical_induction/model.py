"""The model: two layers of attention without MLPs."""

from __future__ import annotations

from stagelens.models import Transformer, build_transformer

from stagelens_statistical_induction.config import ChainsConfig


def build(config: ChainsConfig, seed: int) -> Transformer:
    """Returns the attention-only transformer at its initialization."""
    return build_transformer(
        n_layers=2,
        n_heads=config.heads,
        d_model=config.d_model,
        n_ctx=config.length - 1,
        d_vocab=config.k,
        seed=seed,
    )
