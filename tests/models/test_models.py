"""Transformers built for training, against the same mathematics written out in plain torch (float64)."""

from __future__ import annotations

import math

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from kit.built_models import POSITIONS, build, close, hand_written, randomize, some_tokens
from stagelens import Recorder
from stagelens.base.errors import UsageError

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
    """The pattern is that of full attention without its diagonal, renormalized. The first query is unchanged."""
    whole, model = (randomize(build(positions=positions, n_layers=1, own_token=own)) for own in (True, False))
    tokens = some_tokens()
    before, after = (m.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"] for m in (whole, model))
    expected = before.clone()
    expected[..., range(1, 7), range(1, 7)] = 0
    close(after, expected / expected.sum(-1, keepdim=True))
    assert (after[..., 0, 0] == 1).all()
    found = Recorder(model, ["attention_sparsity"], tokens).context.visible(after, 0)
    assert torch.equal(found, (after > 0).any(0).any(0))


def test_the_own_token_is_masked_in_causal_attention_only() -> None:
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
