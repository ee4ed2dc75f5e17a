"""Eq. 2: one attention vector, one weight matrix, as a hooked model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from stagelens.models import ToyConfig
from stagelens_emergence.data import Draws, Moments


class PositionAttention(nn.Module):
    """y = W sum_t softmax(a)_t x_t: scores of the places alone, which do not see the tokens."""

    def __init__(self, T: int, W: Tensor) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(T, dtype=W.dtype))
        self.W = nn.Parameter(W)
        self.hook_attn_scores = HookPoint()  # [batch, 1, 1, key]
        self.hook_pattern = HookPoint()  # [batch, 1, 1, key]
        self.hook_v = HookPoint()  # [batch, key, 1, d]
        self.hook_z = HookPoint()  # [batch, 1, 1, d]

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, T, d] -> y [batch, d]."""
        scores = self.hook_attn_scores(self.a.expand(len(x), 1, 1, -1))
        pattern = self.hook_pattern(scores.softmax(-1))
        v = self.hook_v(x[:, :, None])
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        y: Tensor = z[:, 0, 0] @ self.W.T
        return y


class ToyTransformer(HookedRootModule):  # type: ignore[misc]
    """The toy model, with a = 0 (Assumption 2) and W as given. It knows W* and B, so that it can be measured."""

    W_star: Tensor

    def __init__(self, T: int, B: int, W: Tensor, W_star: Tensor) -> None:
        super().__init__()
        self.cfg = ToyConfig(n_layers=1, n_heads=1, n_ctx=T)
        self.B = B
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": PositionAttention(T, W)})])
        self.register_buffer("W_star", W_star, persistent=False)
        self.setup()

    @property
    def attention(self) -> Any:
        return self.blocks[0].attn

    @property
    def alpha(self) -> Tensor:
        """softmax(a) [T]."""
        alpha: Tensor = self.attention.a.softmax(-1)
        return alpha

    @property
    def W(self) -> Tensor:
        """[d, d]"""
        W: Tensor = self.attention.W
        return W

    def attention_parts(self) -> tuple[Tensor, Tensor]:
        """The attention to each irrelevant token [T - B], and to all relevant ones together."""
        alpha = self.alpha
        return alpha[: -self.B], alpha[-self.B :].sum()

    def along_target(self) -> Tensor:
        """<W*_:i, W_:i> [d], of each column."""
        return (self.W_star * self.W).sum(0)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, T, d] -> y [batch, d]."""
        y: Tensor = self.attention(x)
        return y


def expected_loss(model: ToyTransformer, moments: Moments) -> Tensor:
    """E |y - y*|^2 / 2, exactly (A.2); its gradients are Eqs. 7 and 8."""
    W, d = model.W, len(model.W)
    others, m = model.attention_parts()
    missed = m * W - model.W_star  # [d, d]
    return 0.5 * (others.square().sum() * W.square().sum() / d + (missed.square() @ moments.relevant).sum())


def drawn_loss(model: ToyTransformer, draws: Draws) -> Tensor:
    """The mean of |y - y*|^2 / 2 on n sequences; its value and gradient are distributed as those on whole sequences.

    Of the irrelevant tokens X [T - B, d] the value needs sum_t alpha_t x_t ~ |alpha| N(0, I/d), and the gradient by
    alpha the x_t . v with v = W^T (y - y*). Given the sum, X is free across alpha, and so these are what the
    sum says, plus |v| N(0, 1/d) projected off alpha. That part is added as a term whose value is zero.
    """
    others, m = model.attention_parts()
    size = others.norm()
    error = (m * draws.relevant + size * draws.context) @ model.W.T - draws.relevant @ model.W_star.T  # [n, d]
    along = (others / size).detach()
    across = draws.across - (draws.across @ along)[:, None] * along  # [n, T - B]
    v = (error @ model.W).detach().norm(dim=-1) / len(model.W) ** 0.5  # [n]
    loss: Tensor = 0.5 * error.square().sum(-1).mean() + ((across @ others) * v).mean()
    return loss
