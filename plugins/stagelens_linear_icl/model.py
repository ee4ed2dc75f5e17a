"""Multi-head attention on the tokens (x_n, y_n) of Eq. 1, with rank-R keys and queries, as a hooked model.

`SeparateAttention` has the weights of Eq. 2, without the zero blocks. `AllBlocksAttention` has all blocks that affect
the prediction. Both predict y_q, which is the last row of ATTN(X), so only the last row of W^V is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from stagelens.base import generator
from stagelens.experiments import Floats
from stagelens.models import HookedRootModule, HookPoint, ToyConfig

Kind = Literal["linear", "softmax"]


class HeadWeights(NamedTuple):
    """v [..., H], k [..., H, R, D] and q [..., H, R, D] of Eq. 2. The leading dims are seeds or times."""

    v: Floats
    k: Floats
    q: Floats

    def at(self, index: int) -> HeadWeights:
        """Returns one element of the first dim."""
        return HeadWeights(*(part[index] for part in self))


def initial_weights(H: int, R: int, D: int, w_init: float, seed: int, value_init: float = 1.0) -> HeadWeights:
    """Draws Eq. 20: v ~ N(0, w_init^2 / H), entries of k and q ~ N(0, w_init^2 / HRD). `value_init` multiplies v."""
    stream = generator(seed, "init")
    v, k, q = (torch.randn(*shape, generator=stream, dtype=torch.float64) for shape in ((H,), (H, R, D), (H, R, D)))
    wide, narrow = value_init * w_init / np.sqrt(H), w_init / np.sqrt(H * R * D)
    return HeadWeights(wide * v.numpy(), narrow * k.numpy(), narrow * q.numpy())


def stack(weights: Iterable[HeadWeights]) -> HeadWeights:
    """Stacks the weights of several seeds along a new first dim."""
    return HeadWeights(*(np.stack(parts) for parts in zip(*weights, strict=True)))


def product(weights: HeadWeights) -> Floats:
    """Returns M = sum_i sum_r v_i k_ir q_ir^T, [..., D, D]."""
    v, k, q = weights
    *lead, H, R, D = k.shape
    scaled = (v[..., None, None] * k).reshape(*lead, H * R, D)
    M: Floats = np.swapaxes(scaled, -1, -2) @ q.reshape(*lead, H * R, D)
    return M


class RegressionAttention(nn.Module):
    """The last row of sum_i 1/N W^V_i X X^T W^K_i^T W^Q_i X, at the last token or, with `every`, at all but the first.

    A query shows its x alone, because its y is what the model predicts.
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
        """Returns the last row of W^V [head, D+1], and W^K and W^Q [head, R, D+1]."""
        raise NotImplementedError

    def core(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns v [head], k and q [head, R, D] of Eq. 2."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, N+1, D+1] -> predictions [batch, query]."""
        W_V, W_K, W_Q = self.matrices()
        frame = token_frame(W_K)  # [head, D+1, R]
        W_K, W_Q = frame @ W_K, frame @ W_Q  # [head, D+1, D+1], with the same scores
        n = tokens.shape[1]
        n_query = n - 1 if self.every else 1
        asked = pad(tokens[:, -n_query:, :-1], (0, 1))  # (x, 0), [batch, query, D+1]

        q = self.hook_q(torch.einsum("nqd,hed->nqhe", asked, W_Q))
        k = self.hook_k(torch.einsum("nkd,hed->nkhe", tokens, W_K))
        v = self.hook_v(torch.einsum("nkd,hd->nkh", tokens, W_V)[..., None])
        scores = torch.einsum("nqhe,nkhe->nhqk", q, k)
        if not self.every:
            z = torch.einsum("nhqk,nkhe->nqhe", self._pattern(scores), v)
        else:  # a token shows its y to later queries, but not to itself: its own key and value are those of (x, 0)
            own_k = torch.einsum("nqd,hed->nqhe", asked, W_K)
            own_v = torch.einsum("nqd,hd->nqh", asked, W_V)[..., None]
            itself = torch.eye(n, dtype=torch.bool, device=tokens.device)[-n_query:]  # [query, key]
            own_scores = torch.einsum("nqhe,nqhe->nhq", q, own_k)[..., None]
            pattern = self._pattern(torch.where(itself, own_scores, scores))
            own_weight = pattern.diagonal(n - n_query, dim1=-2, dim2=-1)  # [batch, head, query]
            z = torch.einsum("nhqk,nkhe->nqhe", pattern.masked_fill(itself, 0.0), v)
            z = z + torch.einsum("nhq,nqhe->nqhe", own_weight, own_v)
        prediction: Tensor = self.hook_z(z).sum((2, 3))
        return prediction

    def _pattern(self, scores: Tensor) -> Tensor:
        """Returns the weights of the keys, [batch, head, query, key]: scores / N, unnormalized, or their softmax."""
        n_query, n = scores.shape[-2:]
        masked = torch.ones(n_query, n, dtype=torch.bool, device=scores.device).triu(n - n_query + 1)
        if self.kind == "softmax":
            weights: Tensor = self.hook_attn_scores(scores.masked_fill(masked, -torch.inf)).softmax(-1)
        else:
            length = torch.arange(n - n_query, n, device=scores.device)[:, None]  # N, the context before each query
            weights = self.hook_attn_scores(scores.masked_fill(masked, 0.0)) / length
        pattern: Tensor = self.hook_pattern(weights)
        return pattern


def token_frame(W_K: Tensor) -> Tensor:
    """Returns the isometry nearest to W_K^T, [head, D+1, R], which maps a head's keys and queries into token space.

    A head's own space has no preferred basis: rotating its keys and queries together changes no score. In this frame a
    key is (K^T K)^(1/2) x, so its principal components can be compared with directions of the tokens. The frame is
    detached, because the gradient does not depend on it.
    """
    left, _, right = torch.linalg.svd(W_K.detach().transpose(-1, -2), full_matrices=False)
    isometry: Tensor = left @ right
    return isometry


class SeparateAttention(RegressionAttention):
    """The weights of Eq. 2: v [head], k and q [head, R, D]."""

    def __init__(self, weights: HeadWeights, every: bool = False) -> None:
        super().__init__("linear", every)
        self.v, self.k, self.q = (nn.Parameter(torch.from_numpy(part.copy())) for part in weights)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        W_V = torch.cat([torch.zeros_like(self.k[:, 0]), self.v[:, None]], dim=-1)
        return W_V, pad(self.k, (0, 1)), pad(self.q, (0, 1))

    def core(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.v, self.k, self.q


class AllBlocksAttention(RegressionAttention):
    """All blocks: W_V [head, D+1] (the last row of W^V), W_K and W_Q [head, R, D+1].

    The blocks that Eq. 2 leaves out start at zero. With `frozen` they stay there, otherwise they are trained.
    """

    head_parameters = ("W_V", "W_K", "W_Q")
    in_value: Tensor
    in_key: Tensor

    def __init__(self, weights: HeadWeights, kind: Kind = "linear", every: bool = False, frozen: bool = False) -> None:
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
        return self.W_V[:, -1], self.W_K[..., :-1], self.W_Q[..., :-1]

    def tensor(self) -> Tensor:
        """Returns T = sum_i W^V_i (x) W^K_i (x) W^Q_i without the entries that cannot matter, [D+1, D+1, D]."""
        W_V, W_K, W_Q = self.matrices()
        return torch.einsum("ha,hrb,hrc->abc", W_V, W_K, W_Q[..., :-1])

    def zero_blocks(self) -> Tensor:
        """Returns the norm of the blocks that start at zero (E.1): v_i [D] and the part of k_ir that reads y."""
        blocks = torch.cat([self.W_V[:, :-1].flatten(), self.W_K[..., -1].flatten()])
        norm: Tensor = torch.linalg.vector_norm(blocks.detach())
        return norm


class InContextRegressor(HookedRootModule):  # type: ignore[misc]
    """One attention layer. `fixed_points` [D+1, D, D] are M_0..M_D, the values of M on the plateaus (Eq. 4)."""

    def __init__(self, attention: RegressionAttention, N: int, fixed_points: Tensor) -> None:
        super().__init__()
        self.cfg = ToyConfig(n_layers=1, n_heads=len(attention.core()[0]), n_ctx=N + 1)
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": attention})])
        self.register_buffer("fixed_points", fixed_points, persistent=False)
        self.setup()

    @property
    def attention(self) -> Any:
        return self.blocks[0].attn

    def product(self) -> Tensor:
        """Returns M = sum_i sum_r v_i k_ir q_ir^T, [D, D]."""
        v, k, q = self.attention.core()
        product: Tensor = (v[:, None, None] * k).flatten(0, 1).T @ q.flatten(0, 1)
        return product

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, N+1, D+1] -> predictions [batch, query]."""
        prediction: Tensor = self.attention(tokens)
        return prediction
