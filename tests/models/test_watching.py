"""Watched models: activations are those of the model's own computation, and the model is not changed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stagelens as sl
from kit.own_models import (
    CONTEXT,
    HEADS,
    LAYERS,
    VOCAB,
    WAYS,
    WIDTH,
    PlainTransformer,
    hugging_face,
    plain_model,
    tokens_like_text,
)

KINDS = ("gpt2", "llama", "neox", "bert")
FURTHER = ("mistral", "gemma", "opt", "xglm", "bloom")
TOKENS = tokens_like_text()


def patterns_of(cache: Any) -> list[Tensor]:
    return [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(LAYERS)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_patterns_are_hugging_faces_own_and_the_output_is_not_changed(kind: str, attention: str) -> None:
    model = hugging_face(kind, attention)
    with torch.no_grad():
        plain = model(TOKENS).logits
    logits, cache = sl.watch(model, TOKENS).run_with_cache(TOKENS)
    assert torch.equal(logits, plain)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(TOKENS, output_attentions=True).attentions
    for seen, own in zip(patterns_of(cache), expected, strict=True):
        torch.testing.assert_close(seen, own, atol=1e-6, rtol=0)


def test_the_window_of_local_attention_is_seen() -> None:
    visible = sl.watch(hugging_face("mistral"), TOKENS).visible_keys(0, CONTEXT, CONTEXT)
    past = torch.arange(CONTEXT)[:, None] - torch.arange(CONTEXT)
    assert torch.equal(visible, (past >= 0) & (past < 5))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_seen_as_the_model_sees_it(kind: str) -> None:
    model = hugging_face(kind)
    mask = torch.ones_like(TOKENS)
    mask[::2, -5:] = 0
    batch = {"input_ids": TOKENS, "attention_mask": mask}
    _, cache = sl.watch(model, batch).run_with_cache(batch)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch, output_attentions=True).attentions
    real = mask.bool()
    for seen, own in zip(patterns_of(cache), expected, strict=True):
        torch.testing.assert_close(seen.transpose(1, 2)[real], own.transpose(1, 2)[real], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_replaced_scores_of_a_query_without_keys_are_no_nan(kind: str) -> None:
    model = hugging_face(kind)
    mask = torch.ones_like(TOKENS)
    mask[::2, :5] = 0
    batch = {"input_ids": TOKENS, "attention_mask": mask}
    watched = sl.watch(model, batch)
    with torch.no_grad():
        expected = model(**batch).logits
        hooks = [(name, lambda x, hook: x.clone()) for name in watched.hook_dict if name.endswith("hook_attn_scores")]
        found = watched.run_with_hooks(batch, fwd_hooks=hooks)
    assert hooks
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", ["scaled", "by hand"])
def test_hooks_work_in_inference_mode(way: str) -> None:
    """Also a hook that changes the pattern in place, which ordinary tensors show by their version counter."""
    watched = sl.watch(plain_model(way), TOKENS)

    def zeroed(x: Tensor, hook: Any) -> None:
        x[:, 0] = 0

    for name in ("hook_pattern", "hook_attn_scores"):
        hooks = [(f"blocks.1.attn.{name}", zeroed)]
        with torch.no_grad():
            plain, expected = watched.run_with_cache(TOKENS)[0], watched.run_with_hooks(TOKENS, fwd_hooks=hooks)
        with torch.inference_mode():
            torch.testing.assert_close(watched.run_with_cache(TOKENS)[0], plain)
            torch.testing.assert_close(watched.run_with_hooks(TOKENS, fwd_hooks=hooks), expected)
        assert not torch.allclose(expected, plain)


def test_blocks_may_return_a_list() -> None:
    import transformers

    config = transformers.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64)
    model = transformers.OpenAIGPTLMHeadModel(config).eval()
    with torch.no_grad():
        plain = model(TOKENS, output_hidden_states=True)
    logits, cache = sl.watch(model, TOKENS).run_with_cache(TOKENS)
    assert torch.equal(logits, plain.logits)
    for layer in range(LAYERS):
        assert torch.equal(cache[f"blocks.{layer}.hook_resid_post"], plain.hidden_states[layer + 1])


@pytest.mark.parametrize("way", WAYS)
def test_every_implementation_of_attention_has_the_same_pattern(way: str) -> None:
    reference = plain_model("scaled")
    _, expected = sl.watch(reference, TOKENS).run_with_cache(TOKENS)
    model = plain_model(way)
    with torch.no_grad():
        plain = model(TOKENS)
    logits, cache = sl.watch(model, TOKENS).run_with_cache(TOKENS)
    torch.testing.assert_close(logits, plain, atol=1e-5, rtol=1e-5)
    assert way == "weights" or torch.equal(logits, plain)
    for seen, own in zip(patterns_of(cache), patterns_of(expected), strict=True):
        torch.testing.assert_close(seen, own, atol=1e-5, rtol=0)
        assert not seen.triu(1).any()
    mixed = torch.einsum("bhqk,bkhd->bqhd", patterns_of(cache)[1], cache["blocks.1.attn.hook_v"])
    torch.testing.assert_close(mixed, cache["blocks.1.attn.hook_z"], atol=1e-5, rtol=1e-5)
    for name in ("k", "v", "z"):
        for layer in range(LAYERS):
            hook = f"blocks.{layer}.attn.hook_{name}"
            torch.testing.assert_close(cache[hook], expected[hook], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_can_replace_heads_scores_and_patterns(way: str) -> None:
    model = plain_model(way)
    watched = sl.watch(model, TOKENS)

    def zero_head(z: Tensor, hook: Any) -> Tensor:
        return z.index_fill(2, torch.tensor([1]), 0.0)

    ablated = watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.attn.hook_z", zero_head)])
    with torch.no_grad():
        weight = next(
            p
            for name, p in model.named_parameters()
            if "h.0.attn" in name and "proj.weight" in name and p.shape[0] == WIDTH
        )
        before = weight.clone()
        weight[:, WIDTH // HEADS : 2 * WIDTH // HEADS] = 0.0  # the second head writes nothing
        expected = model(TOKENS)
        weight.copy_(before)
    torch.testing.assert_close(ablated, expected, atol=1e-5, rtol=1e-5)

    def uniform(pattern: Tensor, hook: Any) -> Tensor:
        return torch.ones_like(pattern).tril() / torch.arange(1, pattern.shape[-1] + 1)[:, None]

    def level(scores: Tensor, hook: Any) -> Tensor:
        return torch.where(scores > -9e3, 0.0, scores)

    by_pattern = watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_pattern", uniform)])
    by_scores = watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_attn_scores", level)])
    torch.testing.assert_close(by_pattern, by_scores, atol=1e-5, rtol=1e-5)
    assert (by_pattern - watched(TOKENS)).abs().max() > 1e-2

    def in_place(pattern: Tensor, hook: Any) -> None:
        pattern.copy_(uniform(pattern, hook))

    with torch.no_grad():
        changed = watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_pattern", in_place)])
    torch.testing.assert_close(changed, by_pattern, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", [*KINDS, *FURTHER, *WAYS])
def test_the_matrices_of_every_layer_are_those_that_the_model_uses(model: str) -> None:
    watched = sl.watch(hugging_face(model) if model in (*KINDS, *FURTHER) else plain_model(model), TOKENS)
    inputs: dict[int, Tensor] = {}
    taken: dict[int, Tensor] = {}
    for layer, site in enumerate(watched.layers):
        module = watched.model.get_submodule(site.call.path)
        module.register_forward_pre_hook(
            lambda _, args, kwargs, at=layer: inputs.update({at: next(iter([*args, *kwargs.values()]))}),
            with_kwargs=True,
        )
    _, cache = watched.run_with_cache(TOKENS)
    for layer, site in enumerate(watched.layers):
        values = torch.einsum("bpm,hmd->bphd", inputs[layer], site.W_V)
        seen = cache[f"blocks.{layer}.attn.hook_v"]
        shift = seen.repeat_interleave(HEADS // seen.shape[2], dim=2) - values  # the bias, the same everywhere
        torch.testing.assert_close(shift, shift[:1, :1].expand_as(shift), atol=1e-5, rtol=0)
        assert site.W_Q.shape == site.W_K.shape == site.W_V.shape == (HEADS, WIDTH, WIDTH // HEADS)
        if model == "opt":  # which scales its queries
            own = watched.model.get_submodule(site.call.path).q_proj.weight
            assert torch.equal(site.W_Q.mT.flatten(0, 1), own)
        if f"blocks.{layer}.hook_attn_out" in cache:
            out = torch.einsum("bphd,hdm->bpm", cache[f"blocks.{layer}.attn.hook_z"], site.W_O)
            shift = cache[f"blocks.{layer}.hook_attn_out"] - out
            torch.testing.assert_close(shift, shift[:1, :1].expand_as(shift), atol=1e-5, rtol=0)
            taken[layer] = shift
    assert watched.W_E.shape == (VOCAB, WIDTH)
    assert watched.W_U.shape == (WIDTH, VOCAB)
    assert len(taken) == (0 if model == "opt" else LAYERS)  # OPT's MLP has no dimension for sequences
    if model not in ("bert", "opt"):  # the blocks of BERT normalize after adding
        for layer in range(LAYERS):
            parts = [cache[f"blocks.{layer}.hook_{name}"] for name in ("resid_pre", "attn_out", "mlp_out")]
            torch.testing.assert_close(sum(parts), cache[f"blocks.{layer}.hook_resid_post"], atol=1e-5, rtol=1e-5)
        logits = cache["ln_final.hook_normalized"] @ watched.W_U
        torch.testing.assert_close(logits, watched(TOKENS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "scaled", "by hand"])
def test_the_residual_stream_can_be_replaced(kind: str) -> None:
    watched = sl.watch(hugging_face(kind) if kind in KINDS else plain_model(kind), TOKENS)
    _, cache = watched.run_with_cache(TOKENS)
    other = torch.roll(TOKENS, 1, 0)
    expected = watched(TOKENS)

    def patched(stream: Tensor, hook: Any) -> Tensor:
        return cache[hook.name]

    for name in ("blocks.1.hook_resid_pre", "blocks.1.hook_resid_post", "ln_final.hook_normalized"):
        torch.testing.assert_close(
            watched.run_with_hooks(other, fwd_hooks=[(name, patched)]), expected, atol=1e-5, rtol=1e-5
        )


def test_cross_attention_is_numbered_apart() -> None:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
            self.body = nn.Transformer(WIDTH, HEADS, 2, 3, 64, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            source, mask = self.embed(tokens), nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            return self.out(self.body(source * 2, source, tgt_mask=mask, tgt_is_causal=True))

    watched = sl.watch(Translator(), TOKENS)
    assert [name for name in watched.hook_dict if name.endswith("attn.hook_pattern")] == [
        *("blocks.0.attn.hook_pattern", "blocks.0.cross_attn.hook_pattern"),
        *("blocks.1.attn.hook_pattern", "blocks.1.cross_attn.hook_pattern"),
        *("blocks.2.attn.hook_pattern", "blocks.2.cross_attn.hook_pattern"),
        *("blocks.3.attn.hook_pattern", "blocks.4.attn.hook_pattern"),
    ]
    _, cache = watched.run_with_cache(TOKENS)
    later = [bool(cache[f"blocks.{layer}.attn.hook_pattern"].triu(1).any()) for layer in range(5)]
    assert later == [True, True, False, False, False]  # the encoder sees everything, the decoder what came before


def test_layers_that_share_one_module_are_layers_of_their_own() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = plain_model("scaled")

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.one.wte(tokens)
            for _ in range(3):
                x = self.one.h[0](x)
            return self.one.head(x)

    _, cache = sl.watch(Shared(), TOKENS).run_with_cache(TOKENS)
    patterns = [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(3)]
    assert not torch.equal(patterns[0], patterns[1])
    assert not torch.equal(patterns[1], patterns[2])


def test_nothing_stays_installed() -> None:
    model = plain_model("weights", dropout=0.1)
    model.train()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    state = torch.get_rng_state()
    watched = sl.watch(model, TOKENS)
    watched.run_with_cache(TOKENS)
    with pytest.raises(RuntimeError, match="stop"):
        watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.attn.hook_pattern", _stop)])
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    for name, own in before.items():
        assert own.keys() == after[name].keys(), name
        assert after[name]["training"]
        assert not after[name]["_forward_hooks"]
        assert not after[name]["_forward_pre_hooks"]
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.overrides._get_current_function_mode() is None
    watched(TOKENS)
    torch.set_rng_state(state)


def _stop(value: Tensor, hook: Any) -> None:
    raise RuntimeError("stop")


def test_mistakes_are_reported_in_one_line() -> None:
    model = plain_model("scaled")
    for words, call in {
        "the model is a str": lambda: sl.watch("gpt2", TOKENS),
        "no attention was seen in Linear": lambda: sl.watch(nn.Linear(3, 3), torch.zeros(2, 3)),
        "cannot be called on the batch (TypeError": lambda: sl.watch(model, "text"),
        "forward returned a dict": lambda: sl.watch(model, TOKENS, forward=lambda m, b: {"hidden": m(b)}),
        "returned a dict without logits": lambda: sl.watch(_Wrapped(model), TOKENS),
        "parameters have no values (device 'meta')": lambda: sl.watch(PlainTransformer().to("meta"), TOKENS),
        "was compiled by torch.jit": lambda: sl.watch(traced(model), TOKENS),
        "no attention was seen in GptOssForCausalLM": lambda: sl.watch(hugging_face("gpt_oss"), TOKENS),
    }.items():
        with pytest.raises(sl.StagelensError) as error:
            call()
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def traced(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, TOKENS)


class _Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"hidden": self.inner(tokens)}


@pytest.mark.parametrize("way", WAYS)
def test_two_watched_objects_of_one_model_see_the_same(way: str) -> None:
    model = plain_model(way)
    first, second = sl.watch(model, TOKENS), sl.watch(model, TOKENS)
    plain = model(TOKENS)
    seen: dict[str, Tensor] = {}
    hooks = {
        who: [("blocks.1.attn.hook_pattern", lambda x, hook, who=who: seen.update({who: x.detach()}))]
        for who in ("first", "second")
    }
    with first.hooks(fwd_hooks=hooks["first"]), second.hooks(fwd_hooks=hooks["second"]):
        torch.testing.assert_close(model(TOKENS), plain)
    assert set(seen) == {"first", "second"}
    torch.testing.assert_close(seen["first"], seen["second"], atol=1e-6, rtol=0)
    with second.hooks(fwd_hooks=hooks["second"]):
        recorder = sl.Recorder(model, ["attention_sparsity"], batch=TOKENS)
        recorder.measure(0)
    alone = sl.Recorder(model, ["attention_sparsity"], batch=TOKENS)
    alone.measure(0)
    name = "attention_sparsity/sparsity"
    assert (recorder.timeline[name].values == alone.timeline[name].values).all()


def test_an_attention_inside_a_watched_model_can_be_watched_itself() -> None:
    model = plain_model("multihead")
    inner: Any = model.h[1].attn.attention
    x = torch.randn(2, 5, inner.embed_dim)
    whole, part = sl.watch(model, TOKENS), sl.watch(inner, (x, x, x))
    seen: list[Tensor] = []
    keep: Any = lambda z, hook: seen.append(z.detach())  # noqa: E731
    with (
        whole.hooks(fwd_hooks=[("blocks.1.attn.hook_z", keep)]),
        part.hooks(fwd_hooks=[("blocks.0.attn.hook_z", keep)]),
    ):
        model(TOKENS)
    assert len(seen) == 2 and torch.equal(*seen)
    assert torch.equal(part.layers[0].W_O, whole.layers[1].W_O)


def test_tokens_and_positions_beyond_an_embedding_are_refused() -> None:
    model = plain_model("scaled")
    for batch, words in ((TOKENS + 10, "index 29 to the embedding 'wte', which has 20 rows"), (-TOKENS, "index -19")):
        with pytest.raises(sl.StagelensError, match=words):
            sl.watch(model, batch)
    with pytest.raises(sl.StagelensError, match=r"index 99 to the embedding 'wpe'.* shorter sequences"):
        sl.watch(model, torch.zeros(2, 100, dtype=torch.long))
    past = hugging_face("gpt2")(TOKENS[:, :12], use_cache=True).past_key_values
    with pytest.raises(sl.StagelensError, match="without cached keys"):
        sl.watch(hugging_face("gpt2"), {"input_ids": TOKENS[:, 12:], "past_key_values": past})
    with pytest.raises(sl.StagelensError, match=r"tensor of shape \[\]; it must return logits"):
        sl.watch(model, TOKENS, forward=lambda model, batch: model(batch).mean())
