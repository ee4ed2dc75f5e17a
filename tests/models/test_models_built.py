"""Transformers built for training: hooks, copies, files, casts, seeds, devices, and the errors of wrong arguments."""

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

from kit.built_models import POSITIONS, build, close, hand_written, randomize, some_tokens
from stagelens.base.errors import UsageError
from stagelens.models import ToyConfig

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
