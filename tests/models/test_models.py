"""Transformers built for training, against the same mathematics written out in plain torch (float64)."""

from __future__ import annotations

import copy
import math
import random
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformer_lens import HookedTransformer, HookedTransformerConfig

from stagelens import Recorder
from stagelens.base.errors import UsageError
from stagelens.models import ToyConfig, Transformer, build_transformer

SIZES = {
    "n_layers": 2,
    "n_heads": 3,
    "d_model": 12,
    "n_ctx": 7,
    "d_mlp": 20,
    "dtype": torch.float64,
    "seed": 0,
}
POSITIONS = ["learned", "sinusoidal", "alibi", "none"]


def build(**options: object) -> Transformer:
    options = SIZES | {"d_vocab": None if "d_in" in options else 5} | options
    return build_transformer(**options)


def randomize(model: Transformer, seed: int = 1) -> Transformer:
    """Every parameter random, so that no bias, layer norm or slope is at a value that hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def some_tokens(batch: int = 4, length: int = 7, d_vocab: int = 5) -> Tensor:
    return torch.randint(d_vocab, (batch, length), generator=torch.Generator().manual_seed(2))


# The hand-written transformer.


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w + b


def attention_pattern(x: Tensor, p: dict[str, Tensor], at: str, causal: bool, slope: Tensor | None) -> Tensor:
    """x [batch, pos, d_model] -> [batch, head, query, key]."""
    T = x.shape[1]
    q = torch.einsum("btd,hde->bhte", x, p[at + "W_Q"]) + p[at + "b_Q"][:, None, :]
    k = torch.einsum("btd,hde->bhte", x, p[at + "W_K"]) + p[at + "b_K"][:, None, :]
    scores = torch.einsum("bhqe,bhke->bhqk", q, k) / math.sqrt(q.shape[-1])
    rows = []
    for query in range(T):
        row = scores[:, :, query, :]
        if slope is not None:
            lag = torch.tensor([abs(query - key) for key in range(T)], dtype=x.dtype)
            row = row - slope[None, :, None] * lag
        if causal:
            row = torch.cat([row[..., : query + 1], torch.full_like(row[..., query + 1 :], -math.inf)], dim=-1)
        rows.append(torch.exp(row) / torch.exp(row).sum(-1, keepdim=True))
    return torch.stack(rows, dim=2)


def hand_written(
    embedded: Tensor, p: dict[str, Tensor], *, n_layers: int = 2, norm: bool = True, causal: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """embedded [batch, pos, d_model] with positions -> logits [batch, pos, d_out], each layer's pattern."""
    x, patterns = embedded, []
    for layer in range(n_layers):
        at = f"blocks.{layer}.attn."
        y = layer_norm(x, p[f"blocks.{layer}.ln1.w"], p[f"blocks.{layer}.ln1.b"]) if norm else x
        pattern = attention_pattern(y, p, at, causal, p.get(at + "alibi_slope"))
        patterns.append(pattern)
        v = torch.einsum("btd,hde->bhte", y, p[at + "W_V"]) + p[at + "b_V"][:, None, :]
        x = x + torch.einsum("bhqk,bhke,hed->bqd", pattern, v, p[at + "W_O"]) + p[at + "b_O"]
        if f"blocks.{layer}.mlp.W_in" in p:
            y = layer_norm(x, p[f"blocks.{layer}.ln2.w"], p[f"blocks.{layer}.ln2.b"]) if norm else x
            hidden = (y @ p[f"blocks.{layer}.mlp.W_in"] + p[f"blocks.{layer}.mlp.b_in"]).clamp(min=0)
            x = x + hidden @ p[f"blocks.{layer}.mlp.W_out"] + p[f"blocks.{layer}.mlp.b_out"]
    if norm:
        x = layer_norm(x, p["ln_final.w"], p["ln_final.b"])
    return x @ p["unembed.W_U"] + p["unembed.b_U"], patterns


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# Each architecture against the formula.


@pytest.mark.parametrize("causal", [True, False])
def test_logits_of_the_plain_transformer(causal: bool) -> None:
    model = randomize(build(d_out=6, causal=causal))
    tokens = some_tokens(length=5)
    p = model.state_dict()
    logits, _ = hand_written(p["embed.W_E"][tokens] + p["pos_embed.W_pos"][:5], p, causal=causal)
    assert logits.shape == (4, 5, 6)
    close(model(tokens), logits)


def test_attention_only_without_layer_norm() -> None:
    model = randomize(build(d_mlp=None, normalization="none", positions="none", d_head=5))
    tokens = some_tokens()
    p = dict(model.named_parameters())
    assert not any("mlp" in name or "ln" in name or "pos" in name for name in p)
    close(model(tokens), hand_written(p["embed.W_E"][tokens], p, norm=False)[0])


def test_plain_model_equals_transformer_lens_with_the_same_weights() -> None:
    model = randomize(build())
    with pytest.warns(DeprecationWarning, match="HookedTransformer is deprecated"):
        theirs = HookedTransformer(
            HookedTransformerConfig(
                n_layers=2, n_heads=3, d_model=12, d_head=4, d_mlp=20, n_ctx=7, d_vocab=5, act_fn="relu",
                dtype=torch.float64, device="cpu",
            )
        )  # fmt: skip
    theirs.load_state_dict(model.state_dict())
    tokens = some_tokens()
    assert torch.equal(model.run_with_cache(tokens)[0], theirs(tokens))
    close(model(tokens), theirs(tokens))


def test_sinusoidal_positions_follow_the_formula_and_are_not_trained() -> None:
    model = randomize(build(positions="sinusoidal"))
    table = torch.tensor(
        [[(math.cos if i % 2 else math.sin)(t / 10000 ** (2 * (i // 2) / 12)) for i in range(12)] for t in range(7)],
        dtype=torch.float64,
    )
    close(model.W_pos, table)
    assert "pos_embed.W_pos" not in dict(model.named_parameters())
    assert "pos_embed.W_pos" in model.state_dict()

    tokens = some_tokens(length=6)
    p = model.state_dict()
    logits = model(tokens)
    close(logits, hand_written(p["embed.W_E"][tokens] + table[:6], p)[0])

    logits.square().sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1).step()
    close(model.W_pos, table)


@pytest.mark.parametrize("positions", ["alibi", "none"])
def test_without_its_own_token_a_query_attends_to_the_tokens_before_it(positions: str) -> None:
    """The pattern is that of the whole attention without its diagonal, renormalized; the first query is as it was."""
    whole, model = (randomize(build(positions=positions, n_layers=1, own_token=own)) for own in (True, False))
    tokens = some_tokens()
    before, after = (m.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"] for m in (whole, model))
    expected = before.clone()
    expected[..., range(1, 7), range(1, 7)] = 0
    close(after, expected / expected.sum(-1, keepdim=True))
    assert (after[..., 0, 0] == 1).all()
    found = Recorder(model, ["attention_sparsity"], tokens).context.visible(after, 0)
    assert torch.equal(found, (after > 0).any(0).any(0))


def test_the_own_token_is_hidden_from_causal_attention_only() -> None:
    with pytest.raises(UsageError, match="own_token=False is for causal attention"):
        build(causal=False, own_token=False)


@pytest.mark.parametrize("causal", [True, False])
def test_alibi_pattern_and_gradient_of_the_slopes(causal: bool) -> None:
    model = randomize(build(positions="alibi", causal=causal))
    tokens = some_tokens()
    p = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    expected, patterns = hand_written(p["embed.W_E"][tokens], p, causal=causal)
    logits, cache = model.run_with_cache(tokens)
    close(logits, expected)
    for layer in range(2):
        close(cache[f"blocks.{layer}.attn.hook_pattern"], patterns[layer].detach())

    logits.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, p[name].grad, rtol=1e-8, atol=1e-8)
    for layer in range(2):
        slope = model.blocks[layer].attn.alibi_slope
        assert slope.shape == (3,)
        assert slope.grad.abs().min() > 1e-3


def test_alibi_slopes_start_at_the_given_value() -> None:
    model = build(positions="alibi", alibi_slope=0.3)
    assert model.state_dict()["blocks.1.attn.alibi_slope"].tolist() == [0.3, 0.3, 0.3]
    published = build(positions="alibi", n_heads=4).state_dict()["blocks.0.attn.alibi_slope"]
    assert published.tolist() == [2**-2, 2**-4, 2**-6, 2**-8]


def test_alibi_has_no_longest_sequence() -> None:
    model = randomize(build(positions="alibi"))
    tokens = some_tokens(length=11)
    p = model.state_dict()
    close(model(tokens), hand_written(p["embed.W_E"][tokens], p)[0])


def test_alibi_with_cached_keys_continues_where_the_keys_end() -> None:
    from transformer_lens import TransformerLensKeyValueCache

    model = randomize(build(positions="alibi")).eval()
    tokens, seen = some_tokens(), torch.ones(4, 7, dtype=torch.long)
    cache = TransformerLensKeyValueCache.init_cache(model.cfg, "cpu", 4)
    first = model(tokens[:, :4], past_kv_cache=cache, attention_mask=seen[:, :4])
    rest = model(tokens[:, 4:], past_kv_cache=cache, attention_mask=seen[:, 4:])
    close(torch.cat([first, rest], dim=1), model(tokens))


@pytest.mark.parametrize("positions", POSITIONS)
def test_continuous_inputs(positions: str) -> None:
    model = randomize(build(d_in=9, d_out=2, positions=positions))
    inputs = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p = model.state_dict()
    embedded = torch.einsum("bti,id->btd", inputs, p["embed.W_E"])
    if "pos_embed.W_pos" in p:
        embedded = embedded + p["pos_embed.W_pos"][:6]
    logits, cache = model.run_with_cache(inputs)
    close(logits, hand_written(embedded, p)[0])
    close(cache["blocks.0.hook_resid_pre"], embedded)
    close(model(embedded, start_at_layer=0), logits)
    assert (model.cfg.d_vocab, model.d_in) == (None, 9)


def test_one_hot_inputs_are_tokens() -> None:
    tokens = some_tokens()
    one_hot = torch.nn.functional.one_hot(tokens, 5).double()
    close(build(d_in=5, d_out=5)(one_hot), build(d_vocab=5)(tokens))


# Dropout.


def test_dropout_acts_in_training_mode_only() -> None:
    tokens = some_tokens()
    plain, dropped = build().eval(), build(dropout=0.4)
    assert plain.state_dict().keys() == dropped.state_dict().keys()
    dropped.eval()
    assert torch.equal(dropped(tokens), plain(tokens))
    assert torch.equal(dropped(tokens), dropped(tokens))
    dropped.train()
    assert not torch.equal(dropped(tokens), dropped(tokens))


def test_dropout_repeats_with_torchs_seed() -> None:
    model, tokens = build(dropout=0.4), some_tokens()
    torch.manual_seed(5)
    first = model(tokens)
    torch.manual_seed(5)
    assert torch.equal(model(tokens), first)


def test_dropout_has_its_rate_and_scale_in_all_four_places() -> None:
    """Each element divided by its input is 0 with probability 0.25, else 1 / 0.75."""
    rate = 0.25
    model = randomize(build(n_layers=1, dropout=rate, n_ctx=40))
    tokens = some_tokens(batch=64, length=40)
    torch.manual_seed(0)
    _, cache = model.run_with_cache(tokens)
    p = model.state_dict()
    attn, mlp = model.blocks[0].attn, model.blocks[0].mlp

    # z = dropped pattern @ v: with v the identity per key, z would be the dropped pattern itself.
    v = torch.eye(40, dtype=torch.float64).expand(64, 3, 40, 40).transpose(1, 2)  # [batch, key, head, key]
    pattern = cache["pattern", 0]
    assert torch.allclose(pattern.sum(-1), torch.ones((), dtype=torch.float64)), "hook_pattern is undropped"
    dropped_pattern = attn.calculate_z_scores(v, pattern).transpose(1, 2)  # [batch, head, query, key]
    z = cache["z", 0]  # [batch, query, head, d_head]
    attn_out = torch.einsum("bqhe,hed->bqd", z, p["blocks.0.attn.W_O"]) + p["blocks.0.attn.b_O"]
    undropped_z = torch.einsum("bhqk,bkhe->bqhe", pattern, cache["v", 0])
    assert not torch.allclose(z, undropped_z), "z reads the dropped pattern"
    hidden = cache["post", 0]
    visible = torch.ones(40, 40).tril().bool().expand(64, 3, 40, 40)
    pairs = {
        "embedding": (cache["blocks.0.hook_resid_pre"], cache["hook_embed"] + cache["hook_pos_embed"]),
        "pattern": (dropped_pattern[visible], pattern[visible]),
        "attention": (cache["blocks.0.hook_attn_out"], attn_out),
        "mlp": (cache["blocks.0.hook_mlp_out"], hidden @ mlp.W_out + mlp.b_out),
    }
    for place, (after, before) in pairs.items():
        gone = after == 0
        n = gone.numel()
        assert abs(gone.double().mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / n), place
        torch.testing.assert_close(after[~gone], before[~gone] / (1 - rate), rtol=1e-10, atol=1e-10, msg=place)
    resid_mid = cache["blocks.0.hook_resid_pre"] + cache["blocks.0.hook_attn_out"]
    close(cache["blocks.0.hook_resid_mid"], resid_mid)
    close(cache["blocks.0.hook_resid_post"], resid_mid + cache["blocks.0.hook_mlp_out"])


# Hooks, copies, files, casts.


@pytest.mark.parametrize("positions", POSITIONS)
def test_hook_pattern_is_the_pattern_that_is_used(positions: str) -> None:
    model = randomize(build(positions=positions, dropout=0.3)).eval()
    tokens = some_tokens()
    _, cache = model.run_with_cache(tokens)
    z = torch.einsum("bhqk,bkhe->bqhe", cache["pattern", 1], cache["v", 1])
    close(cache["z", 1], z)
    close(torch.softmax(cache["attn_scores", 1], dim=-1), cache["pattern", 1])

    def uniform(pattern: Tensor, hook: object) -> Tensor:
        return torch.full_like(pattern, 1 / 7)

    with model.hooks([("blocks.1.attn.hook_pattern", uniform)]):
        _, changed = model.run_with_cache(tokens)
    close(changed["z", 1], cache["v", 1].mean(1, keepdim=True).expand(-1, 7, -1, -1))


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_known_hook_fires(positions: str) -> None:
    model = build(positions=positions, dropout=0.1)
    _, cache = model.run_with_cache(some_tokens())
    per_layer = ["hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out"]
    per_layer += [f"attn.hook_{name}" for name in ("q", "k", "v", "z", "attn_scores", "pattern")]
    expected = {f"blocks.{layer}.{name}" for layer in range(2) for name in per_layer} | {"hook_embed"}
    expected |= {"hook_pos_embed"} if positions in ("learned", "sinusoidal") else set()
    assert expected <= cache.keys()
    assert ("hook_pos_embed" in model.hook_dict) == ("hook_pos_embed" in expected)
    assert cache["blocks.0.attn.hook_pattern"].shape == (4, 3, 7, 7)


@pytest.mark.parametrize("positions", POSITIONS)
def test_additions_survive_the_removal_of_hooks_and_copies_are_independent(positions: str) -> None:
    model = randomize(build(positions=positions, dropout=0.2)).eval()
    tokens = some_tokens()
    before = model(tokens)
    model.reset_hooks(including_permanent=True)
    assert torch.equal(model(tokens), before)

    twin = copy.deepcopy(model)
    assert torch.equal(twin(tokens), before)
    randomize(twin, seed=9)
    assert torch.equal(model(tokens), before)
    p = twin.state_dict()
    embedded = p["embed.W_E"][tokens] + p.get("pos_embed.W_pos", torch.zeros(7, 12, dtype=torch.float64))
    close(twin(tokens), hand_written(embedded, p)[0])


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("inputs", [{"d_vocab": 5}, {"d_in": 4, "d_out": 3}])
def test_safetensors_round_trip(positions: str, inputs: dict[str, int], tmp_path) -> None:
    model = randomize(build(positions=positions, **inputs))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = build(positions=positions, seed=8, **inputs)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x = some_tokens() if "d_vocab" in inputs else torch.ones(2, 3, 4, dtype=torch.float64)
    assert torch.equal(other(x), model(x))


def test_a_cast_changes_the_whole_computation(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = some_tokens()
    single = build(dtype=torch.float32, positions="alibi")
    for cast in (copy.deepcopy(single).double(), copy.deepcopy(single).to("cpu", torch.float64)):
        p = cast.state_dict()
        close(cast(tokens), hand_written(p["embed.W_E"][tokens], p)[0])
        assert cast.cfg.dtype == torch.float64
    assert build(dtype=torch.bfloat16, positions="alibi")(tokens).dtype == torch.bfloat16
    assert capsys.readouterr() == ("", "")


# Seeds and devices.


def test_weights_depend_on_the_seed_and_scale_alone() -> None:
    first = build().state_dict()
    torch.manual_seed(99)
    second, other, doubled = (
        build().state_dict(),
        build(seed=1).state_dict(),
        build(init_scale=2.0).state_dict(),
    )
    single = build(dtype=torch.float32).state_dict()
    for name, value in first.items():
        assert torch.equal(second[name], value)
        assert torch.equal(single[name].to(value.dtype), value.float().to(value.dtype))
        if name.rpartition(".")[2].startswith("W_"):
            assert not torch.equal(other[name], value)
            close(doubled[name], 2 * value)
        else:
            assert torch.equal(doubled[name], value)


def test_weights_have_the_documented_spread() -> None:
    model = build(d_model=96, d_mlp=200, n_ctx=300, d_vocab=300, init_scale=1.5)
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2].startswith("W_"):
            expected, n = 1.5 * 0.8 / math.sqrt(96), parameter.numel()
            assert abs(parameter.std().item() / expected - 1) < 5 / math.sqrt(2 * n), name


def test_the_callers_random_states_are_untouched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    build(positions="alibi", dropout=0.1)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


class OnlyMeta(TorchDispatchMode):
    """Fails as soon as an operation makes or reads a tensor that is not on the meta device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, out)):
            if isinstance(value, Tensor):
                assert value.device.type == "meta", f"{func} touched a tensor on {value.device}"
        return out


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("inputs", [{"d_vocab": 5}, {"d_in": 4, "d_out": 3}])
def test_on_the_meta_device_nothing_is_made_elsewhere(positions: str, inputs: dict[str, int]) -> None:
    if "d_vocab" in inputs:
        x = torch.zeros(2, 7, dtype=torch.long, device="meta")
    else:
        x = torch.zeros(2, 7, 4, dtype=torch.float64, device="meta")
    with OnlyMeta():
        model = build(positions=positions, dropout=0.1, device="meta", **inputs)
        logits, _ = model.run_with_cache(x)
        logits.sum().backward()
    assert logits.shape == (2, 7, 5 if "d_vocab" in inputs else 3)
    assert all(parameter.grad.device.type == "meta" for parameter in model.parameters())
    moved = build(positions=positions, **inputs).to("meta")
    with OnlyMeta():
        assert moved(x).shape == logits.shape


def test_building_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build().to("cpu").cpu()
        assert not caught
        with pytest.warns(DeprecationWarning, match="someone else"):  # and no other warning is lost
            warnings.warn("someone else", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr() == ("", "")


# Analysis tools of TransformerLens, and toy models.


@pytest.mark.parametrize("positions", POSITIONS)
def test_transformer_lens_can_fold_the_weights(positions: str) -> None:
    model = randomize(build(positions=positions)).eval()
    tokens = some_tokens()
    before = model(tokens).log_softmax(-1)
    model.process_weights_()
    torch.testing.assert_close(model(tokens).log_softmax(-1), before, rtol=1e-5, atol=1e-5)


def test_toy_models_and_transformers_share_the_names_of_their_config() -> None:
    toy = ToyConfig(n_layers=1, n_heads=2, n_ctx=3)
    cfg = build(causal=False).cfg
    assert (toy.n_layers, toy.n_heads, toy.n_ctx) == (1, 2, 3)
    assert (cfg.n_layers, cfg.n_heads, cfg.n_ctx) == (2, 3, 7)
    assert (toy.d_vocab, toy.attention_dir) == (None, "causal")
    assert (cfg.d_vocab, cfg.attention_dir) == (5, "bidirectional")


# Mistakes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 5}, r"n_heads = 5 does not divide d_model = 12; .* give d_head"),
        ({"n_layers": 0}, r"n_layers = 0 is not a size"),
        ({"d_mlp": -1}, r"d_mlp = -1 is not a size"),
        ({"d_in": 0, "d_out": 1}, r"d_in = 0 is not a size"),
        ({"d_vocab": 5, "d_in": 3}, r"d_vocab = 5 and d_in = 3 were given; give exactly one"),
        ({"d_vocab": None}, r"d_vocab = None and d_in = None were given; give exactly one"),
        ({"d_in": 3}, r"d_in = 3 was given without d_out"),
        ({"positions": "sinus"}, r"unknown positions 'sinus'.*known: alibi, learned, none, sinusoidal"),
        ({"activation": "rleu"}, r"unknown activation 'rleu' .did you mean 'relu'"),
        ({"normalization": "batch"}, r"unknown normalization 'batch'.*known: layer, none"),
        ({"dropout": 1.0}, r"dropout = 1.0 is not a rate"),
        ({"dropout": -0.1}, r"dropout = -0.1 is not a rate"),
        ({"dropout": float("nan")}, r"dropout = nan is not a rate"),
        ({"init_scale": -1.0}, r"init_scale = -1.0 is not a scale"),
        ({"positions": "sinusoidal", "d_model": 9}, r"d_model = 9 is odd"),
        ({"alibi_slope": 1.0}, r"alibi_slope = 1.0 was given, but positions = 'learned'"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_sequence_longer_than_the_table_is_named(positions: str) -> None:
    with pytest.raises(UsageError, match=r"8 positions is longer than the model's n_ctx = 7"):
        build(positions=positions)(some_tokens(length=8))


def test_heads_need_not_divide_where_their_size_is_given() -> None:
    assert build(n_heads=5, d_head=4)(some_tokens()).shape == (4, 7, 5)
