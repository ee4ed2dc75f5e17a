"""Attention written by hand: heads in the batch dimension, scaled keys, and softmaxes that are no attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stagelens as sl
from kit.own_models import HEADS, LAYERS, WIDTH, hugging_face, plain_model, tokens_like_text
from models.test_watching_structure import NAMES, OneHead, Stack, heads_of, hidden

TOKENS = tokens_like_text()


class Folded(OneHead):
    """Heads are folded into the batch: [batch * head, position, d_head]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(y).flatten(0, 1) for y in (self.q(x), self.k(x), self.v(x)))
        z = torch.bmm((q @ k.mT).masked_fill(hidden(x), -torch.inf).softmax(-1), v)
        return x + self.o(z.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2))


class HeadsFirst(Folded):
    """Heads are folded into the batch in the other order: [head * batch, position, d_head]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(y).transpose(0, 1).flatten(0, 1) for y in (self.q(x), self.k(x), self.v(x)))
        z = torch.bmm((q @ k.mT).masked_fill(hidden(x), -torch.inf).softmax(-1), v)
        return x + self.o(z.unflatten(0, (HEADS, -1)).permute(1, 2, 0, 3).flatten(2))


@pytest.mark.parametrize("n_sequences", [1, 3, 8])
def test_heads_in_the_batch_are_distinguished_from_sequences(n_sequences: int) -> None:
    torch.manual_seed(0)
    watched = sl.watch(Stack(*(Folded(False) for _ in range(LAYERS))), TOKENS[:n_sequences])
    _, cache = watched.run_with_cache(TOKENS[:5])
    x = watched.model.get_submodule("embed")(TOKENS[:5])
    one: Any = watched.model.get_submodule("layers.0")
    scores = (heads_of(one.q(x)) @ heads_of(one.k(x)).mT).masked_fill(hidden(x), -torch.inf)
    torch.testing.assert_close(cache["blocks.0.attn.hook_pattern"], scores.softmax(-1), atol=1e-6, rtol=0)
    assert cache["blocks.0.attn.hook_v"].shape == (5, TOKENS.shape[1], HEADS, WIDTH // HEADS)
    assert all(site.matrix(name) is not None for site in watched.layers for name in NAMES)


def test_heads_before_sequences_are_refused() -> None:
    with pytest.raises(sl.StagelensError, match="folds heads into the batch with the heads first"):
        sl.watch(Stack(*(HeadsFirst(False) for _ in range(LAYERS))), TOKENS)


def test_a_softmax_that_is_no_attention_is_no_layer() -> None:
    class Experts(nn.Module):
        """Its router is a softmax over [sequence, position, expert]; that of `gates` over [..., head, expert]."""

        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(WIDTH, 6), nn.Parameter(torch.randn(6, WIDTH, WIDTH))
            self.gates = nn.Linear(WIDTH, HEADS * HEADS)

        def forward(self, x: Tensor) -> Tensor:
            chosen = torch.einsum("bpe,epw->bpw", self.router(x).softmax(-1), self.experts[:, : x.shape[1]])
            return chosen + self.gates(x).unflatten(-1, (HEADS, HEADS)).softmax(-1).sum((2, 3))[..., None]

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Stack(*(nn.Sequential(OneHead(False), Experts()) for _ in range(LAYERS)))

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.body(tokens)
            return logits, logits.unflatten(-1, (4, -1)).softmax(-1)

    watched = sl.watch(Routed(), TOKENS)
    assert [site.call.path for site in watched._sites] == [f"body.layers.{layer}.0" for layer in range(LAYERS)]


def test_keys_that_a_model_scales_itself_lead_to_their_matrix() -> None:
    class ScaledKeys(OneHead):
        """As DeBERTa-v2."""

        def forward(self, x: Tensor) -> Tensor:
            return x + self.o((self.q(x) @ (self.k(x) / WIDTH**0.5).mT).softmax(-1) @ self.v(x))

    torch.manual_seed(0)
    model = Stack(*(ScaledKeys(False) for _ in range(LAYERS)))
    own = model.get_parameter("layers.1.k.weight")
    assert torch.equal(sl.watch(model, TOKENS).layers[1].W_K.mT.flatten(0, 1), own)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "by hand", "einsum", "positions first", "folded"])
def test_as_many_positions_as_a_head_has_dimensions(kind: str) -> None:
    """Then what attention mixes, [batch, head, query, d_head], has the shape of the next layer's scores."""
    few = TOKENS[:, : WIDTH // HEADS]
    if kind in ("gpt2", "llama", "bert"):
        models = [hugging_face(kind, "eager"), hugging_face(kind, "sdpa")]
    else:
        models = [plain_model(kind), plain_model("scaled")]
    with torch.no_grad():
        seen, expected = (sl.watch(model, few).run_with_cache(few)[1] for model in models)
    for layer in range(LAYERS):
        for name in ("k", "v", "z", "pattern"):
            hook = f"blocks.{layer}.attn.hook_{name}"
            kept = expected[hook].repeat_interleave(seen[hook].shape[2] // expected[hook].shape[2], dim=2)
            torch.testing.assert_close(seen[hook], kept, atol=1e-5, rtol=1e-5)


def test_cross_attention_to_as_many_keys_as_a_head_has_dimensions() -> None:
    source = TOKENS[:, : WIDTH // HEADS]
    batch = {"input_ids": source, "decoder_input_ids": TOKENS[:, :5]}
    watched = sl.watch(hugging_face("t5"), batch)
    _, cache = watched.run_with_cache(batch)
    assert set(watched.hook_dict) <= set(cache)  # no hook point is silent
    for layer in range(LAYERS):
        own, cross = (f"blocks.{i}.{name}" for i, name in ((LAYERS + layer, "attn"), (layer, "cross_attn")))
        for where in (own, cross):
            a, v, z = (cache[f"{where}.hook_{name}"] for name in ("pattern", "v", "z"))
            torch.testing.assert_close(torch.einsum("bhqk,bkhd->bqhd", a, v), z, atol=1e-5, rtol=1e-5)


def test_attention_inside_vmap_is_refused() -> None:
    class Mapped(OneHead):
        def forward(self, x: Tensor) -> Tensor:
            heads = (
                y.unflatten(2, (HEADS, -1)) for y in (self.q(x), self.k(x), self.v(x))
            )  # [batch, position, head, d]
            z = torch.func.vmap(F.scaled_dot_product_attention, in_dims=2, out_dims=2)(*heads)
            return x + self.o(z.flatten(2))

    with pytest.raises(sl.StagelensError, match=r"no attention was seen in Stack.* inside torch.vmap"):
        sl.watch(Stack(Mapped(False)), TOKENS)
