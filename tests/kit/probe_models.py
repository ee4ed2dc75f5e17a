"""Models with known activations, and a short way to measure them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformer_lens import HookedRootModule, HookedTransformer, HookedTransformerConfig
from transformer_lens.hook_points import HookPoint

import stagelens as sl
from stagelens.models import build_transformer

PATTERN = "blocks.0.attn.hook_pattern"


class Written(HookedRootModule):
    """Passes given activations through its hooks and returns a given output, so a probe's input is known exactly."""

    def __init__(self, activations: dict[str, Tensor], output: Tensor | None = None, **cfg: Any) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(**cfg)
        self.activations = activations
        self.output = torch.zeros(()) if output is None else output
        self.points: list[HookPoint] = []
        for name in activations:
            module: nn.Module = self
            *parents, last = name.split(".")
            for part in parents:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = dict(module.named_children())[part]
            module.add_module(last, HookPoint())
        self.setup()

    def forward(self, batch: Any) -> Tensor:
        for name, activation in self.activations.items():
            self.hook_dict[name](activation)
        return self.output


class PositionalToy(HookedRootModule):
    """One layer. Each head attends by position alone and returns the mean of its input: [batch, pos, d] -> the same."""

    def __init__(self, n_heads: int = 3, n_ctx: int = 6, d: int = 4) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(n_layers=1, n_heads=n_heads, n_ctx=n_ctx, d_vocab=None, attention_dir="causal")
        attn = nn.Module()
        attn.scores = nn.Parameter(torch.randn(n_heads, n_ctx, n_ctx, generator=torch.Generator().manual_seed(0)))
        attn.W_O = nn.Parameter(torch.randn(n_heads, d, d, generator=torch.Generator().manual_seed(1)))
        attn.hook_pattern, attn.hook_z = HookPoint(), HookPoint()
        block = nn.Module()
        block.attn = attn
        self.blocks = nn.ModuleList([block])
        self.setup()

    def forward(self, x: Tensor) -> Tensor:
        attn = self.blocks[0].attn
        hidden = torch.ones_like(attn.scores[0], dtype=torch.bool).triu(1)
        pattern = attn.scores.masked_fill(hidden, -torch.inf).softmax(-1)  # [head, query, key]
        pattern = attn.hook_pattern(pattern.expand(len(x), *pattern.shape))
        z = attn.hook_z(torch.einsum("bhqk,bkd->bqhd", pattern, x))
        return torch.einsum("bqhd,hde->bqe", z, attn.W_O)


def written_pattern(pattern: Any, **cfg: Any) -> Written:
    """A one-layer model with `pattern` [batch, head, query, key] (leading ones may be left out)."""
    tensor = pattern if isinstance(pattern, Tensor) else torch.tensor(np.array(pattern, dtype=np.float32))
    tensor = tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape))
    return Written({PATTERN: tensor}, **cfg)


def lens_model(**changes: Any) -> Any:
    """A small attention-only HookedTransformer over 11 tokens by TransformerLens' own config, with random weights."""
    sizes = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_head": 4, "n_ctx": 10, "d_vocab": 11, "attn_only": True}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(HookedTransformerConfig(**sizes | changes, device="cpu"), move_to_device=False)
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=stream, dtype=torch.float64))
    return model


def transformer(**changes: Any) -> Any:
    """A small HookedTransformer over 11 tokens."""
    sizes: dict[str, Any] = {"n_layers": 2, "n_heads": 3, "d_model": 12, "n_ctx": 10, "d_mlp": 16, "seed": 0}
    sizes |= {} if "d_in" in changes else {"d_vocab": 11}
    return build_transformer(**sizes | changes)


def tokens(n: int = 5, length: int = 10, d_vocab: int = 11) -> Tensor:
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(3))


def next_token_loss(model: Any, batch: Tensor) -> Tensor:
    logits = model(batch)
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def loss_without_last_token(model: Any, batch: Tensor) -> Tensor:
    """The next-token loss of a model that is called on all tokens but the last."""
    return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def squared_loss(model: Any, batch: Tensor) -> Tensor:
    return (model(batch) - batch).square().mean()


def measured(model: Any, probe: Any, batch: Any = 0, **options: Any) -> dict[str, np.ndarray]:
    """Returns the readings of one probe by short name. Fails the test if the probe fails or does not apply."""
    recorder = sl.Recorder(model, probes=[probe], batch=batch, **options)
    readings = recorder.measure(0)
    assert not recorder.problems and recorder.probes, (recorder.problems, recorder.skipped)
    return {r.name.partition("/")[2]: r.values for r in readings if "/" in r.name}


def refusal(model: Any, probe: Any, batch: Any = 0, **options: Any) -> str:
    """Returns the reason why the probe does not apply. Fails the test if the probe fails or applies."""
    recorder = sl.Recorder(model, probes=[probe], batch=batch, **options)
    recorder.measure(0)
    assert not recorder.problems and len(recorder.skipped) == 1, (recorder.problems, recorder.skipped)
    return next(iter(recorder.skipped.values()))


def omissions(model: Any, probe: str, batch: Any = 0, **options: Any) -> tuple[set[str], dict[str, str]]:
    """Returns the short names of the readings that a probe returns, and the reasons for those that it omits."""
    recorder = sl.Recorder(model, probes=[probe], batch=batch, **options)
    readings = recorder.measure(0)
    assert not recorder.problems and probe in recorder.probes, (recorder.problems, recorder.skipped)
    given = {r.name.partition("/")[2] for r in readings if "/" in r.name}
    return given, {name.removeprefix(f"{probe}/"): reason for name, reason in recorder.skipped.items()}


def induction_circuit(V: int, P: int, sharp: float = 1e4) -> Any:
    """Returns a model of V tokens and P positions. Its residual stream is [token, position, previous
    token], each one-hot.

    Attention scores are 0 or so large (`sharp`) that the softmax is exactly one-hot.
    Layer 0: head 0 attends to the previous position and writes its token; head 1 attends to equal tokens.
    Layer 1: head 0 attends to where the previous token equals this one, and copies the token there (induction);
    head 1 attends alike to all and writes minus the tokens it reads.
    """
    model = transformer(
        n_layers=2, n_heads=2, d_model=2 * V + P, d_head=P, n_ctx=P, d_vocab=V, d_mlp=None, normalization="none"
    )
    token, position, previous = slice(0, V), slice(V, V + P), slice(V + P, 2 * V + P)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, token] = torch.eye(V)
        model.pos_embed.W_pos[:, position] = torch.eye(P)
        model.unembed.W_U[token] = torch.eye(V)
        first, second = (block.attn for block in model.blocks)
        first.W_Q[0, position] = sharp * torch.eye(P).roll(1, 0)  # position i asks for i - 1
        first.W_Q[0, V] = 0  # position 0 has none before it, and attends to itself
        first.W_K[0, position] = torch.eye(P)
        first.W_V[0, token, :V] = torch.eye(V)
        first.W_O[0, :V, previous] = torch.eye(V)
        first.W_Q[1, token, :V] = sharp * torch.eye(V)
        first.W_K[1, token, :V] = torch.eye(V)
        second.W_Q[0, token, :V] = sharp * torch.eye(V)
        second.W_K[0, previous, :V] = torch.eye(V)
        second.W_V[0, token, :V] = torch.eye(V)
        second.W_O[0, :V, token] = 10 * torch.eye(V)
        second.W_V[1, token, :V] = torch.eye(V)
        second.W_O[1, :V, token] = -torch.eye(V)
    return model
