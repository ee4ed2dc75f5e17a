"""The minimal architecture (C.1): one attention layer on one-hot tokens and positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from stagelens.models import HookedRootModule, HookPoint, ToyConfig
from stagelens.recording import causal_keys


class MinimalAttention(nn.Module):
    """Scores x_k^T A_h x_q and values V_h x_k, where x is the one-hot token joined with the one-hot position.

    A product with a one-hot vector is a row of the matrix, so scores and values are looked up, not multiplied. Every
    head goes through the same operations in the same order, so identical heads get bit-identical gradients.
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

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        """tokens [batch, key] -> logits [batch, query, d] at the last queries; `masked` is bool [query, key]."""
        scores = self.hook_attn_scores(self.scores(tokens, masked))
        pattern = self.hook_pattern(scores.softmax(-1))
        v = self.hook_v(self.values(tokens).transpose(1, 2)).transpose(1, 2)  # [batch, head, key, outcome]
        d = v.shape[-1]
        # Padding aligns the matrices of all heads alike; otherwise some processors round them differently.
        v = pad(v, (0, -d % 4))
        z: Tensor = self.hook_z((pattern @ v)[..., :d].transpose(1, 2))
        return z.sum(2)

    def scores(self, tokens: Tensor, masked: Tensor) -> Tensor:
        """Returns x_k^T A_h x_q, [batch, head, query, key], or -inf if masked.

        It is the sum of four entries of A_h: the rows are the key's token and position, the columns the query's.
        """
        d, n_query = self.V.shape[-1], len(masked)
        by_query = self.A.mT  # [head, query side, key side]
        token, position = by_query[:, None, :d], by_query[:, -n_query:, None]
        by_token = token[..., :d] + position[..., :d]  # [head, query, its token, the key's token]
        by_position = token[..., d:] + position[..., d:].masked_fill(masked[:, None], -torch.inf)  # [.., key]
        queries = tokens[:, -n_query:]
        return pair_lookup(by_token, queries, tokens) + row_lookup(by_position, queries)

    def values(self, tokens: Tensor) -> Tensor:
        """Returns V_h x_k, [batch, head, key, outcome]."""
        d = self.V.shape[-1]
        return row_lookup(self.V[:, None, :d] + self.V[:, d:, None], tokens)


def row_lookup(table: Tensor, tokens: Tensor) -> Tensor:
    """Returns table[h, p, tokens[b, p]], [batch, head, position, column].

    `table` is [head, position, token, column] and `tokens` [batch, position]. With its gradient, `index_select` on the
    flattened table is about three times as fast as indexing with three tensors (one core, the quick preset's size).
    """
    rows = _row_numbers(table, tokens)  # [batch, head, position]
    return table.flatten(0, 2).index_select(0, rows.flatten()).view(*rows.shape, table.shape[-1])


def pair_lookup(table: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Returns table[h, q, queries[b, q], keys[b, k]], [batch, head, query, key].

    `table` is [head, query, query token, key token], `queries` [batch, query], `keys` [batch, key].
    """
    rows = _row_numbers(table, queries)  # [batch, head, query]
    entries = table.shape[-1] * rows[..., None] + keys[:, None, None]  # [batch, head, query, key]
    return table.flatten().index_select(0, entries.flatten()).view(entries.shape)


def _row_numbers(table: Tensor, tokens: Tensor) -> Tensor:
    """Returns the number of row (h, p, tokens[b, p]) in the flattened table, [batch, head, position]."""
    heads, positions, d = table.shape[:3]
    first = d * torch.arange(heads * positions, device=tokens.device).view(heads, positions)
    return first + tokens[:, None]


class MinimalTransformer(HookedRootModule):  # type: ignore[misc]
    """y_t = softmax(sum_h V_h X a_t^(h)) at the queries x_0..x_{T-1}; A starts uniform in [-u, u], V at zero.

    With `context` = c a query attends only to its own token and the c - 1 tokens before.
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
        """Returns bool [query, key] for the probes: the keys up to each query's own, or the last `context` of them."""
        return causal_keys(n_query, n_key, self.context or None)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, w + T - 1] -> logits [batch, T, d]."""
        attention: Any = self.blocks[0].attn
        logits: Tensor = attention(tokens, self.hidden)
        return logits


def restrict_context(model: Any, context: int) -> Any:
    """Makes the queries of a HookedTransformer attend only to their own token and the `context` - 1 before.

    Returns the model.
    """
    model.cfg.use_local_attn, model.cfg.attn_types = True, ["local"] * model.cfg.n_layers
    model.cfg.window_size = context
    for block in model.blocks:
        block.attn.attn_type = "local"
    return model
