"""The reparameterized two-layer transformer (Eqs. 5, 6) as a hooked module, for tokens of any dimension D.

The paper sums s up to L - 2 in Eq. 6 and up to L - 1 in C.2 and C.3. Only the latter lets head (2,1) see x_(L-2), and
Eqs. 7 and 10 have L - 2 terms. So s = 2..L-1 here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from stagelens.models import HookedRootModule, HookPoint, ToyConfig
from stagelens_rich.data.toy import additive_mask, visible_in_first, visible_in_second, visible_keys

LEARNED = 20.0  # p(1,1) of a learned first layer: its attention to the previous token is 1 - 2e-9


class PreviousAttention(nn.Module):
    """First layer: one head whose scores depend only on the distance of a token (Eq. 5)."""

    behind: Tensor
    mask: Tensor

    def __init__(self, L: int, p: float) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))
        position = torch.arange(L)
        behind = (position[1:, None] - 1 - position[None, :]).float()  # [query, key], queries 2..L
        self.register_buffer("behind", behind.clamp(min=0), persistent=False)
        self.register_buffer("mask", additive_mask(visible_in_first(L - 1, L)), persistent=False)
        self.hook_attn_scores = HookPoint()  # [1, 1, query 2..L, key]
        self.hook_pattern = HookPoint()  # [1, 1, query, key]; all keys are masked for the first query
        self.hook_z = HookPoint()  # [batch, query, 1, D]

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [batch, L, D] to y [batch, L, D]; y_1 = 0."""
        scores = self.hook_attn_scores((self.mask - self.p * self.behind)[None, None])
        pattern = self.hook_pattern(pad(scores.softmax(-1), (0, 0, 1, 0)))
        z: Tensor = self.hook_z(torch.tensordot(x, pattern[0, 0], ([1], [1])).transpose(1, 2)[:, :, None])
        return z[:, :, 0]


def projected(x: Tensor, W: Tensor) -> Tensor:
    """Returns W x [..., D] of tokens x [..., D]; a vector W [D] is the diagonal of a matrix."""
    return x * W if W.dim() == 1 else x @ W.T


class MixedAttention(nn.Module):
    """Second layer at the last query: head (2,1) scores by position, head (2,2) by dot product (Eq. 6)."""

    behind: Tensor
    mask: Tensor

    def __init__(self, L: int, W_Q: Tensor, W_K: Tensor, sigma: float) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(sigma))
        self.w_V1, self.w_V2 = (nn.Parameter(torch.tensor(sigma)) for _ in range(2))
        self.W_Q, self.W_K = nn.Parameter(W_Q), nn.Parameter(W_K)  # [D, D], or the diagonals [D]
        behind = torch.arange(L - 2, -2, -1).float()  # L - 1 - s, [key]
        self.register_buffer("behind", behind, persistent=False)
        self.register_buffer("mask", additive_mask(visible_in_second(1, L)[0]), persistent=False)
        self.hook_q = HookPoint()  # [batch, 1, 1, D], of head (2,2)
        self.hook_k = HookPoint()  # [batch, key, 1, D]
        self.hook_v = HookPoint()  # [batch, key, head, D]
        self.hook_attn_scores = HookPoint()  # [batch, head, 1, key]
        self.hook_pattern = HookPoint()  # [batch, head, 1, key]
        self.hook_z = HookPoint()  # [batch, 1, head, D]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Maps x and y [batch, L, D] to TF_-1 [batch, head, D]."""
        q = self.hook_q(projected(x[:, -1:], self.W_Q)[:, :, None])
        k = self.hook_k(projected(y, self.W_K)[:, :, None])
        by_token = (k * q)[:, :, 0].sum(-1)  # [batch, key]; faster than a batched product for small D
        by_position = (-self.p * self.behind).expand_as(by_token)
        scores = self.hook_attn_scores((torch.stack([by_position, by_token], dim=1) + self.mask)[:, :, None])
        pattern = self.hook_pattern(scores.softmax(-1))
        v = self.hook_v(torch.stack([y, x], dim=2))
        z = self.hook_z((pattern[:, :, 0].transpose(1, 2)[..., None] * v).sum(1)[:, None])
        out: Tensor = z[:, 0] * torch.stack([self.w_V1, self.w_V2])[:, None]
        return out


class MixedTransformer(HookedRootModule):  # type: ignore[misc]
    """TF_-1 (Eq. 6): maps tokens [batch, L, D] to the 4-gram's and the induction head's prediction [batch, 2, D]."""

    def __init__(self, L: int, W_Q: Tensor, W_K: Tensor, sigma: float, p_first: float) -> None:
        super().__init__()
        self.cfg = ToyConfig(n_layers=2, n_heads=2, n_ctx=L)
        layers = (PreviousAttention(L, p_first), MixedAttention(L, W_Q, W_K, sigma))
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": attention}) for attention in layers])
        self.setup()

    @property
    def first(self) -> Any:
        """The attention of the first layer."""
        return self.blocks[0].attn

    @property
    def second(self) -> Any:
        """The attention of the second layer."""
        return self.blocks[1].attn

    def visible_keys(self, layer: int | None, n_query: int, n_key: int) -> Tensor:
        return visible_keys(layer, n_query, n_key)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(x, self.first(x))
        return out
