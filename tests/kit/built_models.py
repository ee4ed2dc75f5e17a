"""Small transformers made by `build_transformer`, and the same mathematics written out in plain torch (float64)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stagelens.models import Transformer, build_transformer

SIZES = {
    "n_layers": 2,
    "n_heads": 3,
    "d_model": 12,
    "n_ctx": 7,
    "d_mlp": 20,
    "dtype": torch.float64,
    "seed": 0,
}
POSITIONS = ["learned", "sinusoidal", "alibi", "none"]


def build(**options: object) -> Transformer:
    options = SIZES | {"d_vocab": None if "d_in" in options else 5} | options
    return build_transformer(**options)


def randomize(model: Transformer, seed: int = 1) -> Transformer:
    """Every parameter random, so that no bias, layer norm or slope is at a value that hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def some_tokens(batch: int = 4, length: int = 7, d_vocab: int = 5) -> Tensor:
    return torch.randint(d_vocab, (batch, length), generator=torch.Generator().manual_seed(2))


# The hand-written transformer.


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w + b


def attention_pattern(x: Tensor, p: dict[str, Tensor], at: str, causal: bool, slope: Tensor | None) -> Tensor:
    """x [batch, pos, d_model] -> [batch, head, query, key]."""
    T = x.shape[1]
    q = torch.einsum("btd,hde->bhte", x, p[at + "W_Q"]) + p[at + "b_Q"][:, None, :]
    k = torch.einsum("btd,hde->bhte", x, p[at + "W_K"]) + p[at + "b_K"][:, None, :]
    scores = torch.einsum("bhqe,bhke->bhqk", q, k) / math.sqrt(q.shape[-1])
    rows = []
    for query in range(T):
        row = scores[:, :, query, :]
        if slope is not None:
            lag = torch.tensor([abs(query - key) for key in range(T)], dtype=x.dtype)
            row = row - slope[None, :, None] * lag
        if causal:
            row = torch.cat([row[..., : query + 1], torch.full_like(row[..., query + 1 :], -math.inf)], dim=-1)
        rows.append(torch.exp(row) / torch.exp(row).sum(-1, keepdim=True))
    return torch.stack(rows, dim=2)


def hand_written(
    embedded: Tensor, p: dict[str, Tensor], *, n_layers: int = 2, norm: bool = True, causal: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """embedded [batch, pos, d_model] with positions -> logits [batch, pos, d_out], each layer's pattern."""
    x, patterns = embedded, []
    for layer in range(n_layers):
        at = f"blocks.{layer}.attn."
        y = layer_norm(x, p[f"blocks.{layer}.ln1.w"], p[f"blocks.{layer}.ln1.b"]) if norm else x
        pattern = attention_pattern(y, p, at, causal, p.get(at + "alibi_slope"))
        patterns.append(pattern)
        v = torch.einsum("btd,hde->bhte", y, p[at + "W_V"]) + p[at + "b_V"][:, None, :]
        x = x + torch.einsum("bhqk,bhke,hed->bqd", pattern, v, p[at + "W_O"]) + p[at + "b_O"]
        if f"blocks.{layer}.mlp.W_in" in p:
            y = layer_norm(x, p[f"blocks.{layer}.ln2.w"], p[f"blocks.{layer}.ln2.b"]) if norm else x
            hidden = (y @ p[f"blocks.{layer}.mlp.W_in"] + p[f"blocks.{layer}.mlp.b_in"]).clamp(min=0)
            x = x + hidden @ p[f"blocks.{layer}.mlp.W_out"] + p[f"blocks.{layer}.mlp.b_out"]
    if norm:
        x = layer_norm(x, p["ln_final.w"], p["ln_final.b"])
    return x @ p["unembed.W_U"] + p["unembed.b_U"], patterns


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
