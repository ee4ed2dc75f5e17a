"""A fast transformer written by hand in PyTorch: packed QKV, fused attention, nn.LayerNorm, nn.Linear.

`training.py` compares models of `stagelens.models` with it. It has the same architecture and the same weights. If the
loss reads the last position alone, the last layer computes only keys and values at the other positions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EVERY, LAST = slice(None), slice(-1, None)  # positions that the loss may read
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "gelu_new": lambda x: F.gelu(x, approximate="tanh")}


class Attention(nn.Module):
    def __init__(self, d_model: int, heads: int, d_head: int, slopes: Tensor | None, rate: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.qkv = nn.Linear(d_model, 3 * heads * d_head)
        self.out = nn.Linear(heads * d_head, d_model)
        self.slopes = None if slopes is None else nn.Parameter(slopes)  # trained ALiBi slopes, [head]

    def bias(self, length: int, queries: slice) -> Tensor | None:
        if self.slopes is None:
            return None  # the kernel's causal mask, or none for the last query, which sees every key
        place = torch.arange(length)
        lag = (place[:, None] - place)[queries]
        return (-self.slopes[:, None, None] * lag).masked_fill(lag < 0, -torch.inf)

    def forward(self, x: Tensor, queries: slice) -> Tensor:
        batch, length, _ = x.shape
        if queries == EVERY:
            q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            inner = self.out.in_features
            (W_q, W_kv), (b_q, b_kv) = (part.split((inner, 2 * inner)) for part in (self.qkv.weight, self.qkv.bias))
            q = F.linear(x[:, queries], W_q, b_q).view(batch, -1, self.heads, inner // self.heads).transpose(1, 2)
            k, v = F.linear(x, W_kv, b_kv).view(batch, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias, rate = self.bias(length, queries), self.rate if self.training else 0.0
        causal = queries == EVERY and bias is None
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, dropout_p=rate)
        return self.out(z.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, cfg: Any, slopes: Tensor | None, rate: float) -> None:
        super().__init__()
        d, norm = cfg.d_model, cfg.normalization_type is not None
        self.norm1 = nn.LayerNorm(d) if norm else nn.Identity()
        self.attention = Attention(d, cfg.n_heads, cfg.d_head, slopes, rate)
        self.dropout = nn.Dropout(rate)
        self.mlp = not cfg.attn_only
        if self.mlp:
            self.norm2 = nn.LayerNorm(d) if norm else nn.Identity()
            self.up, self.down = nn.Linear(d, cfg.d_mlp), nn.Linear(cfg.d_mlp, d)
            self.activation = ACTIVATIONS[cfg.act_fn]

    def forward(self, x: Tensor, queries: slice) -> Tensor:
        read = self.dropout(self.attention(self.norm1(x), queries))
        x = (x if queries == EVERY else x[:, queries]) + read
        if self.mlp:
            x = x + self.dropout(self.down(self.activation(self.up(self.norm2(x)))))
        return x


class Plain(nn.Module):
    """The architecture and the weights of `model`, a causal Transformer of `stagelens.models`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        cfg = model.cfg
        d, n_ctx, d_out = cfg.d_model, cfg.n_ctx, model.unembed.W_U.shape[1]
        if model.d_in is None:
            self.embed: nn.Module = nn.Embedding(cfg.d_vocab, d)
        else:
            self.embed = nn.Linear(model.d_in, d, bias=False)
        if model.positions == "learned":
            self.positions: Tensor | None = nn.Parameter(torch.empty(n_ctx, d))
        else:
            self.register_buffer("positions", torch.empty(n_ctx, d) if model.positions == "sinusoidal" else None)
        self.dropout = nn.Dropout(model.dropout)
        slopes = torch.empty(cfg.n_heads) if model.positions == "alibi" else None
        self.blocks = nn.ModuleList([Block(cfg, slopes, model.dropout) for _ in range(cfg.n_layers)])
        self.norm = nn.LayerNorm(d) if cfg.normalization_type is not None else nn.Identity()
        self.unembed = nn.Linear(d, d_out)
        self.take_weights(model)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.answers(inputs, EVERY)

    def answers(self, inputs: Tensor, queries: slice) -> Tensor:
        """Returns the logits at every position, or at the last one only."""
        assert queries in (EVERY, LAST), queries
        x = self.embed(inputs)
        if self.positions is not None:
            x = x + self.positions[: inputs.shape[1]]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, queries if block is self.blocks[-1] else EVERY)
        return self.unembed(self.norm(x))

    @torch.no_grad()
    def take_weights(self, model: Any) -> None:
        self.embed.weight.copy_(model.W_E if model.d_in is None else model.embed.W_E.T)
        if self.positions is not None:
            self.positions.copy_(model.pos_embed.W_pos)
        for block, theirs in zip(self.blocks, model.blocks, strict=True):
            attn, own = theirs.attn, block.attention
            own.qkv.weight.copy_(torch.cat([W.mT.flatten(0, 1) for W in (attn.W_Q, attn.W_K, attn.W_V)]))
            own.qkv.bias.copy_(torch.cat([b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)]))
            own.out.weight.copy_(attn.W_O.flatten(0, 1).T)
            own.out.bias.copy_(attn.b_O)
            if own.slopes is not None:
                own.slopes.copy_(attn.alibi_slope)
            if block.mlp:
                for layer, W, b in (
                    (block.up, theirs.mlp.W_in, theirs.mlp.b_in),
                    (block.down, theirs.mlp.W_out, theirs.mlp.b_out),
                ):
                    layer.weight.copy_(W.T)
                    layer.bias.copy_(b)
        self.unembed.weight.copy_(model.unembed.W_U.T)
        self.unembed.bias.copy_(model.unembed.b_U)
