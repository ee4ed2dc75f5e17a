"""Transformers for tests of the fused forward path, and comparisons with TransformerLens' own forward pass."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig

from stagelens.models import FastTransformer, Transformer, build_transformer, fast_forward as fast

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def randomize(model: Transformer, scale: float = 0.1) -> Transformer:
    """Every parameter random, so that no bias, layer norm or slope is at a value that hides a mistake.

    The random part is small, because squares of squares (relu2 without norms) of large weights magnify rounding.
    """
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=stream, dtype=torch.float64))
    return model


def inputs_for(model: Transformer, batch: int = 3, length: int = 7) -> Tensor:
    stream = torch.Generator().manual_seed(2)
    if model.d_in is None:
        return torch.randint(model.cfg.d_vocab, (batch, length), generator=stream)
    return torch.randn(batch, length, model.d_in, generator=stream, dtype=torch.float64).to(model.cfg.dtype)


def explicit(model: FastTransformer, inputs: Tensor) -> Tensor:
    """TransformerLens' own forward pass."""
    return HookedTransformer.forward(model, inputs)


def gradients(model: FastTransformer, logits: Tensor) -> dict[str, Tensor]:
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    found = torch.autograd.grad((logits * weights).sum(), list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Asserts equality within the dtype's tolerance, relative to the largest expected value."""
    size = max(value.abs().max().item() for value in expected.values())
    for name, value in expected.items():
        bound = size * TOLERANCE[value.dtype]
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
        )


def small(**changes: object) -> Transformer:
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 8, "n_ctx": 7, "d_vocab": 5, "d_mlp": 6, "seed": 0}
    return randomize(build_transformer(**sizes | changes))


def taken(model: FastTransformer, tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns which forward path a plain call takes."""
    ways = []
    with monkeypatch.context() as patch:
        original = fast.logits
        patch.setattr(fast, "logits", lambda *given, **named: ways.append("fast") or original(*given, **named))
        model(tokens)
    return "fast" if ways else "explicit"


def theirs(**options: object) -> HookedTransformer:
    """Returns a small HookedTransformer, made as a user makes it."""
    sizes = {"n_layers": 2, "d_model": 8, "n_ctx": 7, "d_head": 4, "n_heads": 2, "d_mlp": 6, "d_vocab": 5}
    sizes |= {"act_fn": "gelu", "dtype": torch.float64, "device": "cpu", "seed": 3}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return HookedTransformer(HookedTransformerConfig(**sizes | options))
