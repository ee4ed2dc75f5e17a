"""The model: a one-layer transformer without layer norm."""

from __future__ import annotations

from stagelens.models import Transformer, build_transformer

from stagelens_grokking.config import AdditionConfig


def build(config: AdditionConfig, seed: int) -> Transformer:
    """Returns the transformer at its initialization; it reads `a b =` and has p outputs."""
    return build_transformer(
        n_layers=1,
        n_heads=config.heads,
        d_model=config.d_model,
        d_mlp=config.d_mlp,
        n_ctx=3,
        d_vocab=config.p + 1,
        d_out=config.p,
        normalization="none",
        seed=seed,
    )
