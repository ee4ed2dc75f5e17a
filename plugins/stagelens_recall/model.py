"""The simplified model (A.2) and the original one (2.2), as hooked modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from stagelens.models import HookedRootModule, HookPoint, ToyConfig
from stagelens_recall.data import all_permutations, context_length


def centred_identity(size: int, like: Tensor) -> Tensor:
    """Returns I - 1 1^T / k, [k, k]: the block that compares two tokens (A.2, with gamma = 1/k)."""
    return torch.eye(size, dtype=like.dtype, device=like.device) - 1 / size


def _parts(model: Any) -> tuple[Any, Any]:
    """Returns the attention modules of the first and of the second layer."""
    first, second = (block.attn for block in model.blocks)
    return first, second


class WindowAttention(nn.Module):
    """First layer under A0: head h attends to the k tokens before a response, with scores w^h of their positions."""

    head_parameters = ("w",)

    def __init__(self, order: int, heads: int, init_scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.w = nn.Parameter(init_scale * torch.randn(heads, order, generator=generator))  # [head, i], i from the end
        self.hook_attn_scores = HookPoint()  # [1, head, 1, key]
        self.hook_pattern = HookPoint()  # [1, head, 1, key]; keys in reading order: token k, ..., token 1 from the end
        self.hook_z = HookPoint()  # [1, permutation, head, token]

    def forward(self, x: Tensor) -> Tensor:
        """Maps one-hot permutations x [permutation, key, token] to R [1, permutation, head, token] (Eq. 9a)."""
        scores = self.hook_attn_scores(self.w.flip(-1)[None, :, None, :])
        pattern = self.hook_pattern(scores.softmax(-1))
        r: Tensor = self.hook_z(torch.einsum("bhqk,pkd->bphd", pattern, x))
        return r


class MatchAttention(nn.Module):
    """Second layer under A1-A3: compares the query's tokens with each head's output, weighted by beta^2."""

    def __init__(self, betas: tuple[float, ...]) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(betas))  # [head]
        self.hook_q = HookPoint()  # [batch, 1, 1, head * token]
        self.hook_k = HookPoint()  # [1, permutation, 1, head * token]
        self.hook_attn_scores = HookPoint()  # [batch, 1, 1, permutation]
        self.hook_pattern = HookPoint()  # [batch, 1, 1, permutation]

    def forward(self, query: Tensor, r: Tensor) -> Tensor:
        """Maps one-hot queries [batch, head, token] and R to s [batch, permutation] (Eqs. 9b, 9c)."""
        compared = r @ centred_identity(r.shape[-1], r)
        q = self.hook_q((self.beta[:, None] * query).flatten(1)[:, None, None, :])
        k = self.hook_k((self.beta[:, None] * compared).flatten(2)[:, :, None, :])
        scores = self.hook_attn_scores(torch.einsum("bqhd,bkhd->bhqk", q, k.expand(len(q), -1, -1, -1)))
        pattern: Tensor = self.hook_pattern(scores.softmax(-1))
        return pattern[:, 0, 0]


class SimplifiedTransformer(HookedRootModule):  # type: ignore[misc]
    """The model of A0-A3: maps queries to attention over permutations.

    The context holds every permutation, and the scores do not depend on the responses. So the context is a constant
    of the model, and only the loss needs the map f. Head h is compared with token h from the query's end.
    """

    def __init__(
        self, order: int, betas: tuple[float, ...], init_scale: float = 0.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        heads = len(betas)
        self.cfg = ToyConfig(n_layers=2, n_heads=heads, n_ctx=order, d_vocab=order, attention_dir="bidirectional")
        first = WindowAttention(order, heads, init_scale, generator or torch.Generator().manual_seed(0))
        layers = (first, MatchAttention(betas))
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": attention}) for attention in layers])
        x = one_hot(all_permutations(order), order).to(first.w.dtype)
        self.register_buffer("context", x, persistent=False)  # [k!, k, token]
        self.setup()

    @property
    def w(self) -> Tensor:
        """The scores [head, position]; positions are counted from the end."""
        w: Tensor = _parts(self)[0].w
        return w

    @property
    def beta(self) -> Tensor:
        """The weights in the second layer, [head]."""
        beta: Tensor = _parts(self)[1].beta
        return beta

    def forward(self, queries: Tensor) -> Tensor:
        """Maps queries [batch, k] to log s [batch, k!]: log-attention to each permutation's response."""
        heads, order = self.w.shape
        first, second = _parts(self)
        asked = one_hot(queries.flip(-1)[:, :heads], order).to(self.w.dtype)  # [batch, head, token], h from the end
        s: Tensor = second(asked, first(self.context))  # [batch, k!]
        return s.clamp_min(torch.finfo(s.dtype).tiny).log()


class RelativeAttention(nn.Module):
    """First layer (Eq. 1): scores w^i_(query - key) under a causal mask; they are the same for every sequence."""

    head_parameters = ("w",)

    def __init__(self, length: int, heads: int, init_scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.w = nn.Parameter(init_scale * torch.randn(heads, length, generator=generator))  # [head, query - key]
        self.hook_attn_scores = HookPoint()  # [1, head, query, key]
        self.hook_pattern = HookPoint()  # [1, head, query, key]
        self.hook_z = HookPoint()  # [batch, query, head, token]

    def forward(self, x: Tensor) -> Tensor:
        """Maps X [batch, position, token] to R^1..R^k [batch, position, head, token]."""
        position = torch.arange(x.shape[1], device=x.device)
        offset = position[:, None] - position[None, :]  # [query, key]
        scores = self.w[:, offset.clamp(min=0)].masked_fill(offset < 0, -torch.inf)
        pattern = self.hook_pattern(self.hook_attn_scores(scores[None]).softmax(-1))
        r: Tensor = self.hook_z(torch.einsum("hqk,bkd->bqhd", pattern[0], x))
        return r


class ResponseAttention(nn.Module):
    """Second layer: one head with scores R Q^T K R^T, evaluated at the last query."""

    def __init__(self, width: int, init_scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.Q = nn.Parameter(init_scale * torch.randn(width, width, generator=generator))
        self.K = nn.Parameter(init_scale * torch.randn(width, width, generator=generator))
        self.hook_q = HookPoint()  # [batch, 1, 1, width]
        self.hook_k = HookPoint()  # [batch, key, 1, width]
        self.hook_attn_scores = HookPoint()  # [batch, 1, 1, key]
        self.hook_pattern = HookPoint()  # [batch, 1, 1, key]

    def forward(self, r: Tensor) -> Tensor:
        """Maps R [batch, position, width] to s [batch, position], the attention of the last position."""
        q = self.hook_q((r[:, -1:] @ self.Q.T)[:, :, None])
        k = self.hook_k((r @ self.K.T)[:, :, None])
        scores = self.hook_attn_scores(torch.einsum("bqhd,bkhd->bhqk", q, k))
        pattern: Tensor = self.hook_pattern(scores.softmax(-1))
        return pattern[:, 0, 0]


class OriginalTransformer(HookedRootModule):  # type: ignore[misc]
    """Section 2.2: a disentangled two-layer attention-only model; `scales` are the initial scales of w and of Q, K."""

    def __init__(
        self, order: int, responses: int, heads: int, scales: tuple[float, float], generator: torch.Generator
    ) -> None:
        super().__init__()
        length, tokens = context_length(order), order + responses
        self.cfg = ToyConfig(n_layers=2, n_heads=heads, n_ctx=length, d_vocab=tokens)
        self.order, self.tokens = order, tokens
        first = RelativeAttention(length, heads, scales[0], generator)
        second = ResponseAttention((heads + 1) * tokens, scales[1], generator)
        self.blocks = nn.ModuleList([nn.ModuleDict({"attn": attention}) for attention in (first, second)])
        self.setup()

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens [batch, position] to log p [batch, token] of the next token; p is clamped above 0."""
        first, second = _parts(self)
        x = one_hot(tokens, self.tokens).to(first.w.dtype)  # [batch, position, token]
        r = torch.cat([x[:, :, None], first(x)], dim=2)  # [batch, position, slot, token]; slot 0 is the skip connection
        s = second(r.flatten(2))  # [batch, position]
        p = torch.einsum("bk,bkd->bd", s, x)  # R V = X
        return p.clamp_min(torch.finfo(p.dtype).tiny).log()

    def coefficients(self) -> Tensor:
        """Returns the coefficient of the centred identity in each block of Q^T K, [query slot, key slot].

        The solution has them at (i - 1, i): slot i - 1 of the query holds token i from its end.
        """
        second, tokens, slots = _parts(self)[1], self.tokens, self.cfg.n_heads + 1
        blocks = (second.Q.T @ second.K).reshape(slots, tokens, slots, tokens)[:, : self.order, :, : self.order]
        centred = centred_identity(self.order, blocks)
        found: Tensor = torch.einsum("satb,ab->st", blocks, centred) / centred.square().sum()
        return found
