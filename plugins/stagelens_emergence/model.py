"""The hooked models: the toy model of Eq. 2, and the transformers of Table 1."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from stagelens.base import generator
from stagelens.models import HookedRootModule, HookPoint, ToyConfig
from stagelens_emergence.config import EmergenceTransformerConfig


class PositionAttention(nn.Module):
    """y = W sum_t softmax(a)_t x_t. The scores a belong to positions and do not depend on the tokens."""

    def __init__(self, T: int, W: Tensor) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(T, dtype=W.dtype))
        self.W = nn.Parameter(W)
        self.hook_attn_scores = HookPoint()  # [batch, 1, 1, key]
        self.hook_pattern = HookPoint()  # [batch, 1, 1, key]
        self.hook_v = HookPoint()  # [batch, key, 1, d]
        self.hook_z = HookPoint()  # [batch, 1, 1, d]

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [batch, T, d] to y [batch, d]."""
        scores = self.hook_attn_scores(self.a.expand(len(x), 1, 1, -1))
        pattern = self.hook_pattern(scores.softmax(-1))
        v = self.hook_v(x[:, :, None])
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        y: Tensor = z[:, 0, 0] @ self.W.T
        return y


class ToyTransformer(HookedRootModule):  # type: ignore[misc]
    """The toy model (Eq. 2), starting at a = 0 (Assumption 2) and the given W. It stores W* and B for the probes."""

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
        """W [d, d]."""
        W: Tensor = self.attention.W
        return W

    def attention_parts(self) -> tuple[Tensor, Tensor]:
        """Returns the attention to each irrelevant token [T - B], and the total attention to the relevant ones."""
        alpha = self.alpha
        return alpha[: -self.B], alpha[-self.B :].sum()

    def along_target(self) -> Tensor:
        """Returns <W*_:i, W_:i> of each column [d]."""
        return (self.W_star * self.W).sum(0)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [batch, T, d] to y [batch, d]."""
        y: Tensor = self.attention(x)
        return y


def build_causal(config: EmergenceTransformerConfig, n_ctx: int, seed: int, **inputs: Any) -> Any:
    """Returns a causal HookedTransformer with sinusoidal positions; `inputs` are d_vocab, or d_in and d_out.

    The unembedding starts at 0, so training starts on the plateau: at a loss of 1/2 (D.1), or at chance. With
    `init=torch` all other weights and biases start as in PyTorch's linear layers.
    """
    from stagelens.models import build_transformer  # needs TransformerLens 3

    model = build_transformer(
        n_layers=config.layers,
        n_heads=config.heads,
        d_model=config.d_model,
        d_head=config.d_head,
        d_mlp=config.mlp_factor * config.d_model,
        n_ctx=n_ctx,
        normalization="layer" if config.norm else "none",
        positions="sinusoidal",
        seed=seed,
        **inputs,
    )
    with torch.no_grad():
        if config.init == "torch":
            draw_as_linear(model, generator(seed, "linear"))
        model.unembed.W_U.zero_()
    return model


FAN_IN = {"embed.W_E": (0,), "W_Q": (1,), "W_K": (1,), "W_V": (1,), "W_O": (0, 1), "W_in": (0,), "W_out": (0,)}
BIAS_OF = {"b_Q": "W_Q", "b_K": "W_K", "b_V": "W_V", "b_O": "W_O", "b_in": "W_in", "b_out": "W_out"}


def draw_as_linear(model: nn.Module, stream: torch.Generator) -> None:
    """Draws weights and biases from U(-1/sqrt(n), 1/sqrt(n)), with n inputs, as `nn.Linear` does.

    The embedding has n = d_in (or d_vocab, of one-hot tokens), so that it does not depend on the width of the model.
    """
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        last = name.rpartition(".")[2]
        weight = parameters.get(name.removesuffix(last) + BIAS_OF.get(last, last), parameter)
        axes = FAN_IN.get("embed.W_E" if name == "embed.W_E" else BIAS_OF.get(last, last))
        if axes is not None:
            bound = math.prod(weight.shape[axis] for axis in axes) ** -0.5
            parameter.copy_((2 * torch.rand(parameter.shape, generator=stream) - 1) * bound)
