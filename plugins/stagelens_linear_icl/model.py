"""Multi-head attention on the tokens (x_n, y_n) of Eq. 1, with rank-R keys and queries, as a hooked model.

`SeparateAttention` has the weights of Eq. 2, with the zero blocks left out; `FullAttention` has all blocks that reach
the prediction. Both say y_q from the last row of ATTN(X); of W^V only that row matters.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from stagelens.models import ToyConfig
from stagelens_linear_icl.data import Moments
from stagelens_linear_icl.descent import Weights

Kind = Literal["linear", "softmax"]


class Attention(nn.Module):
    """sum_i 1/N W^V_i X X^T W^K_i^T W^Q_i X in its last row, at the last token or, with `every`, at all but the first.

    A query shows its x alone: the y in its place is what is asked for.
    """

    def __init__(self, kind: Kind = "linear", every: bool = False) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.every = every
        self.hook_q = HookPoint()  # [batch, query, head, D+1]
        self.hook_k = HookPoint()  # [batch, key, head, D+1]
        self.hook_v = HookPoint()  # [batch, key, head, 1]
        self.hook_attn_scores = HookPoint()  # [batch, head, query, key]
        self.hook_pattern = HookPoint()  # [batch, head, query, key]
        self.hook_z = HookPoint()  # [batch, query, head, 1]

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        """The last row of W^V [head, D+1], W^K and W^Q [head, R, D+1]."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, N+1, D+1] -> predictions [batch, query]."""
        W_V, W_K, W_Q = self.matrices()
        frame = token_frame(W_K)  # [head, D+1, R]
        W_K, W_Q = frame @ W_K, frame @ W_Q  # [head, D+1, D+1], with the same scores
        n = tokens.shape[1]
        n_query = n - 1 if self.every else 1
        asked = torch.cat([tokens[:, -n_query:, :-1], torch.zeros_like(tokens[:, -n_query:, -1:])], dim=-1)  # (x, 0)

        q = self.hook_q(torch.einsum("nqd,hed->nqhe", asked, W_Q))
        k = self.hook_k(torch.einsum("nkd,hed->nkhe", tokens, W_K))
        v = self.hook_v(torch.einsum("nkd,hd->nkh", tokens, W_V)[..., None])
        scores = torch.einsum("nqhe,nkhe->nhqk", q, k)
        itself = torch.eye(n, dtype=torch.bool, device=tokens.device)[-n_query:]  # [query, key]
        if self.every:  # a query is its own last key too, and there as well without its y
            own = (q * torch.einsum("nqd,hed->nqhe", asked, W_K)).sum(-1).transpose(1, 2)  # [batch, head, query]
            scores = torch.where(itself, own[..., None], scores)
        pattern = self.hook_pattern(self._pattern(scores))
        z = torch.einsum("nhqk,nkhe->nqhe", pattern.masked_fill(itself, 0.0) if self.every else pattern, v)
        if self.every:
            weight = pattern.diagonal(1, dim1=-2, dim2=-1)  # [batch, head, query]: on itself
            z = z + (torch.einsum("nqd,hd->nqh", asked, W_V) * weight.transpose(1, 2))[..., None]
        prediction: Tensor = self.hook_z(z).sum((2, 3))
        return prediction

    def _pattern(self, scores: Tensor) -> Tensor:
        """scores [batch, head, query, key] -> weights: scores / N, unnormalized, or their softmax."""
        n_query, n = scores.shape[-2:]
        hidden = torch.ones(n_query, n, dtype=torch.bool, device=scores.device).triu(n - n_query + 1)
        if self.kind == "softmax":
            weights: Tensor = self.hook_attn_scores(scores.masked_fill(hidden, -torch.inf)).softmax(-1)
            return weights
        length = torch.arange(n - n_query, n, device=scores.device)[:, None]  # N, the context before each query
        linear: Tensor = self.hook_attn_scores(scores.masked_fill(hidden, 0.0)) / length
        return linear


def token_frame(W_K: Tensor) -> Tensor:
    """The isometry nearest to W_K^T, [head, D+1, R]: it lays the head's space of keys and queries into token space.

    A head's space has no basis of its own: turning keys and queries together changes no score. In this frame a key is
    (K^T K)^(1/2) x, so that its principal components can be compared with directions of the tokens. It is a constant
    to the gradient, which does not depend on it.
    """
    left, _, right = torch.linalg.svd(W_K.detach().transpose(-1, -2), full_matrices=False)
    isometry: Tensor = left @ right
    return isometry


class SeparateAttention(Attention):
    """The weights of Eq. 2: v [head], k and q [head, R, D]."""

    def __init__(self, weights: Weights, every: bool = False) -> None:
        super().__init__("linear", every)
        self.v, self.k, self.q = (nn.Parameter(torch.from_numpy(part.copy())) for part in weights)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        W_V = torch.cat([torch.zeros_like(self.k[:, 0]), self.v[:, None]], dim=-1)
        W_K, W_Q = (torch.cat([part, torch.zeros_like(part[..., :1])], dim=-1) for part in (self.k, self.q))
        return W_V, W_K, W_Q

    def core(self) -> tuple[Tensor, Tensor, Tensor]:
        """v, k, q of Eq. 2."""
        return self.v, self.k, self.q


class FullAttention(Attention):
    """All blocks: W_V [head, D+1] (the row that matters), W_K and W_Q [head, R, D+1].

    The blocks that Eq. 2 has not start at zero. With `frozen` they stay there, otherwise they are trained.
    """

    head_parameters = ("W_V", "W_K", "W_Q")
    in_value: Tensor
    in_key: Tensor

    def __init__(self, weights: Weights, kind: Kind = "linear", every: bool = False, frozen: bool = False) -> None:
        super().__init__(kind, every)
        start = SeparateAttention(weights).matrices()
        self.W_V, self.W_K, self.W_Q = (nn.Parameter(part.detach().clone()) for part in start)
        D = weights.k.shape[-1]
        last = torch.arange(D + 1) == D
        self.register_buffer("in_value", last.double() if frozen else torch.ones(D + 1).double(), persistent=False)
        self.register_buffer("in_key", (~last).double() if frozen else torch.ones(D + 1).double(), persistent=False)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.W_V * self.in_value, self.W_K * self.in_key, self.W_Q

    def core(self) -> tuple[Tensor, Tensor, Tensor]:
        """v, k, q of Eq. 2, which these weights hold among others."""
        return self.W_V[:, -1], self.W_K[..., :-1], self.W_Q[..., :-1]

    def tensor(self) -> Tensor:
        """T = sum_i W^V_i (x) W^K_i (x) W^Q_i, [D+1, D+1, D]: all of it that reaches the prediction."""
        W_V, W_K, W_Q = self.matrices()
        return torch.einsum("ha,hrb,hrc->abc", W_V, W_K, W_Q[..., :-1])

    def zero_blocks(self) -> Tensor:
        """The norm of the blocks that start at zero (E.1): v_i [D] and k_ir, the keys' part that sees y."""
        blocks = torch.cat([self.W_V[:, :-1].flatten(), self.W_K[..., -1].flatten()])
        norm: Tensor = torch.linalg.vector_norm(blocks.detach())
        return norm


class InContextRegressor(HookedRootModule):  # type: ignore[misc]
    """One attention layer. `fixed_points` [D+1, D, D] are M_0..M_D, where theory says that M rests (Eq. 4)."""

    def __init__(self, attention: Attention, N: int, fixed_points: Tensor) -> None:
        super().__init__()
        core: Any = attention.core()  # type: ignore[operator]
        self.cfg = ToyConfig(n_layers=1, n_heads=len(core[0]), n_ctx=N + 1)
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": attention})])
        self.register_buffer("fixed_points", fixed_points, persistent=False)
        self.setup()

    @property
    def attention(self) -> Any:
        return self.blocks[0].attn

    def product(self) -> Tensor:
        """M = sum_i sum_r v_i k_ir q_ir^T, [D, D]."""
        v, k, q = self.attention.core()
        product: Tensor = (v[:, None, None] * k).flatten(0, 1).T @ q.flatten(0, 1)
        return product

    def weights(self) -> Weights:
        """v, k, q as they are now."""
        return Weights(*(part.detach().cpu().double().numpy().copy() for part in self.attention.core()))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, N+1, D+1] -> predictions [batch, query]."""
        prediction: Tensor = self.attention(tokens)
        return prediction


def exact_loss(M: Tensor, moments: Moments) -> Tensor:
    """The loss of M [D, D] as the quadratic form of the moments, []; of T [D+1, D+1, D] with those of all blocks."""
    flat = M.flatten()
    return moments.power + (flat * torch.sub(moments.second @ flat, moments.cross.flatten(), alpha=2)).sum()
