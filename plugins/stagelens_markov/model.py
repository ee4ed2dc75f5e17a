"""The minimal architecture (C.1), one attention layer on one-hot tokens and positions; and the full one (Table 3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from stagelens.models import ToyConfig
from stagelens.recording import causal_keys


class MinimalAttention(nn.Module):
    """Scores x_k^T A_h x_q and values V_h x_k, where x joins the one-hot token and the one-hot position.

    A product with a one-hot vector is a row of the matrix, so nothing is multiplied: scores are looked up in tables of
    what each query adds for each key's token (`by_token`) and for each key's position (`by_position`). Every head goes
    through the same operations in the same order, so that heads that are alike get the same gradient to the last bit.
    """

    def __init__(self, d: int, n: int, heads: int, init_scale: float, generator: torch.Generator) -> None:
        super().__init__()
        uniform = torch.rand(heads, d + n, d + n, generator=generator) * 2 - 1
        self.A = nn.Parameter(init_scale * uniform)  # [head, key side, query side]
        self.V = nn.Parameter(torch.zeros(heads, d + n, d))  # [head, input, outcome]
        self.hook_v = HookPoint()  # [batch, key, head, outcome]
        self.hook_attn_scores = HookPoint()  # [batch, head, query, key]
        self.hook_pattern = HookPoint()  # [batch, head, query, key]
        self.hook_z = HookPoint()  # [batch, query, head, outcome]

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """tokens [batch, key] -> logits [batch, query, d] at the last queries; hidden bool [query, key]."""
        scores = self.hook_attn_scores(self.scores(tokens, hidden))
        pattern = self.hook_pattern(scores.softmax(-1))
        v = self.hook_v(self.values(tokens).transpose(1, 2)).transpose(1, 2)  # [batch, head, key, outcome]
        d = v.shape[-1]
        # Unpadded, a head's matrices would be aligned unlike another's, and some processors round them unlike.
        v = pad(v, (0, -d % 4))
        z: Tensor = self.hook_z((pattern @ v)[..., :d].transpose(1, 2))
        return z.sum(2)

    def scores(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """x_k^T A_h x_q, [batch, head, query, key]; -inf where hidden."""
        heads, d = self.V.shape[0], self.V.shape[-1]
        (b, n), q = tokens.shape, len(hidden)
        by_query = self.A.mT  # [head, query side, key side]
        token, position = by_query[:, None, :d], by_query[:, -q:, None]
        by_token = token[..., :d] + position[..., :d]  # [head, query, its token, key's token]
        masked = position[..., d:].masked_fill(hidden[:, None], -torch.inf)
        by_position = token[..., d:] + masked  # [head, query, its token, key]
        place = torch.arange(heads * q, device=tokens.device).view(heads, q)
        row = d * place + tokens[:, None, -q:]  # [batch, head, query]
        pair = d * row[..., None] + tokens[:, None, None]  # [batch, head, query, key]
        scores = by_token.flatten().index_select(0, pair.flatten()).view(b, heads, q, n)
        return scores + by_position.flatten(0, 2).index_select(0, row.flatten()).view(b, heads, q, n)

    def values(self, tokens: Tensor) -> Tensor:
        """V_h x_k, [batch, head, key, outcome]."""
        heads, d = self.V.shape[0], self.V.shape[-1]
        b, n = tokens.shape
        table = self.V[:, None, :d] + self.V[:, d:, None]  # [head, key, its token, outcome]
        row = tokens[:, None] + d * torch.arange(heads * n, device=tokens.device).view(heads, n)  # [batch, head, key]
        return table.flatten(0, 2).index_select(0, row.flatten()).view(b, heads, n, d)


class MinimalTransformer(HookedRootModule):  # type: ignore[misc]
    """y_t = softmax(sum_h V_h X a_t^(h)) at the queries x_0..x_{T-1}; A uniform in [-u, u], V zero at the start.

    With `context` = c a query sees only its own token and the c - 1 before.
    """

    def __init__(
        self, d: int, w: int, T: int, heads: int, init_scale: float, generator: torch.Generator, context: int = 0
    ) -> None:
        super().__init__()
        n = w + T - 1  # x_T is only predicted
        self.cfg = ToyConfig(n_layers=1, n_heads=heads, n_ctx=n, d_vocab=d, attention_dir="causal")
        self.context = context
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": MinimalAttention(d, n, heads, init_scale, generator)})])
        self.register_buffer("hidden", ~self.visible_keys(0, T, n), persistent=False)
        self.setup()

    def visible_keys(self, layer: int | None, n_query: int, n_key: int) -> Tensor:  # noqa: ARG002
        """bool [query, key]: the keys up to each query's own, or the last `context` of them, for the probes."""
        return causal_keys(n_query, n_key, self.context or None)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, w + T - 1] -> logits [batch, T, d]."""
        attention: Any = self.blocks[0].attn
        logits: Tensor = attention(tokens, self.hidden)
        return logits


def see_only(model: Any, context: int) -> Any:
    """`model`, a HookedTransformer, with queries that see only their own token and the `context` - 1 before."""
    model.cfg.use_local_attn, model.cfg.attn_types = True, ["local"] * model.cfg.n_layers
    model.cfg.window_size = context
    for block in model.blocks:
        block.attn.attn_type = "local"
    return model
