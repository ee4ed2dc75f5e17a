"""The parts of a transformer that TransformerLens lacks, each a subclass of the part it replaces.

They are subclasses and not hooks, because a hook's closure refers to the parameters of the model it was made for. A
deep copy would compute with the original's slopes. Hooks are left to the user.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import components as lens


def sinusoidal_table(n_ctx: int, d_model: int) -> Tensor:
    """Vaswani et al. 2017, Sec. 3.5: float64 [n_ctx, d_model], sines in even columns, cosines in odd ones."""
    position = torch.arange(n_ctx, dtype=torch.float64)  # [n_ctx]
    wavelength = 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)  # [d_model / 2]
    angle = position[:, None] / wavelength[None, :]  # [n_ctx, d_model / 2]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # [n_ctx, d_model]


def initial_slopes(n_heads: int, slope: float | None) -> Tensor:
    """Returns float64 [head]: `slope` for all, or 2^(-8/n), 2^(-16/n), ..., 2^-8 (Press et al. 2022, Sec. 3)."""
    if slope is not None:
        return torch.full((n_heads,), slope, dtype=torch.float64)
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, dtype=torch.float64) / n_heads)


class SinusoidalPositions(lens.PosEmbed):  # type: ignore[misc]
    """Positions from a fixed table: `W_pos` is a buffer, so it is saved and moved but never trained."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        del self.W_pos
        self.register_buffer("W_pos", sinusoidal_table(cfg.n_ctx, cfg.d_model).to(cfg.dtype))


class LinearEmbed(lens.Embed):  # type: ignore[misc]
    """Continuous inputs through `W_E` [d_in, d_model]; with one-hot inputs this is the token embedding."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps [batch, pos, d_in] to [batch, pos, d_model]."""
        embedded: Tensor = inputs @ self.W_E
        return embedded


class Attention(lens.Attention):  # type: ignore[misc]
    """Attention with dropout and, if `slopes` [head] are given, learnable ALiBi slopes that start at them.

    Without `own_token` a query does not see its own key; the first query, which has no other, does.
    In training mode `hook_pattern` shows the softmax before dropout, `hook_z` what the dropped pattern reads.
    """

    def __init__(self, cfg: Any, layer: int, *, dropout: float, slopes: Tensor | None, own_token: bool = True) -> None:
        super().__init__(cfg, "global", layer)
        self.own_token = own_token
        self.pattern_dropout = nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)
        self.alibi_slope = None if slopes is None else nn.Parameter(slopes.to(cfg.dtype, copy=True))

    def calculate_attention_scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Maps q [batch, query, head, d_head] and k [batch, key, head, d_head] to scores [batch, head, query, key]."""
        scores: Tensor = super().calculate_attention_scores(q, k)
        if self.alibi_slope is None and self.own_token:
            return scores
        n_query, n_key = scores.shape[-2:]
        key = torch.arange(n_key, device=scores.device)
        query = torch.arange(n_key - n_query, n_key, device=scores.device)  # with cached keys, the last ones
        distance = (query[:, None] - key[None, :]).abs()  # [query, key]; the causal mask comes after
        if not self.own_token:
            scores = scores.masked_fill((distance == 0) & (key > 0), -torch.inf)
        return scores if self.alibi_slope is None else scores - self.alibi_slope[:, None, None] * distance

    def calculate_z_scores(self, v: Tensor, pattern: Tensor) -> Tensor:
        """v [batch, key, head, d_head], pattern [batch, head, query, key] -> [batch, query, head, d_head]."""
        z: Tensor = super().calculate_z_scores(v, self.pattern_dropout(pattern))
        return z

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns [batch, pos, d_model] after dropout, which comes before `hook_attn_out`."""
        out: Tensor = self.out_dropout(super().forward(*args, **kwargs))
        return out


class MLP(lens.MLP):  # type: ignore[misc]
    """The MLP with dropout on its output, before `hook_mlp_out`."""

    def __init__(self, cfg: Any, *, dropout: float) -> None:
        super().__init__(cfg)
        self.out_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, pos, d_model] to [batch, pos, d_model]."""
        out: Tensor = self.out_dropout(super().forward(x))
        return out
