"""The minimal architecture (C.1): one attention layer on one-hot tokens and positions, and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from stagelens.models import ToyConfig


class MinimalAttention(nn.Module):
    """Scores x_k^T A_h x_q and values V_h x_k, where x joins the one-hot token and the one-hot position."""

    def __init__(self, d: int, n: int, heads: int, init_scale: float, generator: torch.Generator) -> None:
        super().__init__()
        uniform = torch.rand(heads, d + n, d + n, generator=generator) * 2 - 1
        self.A = nn.Parameter(init_scale * uniform)  # [head, key side, query side]
        self.V = nn.Parameter(torch.zeros(heads, d + n, d))  # [head, input, outcome]
        self.hook_v = HookPoint()  # [batch, key, head, outcome]
        self.hook_attn_scores = HookPoint()  # [batch, head, query, key]
        self.hook_pattern = HookPoint()  # [batch, head, query, key]
        self.hook_z = HookPoint()  # [batch, query, head, outcome]

    def forward(self, x: Tensor, n_queries: int) -> Tensor:
        """x [batch, position, d + n] -> logits [batch, query, d] at the last `n_queries` positions."""
        queries = x[:, -n_queries:]
        scores = torch.einsum("bki,hij,bqj->bhqk", x, self.A, queries)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(x.shape[1] - n_queries + 1)
        scores = self.hook_attn_scores(scores.masked_fill(hidden, -torch.inf))
        pattern = self.hook_pattern(scores.softmax(-1))
        v = self.hook_v(torch.einsum("bki,hid->bkhd", x, self.V))
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        logits: Tensor = z.sum(2)
        return logits


class MinimalTransformer(HookedRootModule):  # type: ignore[misc]
    """y_t = softmax(sum_h V_h X a_t^(h)) at the queries x_0..x_{T-1}; A uniform in [-u, u], V zero at the start."""

    def __init__(self, d: int, w: int, T: int, heads: int, init_scale: float, generator: torch.Generator) -> None:
        super().__init__()
        n = w + T - 1  # x_T is only predicted
        self.cfg = ToyConfig(n_layers=1, n_heads=heads, n_ctx=n, d_vocab=d, attention_dir="causal")
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": MinimalAttention(d, n, heads, init_scale, generator)})])
        self.T = T
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, w + T - 1] -> logits [batch, T, d]."""
        n = self.cfg.n_ctx
        attention: Any = self.blocks[0].attn
        token = one_hot(tokens, attention.V.shape[-1]).to(attention.A.dtype)
        position = torch.eye(n, dtype=token.dtype, device=token.device).expand(len(tokens), n, n)
        logits: Tensor = attention(torch.cat([token, position], dim=-1), self.T)
        return logits
