"""Watched models of unusual structure: blocks, matrices, one head, heads in the batch dimension, zero weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stagelens as sl
from kit.own_models import HEADS, LAYERS, VOCAB, WIDTH, Attention, Layer, hugging_face, plain_model, tokens_like_text

TOKENS = tokens_like_text()
NAMES = ("W_Q", "W_K", "W_V", "W_O")


class Stack(nn.Module):
    """A language model whose blocks are given."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.embed, self.layers, self.out = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.body(self.embed(tokens)))
        return logits

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def hidden(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


class OneHead(nn.Module):
    """Attention of one head without a dimension for it, which adds to the residual stream itself."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.scaled = scaled
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.scaled:
            return x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(hidden(x), -torch.inf)
        return x + self.o(F.softmax(input=scores, dim=-1) @ v)


class Biased(nn.Module):
    """Hand-written attention in whose module a child makes a product of matrices first."""

    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight_of = nn.Parameter(torch.randn(1, HEADS, WIDTH // HEADS, 1))

        def forward(self, q: Tensor) -> Tensor:
            return q @ self.weight_of.expand(len(q), -1, -1, -1)

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), self.Bias()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads_of, self.qkv(x).chunk(3, -1))
        scores = (self.bias(q) + q @ k.mT).masked_fill(hidden(x), -torch.inf)
        return x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class NormedTwice(nn.Module):
    """Multi-head attention whose queries and keys are equal tensors, but not the same object."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(self.norm(x), self.norm(x), self.norm(x), attn_mask=hidden(x))
        return x + out


class Named(nn.Module):
    """A block whose attention has a name of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, Attention("scaled"))
        self.name, self.mlp = name, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.get_submodule(self.name)(x)
        return x + self.mlp(x)


class Pairs(Stack):
    """Every layer is a list of attention and MLP, which the root adds to the residual stream."""

    def __init__(self) -> None:
        super().__init__(*(nn.ModuleList([Attention("scaled"), nn.Linear(WIDTH, WIDTH)]) for _ in range(LAYERS)))

    def body(self, x: Tensor) -> Tensor:
        for attention, mlp in self.layers:  # type: ignore[misc]
            x = x + attention(x)
            x = x + mlp(x)
        return x


class AtRoot(Stack):
    """The root itself attends."""

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS)))
        self.o = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def body(self, x: Tensor) -> Tensor:
        for qkv, o in zip(self.layers, self.o, strict=True):
            z = F.scaled_dot_product_attention(*map(heads_of, qkv(x).chunk(3, -1)), is_causal=True)
            x = x + o(z.transpose(1, 2).flatten(2))
        return x


class Late(Stack):
    """A dropout and an activation come before the final norm."""

    def __init__(self) -> None:
        super().__init__(Layer("scaled", 0.0), Layer("scaled", 0.0))
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(WIDTH, elementwise_affine=False)

    def body(self, x: Tensor) -> Tensor:
        stream = super().body(x)
        return self.norm(self.drop(stream)) + 0.1 * torch.tanh(stream)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "one head": lambda: Stack(OneHead(False), OneHead(False)),
    "one head, scaled": lambda: Stack(OneHead(True), OneHead(True)),
    "bias": lambda: Stack(Biased(), Biased()),
    "normed twice": lambda: Stack(NormedTwice(), NormedTwice()),
    "other names": lambda: Stack(Named("first"), Named("second")),
    "pairs": Pairs,
    "root": AtRoot,
    "late norm": Late,
}


def same_up_to_a_bias(seen: Tensor, made: Tensor) -> None:
    shift = seen - made
    torch.testing.assert_close(shift, shift[:1, :1].expand_as(shift), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_other_build_are_seen_as_they_compute(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        plain = model(TOKENS)
        watched = sl.watch(model, TOKENS)
        logits, cache = watched.run_with_cache(TOKENS)
    torch.testing.assert_close(logits, plain, atol=1e-6, rtol=0)
    assert set(watched.hook_dict) <= set(cache)  # no hook point is silent
    assert watched.cfg.n_layers == LAYERS
    for layer, site in enumerate(watched.layers):
        q, k, v, pattern, z = (cache[f"blocks.{layer}.attn.hook_{one}"] for one in ("q", "k", "v", "pattern", "z"))
        torch.testing.assert_close(torch.einsum("bhqk,bkhd->bqhd", pattern, v), z, atol=1e-5, rtol=0)
        assert not pattern.triu(1).any()
        assert all(site.matrix(matrix) is not None for matrix in NAMES)
        stream = f"blocks.{layer}.hook_resid_pre"
        assert (stream in cache) == (name not in ("pairs", "root"))
        if name in ("one head", "one head, scaled", "bias", "other names"):
            for seen, matrix in ((q, site.W_Q), (k, site.W_K), (v, site.W_V)):
                same_up_to_a_bias(seen, torch.einsum("bpm,hmd->bphd", cache[stream], matrix))
        if name in ("one head", "one head, scaled", "bias"):
            added = cache[f"blocks.{layer}.hook_resid_post"] - cache[stream]
            same_up_to_a_bias(added, torch.einsum("bphd,hdm->bpm", z, site.W_O))
    assert watched.structure.final_norm == ("norm" if name == "late norm" else None)


def post_norm(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.1, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), encoder, nn.Linear(WIDTH, VOCAB)).eval()


@pytest.mark.parametrize(
    ("made", "attention", "mlp"),
    [
        (
            lambda: hugging_face("bert"),
            "bert.encoder.layer.1.attention.output.dense",
            "bert.encoder.layer.1.output.dense",
        ),
        (lambda: post_norm(False), "1.layers.1.self_attn.out_proj", "1.layers.1.linear2"),
        (lambda: post_norm(True), "1.layers.1.self_attn.out_proj", "1.layers.1.linear2"),
        (lambda: hugging_face("gemma2"), "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.down_proj"),
        (
            lambda: hugging_face("bloom"),
            "transformer.h.1.self_attention.dense",
            "transformer.h.1.mlp.dense_4h_to_h",
        ),
        (lambda: hugging_face("opt"), None, None),
    ],
    ids=["bert", "post-norm", "pre-norm", "gemma2", "bloom", "opt"],
)
def test_what_attention_and_mlp_add_can_be_removed(made: Any, attention: str | None, mlp: str | None) -> None:
    """Setting a branch to zero by a hook is the same as zero weights in its last linear map."""
    torch.manual_seed(0)
    model = made()
    watched = sl.watch(model, TOKENS)
    for name, path in (("blocks.1.hook_attn_out", attention), ("blocks.1.hook_mlp_out", mlp)):
        assert (name in watched.hook_dict) == (path is not None)
        if path is None:
            continue
        removed = watched.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda x, hook: torch.zeros_like(x))])
        by_hand = copy.deepcopy(model)
        for parameter in by_hand.get_submodule(path).parameters():
            nn.init.zeros_(parameter)
        expected = by_hand(TOKENS)
        expected = expected if isinstance(expected, Tensor) else expected.logits
        torch.testing.assert_close(removed, expected, atol=1e-5, rtol=0)
        assert (removed - watched(TOKENS)).abs().max() > 1e-3


def test_a_hook_replaces_the_pattern_of_one_head() -> None:
    def first_key(pattern: Tensor, hook: Any) -> Tensor:
        return F.one_hot(torch.zeros(pattern.shape[:-1], dtype=torch.long), pattern.shape[-1]).float()

    outputs = []
    for scaled in (False, True):
        torch.manual_seed(0)
        watched = sl.watch(Stack(OneHead(scaled), OneHead(scaled)), TOKENS)
        outputs.append(watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_pattern", first_key)]))
        assert (outputs[-1] - watched(TOKENS)).abs().max() > 1e-2
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gemma2", "cohere"])
def test_the_unembedding_is_found_behind_a_softcap_or_a_scale(kind: str) -> None:
    model = hugging_face(kind)
    assert torch.equal(sl.watch(model, TOKENS).W_U.mT, model.lm_head.weight)


def test_matrices_that_cannot_be_distinguished_are_not_guessed() -> None:
    model = plain_model("scaled")
    for parameter in model.h[0].attn.c_attn.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(parameter)
    first, second = sl.watch(model, TOKENS).layers
    assert [first.matrix(name) is None for name in NAMES] == [True, True, True, False]
    assert all(second.matrix(name) is not None for name in NAMES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_matrices_are_found_in_every_precision(dtype: torch.dtype) -> None:
    wide, other = plain_model("scaled"), plain_model("scaled").to(dtype)
    for expected, found in zip(sl.watch(wide, TOKENS).layers, sl.watch(other, TOKENS).layers, strict=True):
        for name in NAMES:
            assert torch.equal(found.matrix(name), expected.matrix(name).to(dtype)), name


@pytest.mark.parametrize("kind", ["phi3", "falcon", "falcon, grouped"])
def test_fused_projections_with_grouped_keys(kind: str) -> None:
    model = hugging_face(kind)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    watched = sl.watch(model, TOKENS)
    inputs: dict[int, Tensor] = {}
    for layer, site in enumerate(watched.layers):
        model.get_submodule(site.call.path).register_forward_pre_hook(
            lambda _, args, kwargs, at=layer: inputs.update({at: next(iter([*args, *kwargs.values()]))}),
            with_kwargs=True,
        )
    with torch.no_grad():
        _, cache = watched.run_with_cache(TOKENS)
    for layer, site in enumerate(watched.layers):
        for part, matrix in (("q", site.W_Q), ("k", site.W_K), ("v", site.W_V)):
            seen = cache[f"blocks.{layer}.attn.hook_{part}"][:, :1]  # rotary positions leave the first as it is
            made = torch.einsum("bpm,hmd->bphd", inputs[layer][:, :1], matrix)
            same_up_to_a_bias(seen.repeat_interleave(HEADS // seen.shape[2], dim=2), made)


def test_the_residual_stream_of_t5_is_that_of_whole_blocks() -> None:
    model = hugging_face("t5")
    batch = {"input_ids": TOKENS, "decoder_input_ids": TOKENS.roll(1, 0)}
    watched = sl.watch(model, batch)
    with torch.no_grad():
        _, cache = watched.run_with_cache(batch)
        out = model(**batch, output_hidden_states=True, output_attentions=True)
    streams = [*out.encoder_hidden_states[:LAYERS], *out.decoder_hidden_states[:LAYERS]]
    for layer, stream in enumerate(streams):
        torch.testing.assert_close(cache[f"blocks.{layer}.hook_resid_pre"], stream, atol=1e-5, rtol=0)
    assert watched.structure.final_norm == "decoder.final_layer_norm"
    for layer, own in enumerate([*out.encoder_attentions, *out.decoder_attentions]):
        torch.testing.assert_close(cache[f"blocks.{layer}.attn.hook_pattern"], own, atol=1e-6, rtol=0)
    for layer, own in enumerate(out.cross_attentions):
        torch.testing.assert_close(cache[f"blocks.{layer}.cross_attn.hook_pattern"], own, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["falcon", "falcon, grouped"])
def test_the_patterns_of_falcon_are_those_of_its_eager_attention(kind: str) -> None:
    """transformers adds the Boolean mask of a Falcon with sdpa to its scores if it is asked for `output_attentions`."""
    model = hugging_face(kind)
    _, cache = sl.watch(model, TOKENS).run_with_cache(TOKENS)
    eager = type(model)._from_config(model.config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    expected = eager(TOKENS, output_attentions=True).attentions
    for layer, own in enumerate(expected):
        torch.testing.assert_close(cache[f"blocks.{layer}.attn.hook_pattern"], own, atol=1e-6, rtol=0)


@pytest.mark.parametrize("first", [True, False])
def test_pytorchs_decoder_alone(first: bool) -> None:
    torch.manual_seed(0)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=first), LAYERS).eval()
    target, memory = torch.randn(3, 6, WIDTH), torch.randn(3, 5, WIDTH)
    batch = (target, memory) if first else (target.transpose(0, 1), memory.transpose(0, 1))
    watched = sl.watch(decoder, batch)
    _, cache = watched.run_with_cache(*batch)
    assert [cache[f"blocks.1.{name}.hook_pattern"].shape[2:] for name in ("attn", "cross_attn")] == [(6, 6), (6, 5)]
    weights: list[Tensor] = []
    decoder.layers[0].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"need_weights": True, "average_attn_weights": False}),
        with_kwargs=True,
    )
    decoder.layers[0].self_attn.register_forward_hook(lambda module, args, out: weights.append(out[1]))
    decoder(*batch)
    torch.testing.assert_close(cache["blocks.0.attn.hook_pattern"], weights[0], atol=1e-6, rtol=0)
