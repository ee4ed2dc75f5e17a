"""The fused forward path against TransformerLens' own, over random architectures; no hook is ever missed."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from transformer_lens import HookedTransformer

import stagelens as sl
from kit.fast_models import TOLERANCE, assert_near, explicit, gradients, inputs_for, randomize, small, taken, theirs
from stagelens.models import SlowForward, Transformer, build_transformer, fast_forward as fast
from stagelens.models.covered import covers


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, object]:
    """Random arguments of build_transformer, with every option.

    d_model is at least 8, because a layer norm of two numbers leaves only a sign, whose gradient is pure rounding.
    """
    heads, positions = draw(st.integers(1, 3)), draw(st.sampled_from(["learned", "sinusoidal", "alibi", "none"]))
    continuous, causal = draw(st.booleans()), draw(st.booleans())
    return {
        "n_layers": draw(st.integers(1, 3)),
        "n_heads": heads,
        "d_model": heads * 2 * draw(st.integers(4, 6)),
        "d_head": draw(st.one_of(st.none(), st.integers(1, 5))),
        "n_ctx": 7,
        "d_mlp": draw(st.one_of(st.none(), st.integers(1, 9))),
        "activation": draw(st.sampled_from(["relu", "gelu", "gelu_new", "silu", "relu2"])),
        "normalization": draw(st.sampled_from(["layer", "none"])),
        "positions": positions,
        "alibi_slope": draw(st.floats(0.0, 2.0)) if positions == "alibi" and draw(st.booleans()) else None,
        "causal": causal,
        "own_token": draw(st.booleans()) or not causal,
        "dropout": draw(st.sampled_from([0.0, 0.3])),
        "seed": draw(st.integers(0, 99)),
        **({"d_in": 3, "d_out": draw(st.integers(1, 4))} if continuous else {"d_vocab": 5}),
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    architecture=architectures(),
    length=st.integers(1, 7),
    queries=st.sampled_from([slice(None), slice(-1, None), slice(0, 1), slice(-3, None), slice(None, None, 2)]),
    short=st.sampled_from([0, 128]),
    dtype=st.sampled_from([*TOLERANCE]),
    training=st.booleans(),
)
def test_logits_and_gradients_are_transformer_lens_own(
    architecture: dict[str, object], length: int, queries: slice, short: int, dtype: torch.dtype, training: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "SHORT", short)  # by the fused kernel, or by products
        compare(architecture, length, queries, dtype, training)


def compare(architecture: dict[str, object], length: int, queries: slice, dtype: torch.dtype, training: bool) -> None:
    if training:
        architecture["dropout"] = 0.0  # its masks differ; see below
    model = randomize(build_transformer(**architecture, dtype=dtype)).train(training)
    inputs = inputs_for(model, length=length)
    assert covers(model, inputs)
    expected, found = explicit(model, inputs)[:, queries], model.answers(inputs, queries)
    assert found.dtype == dtype
    assert_near({"logits": found}, {"logits": expected})
    assert torch.equal(model(inputs), fast.logits(model, inputs))
    assert torch.equal(found, fast.logits(model, inputs, queries))
    assert_near(gradients(model, found), gradients(model, expected))


@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_dropout_has_the_same_distribution(positions: str) -> None:
    """Without layer norms the mean and the variance of the logits over the masks tell every rate and scale."""
    model = randomize(
        build_transformer(
            n_layers=1, n_heads=2, d_model=4, n_ctx=5, d_vocab=3, d_mlp=6, dropout=0.3, normalization="none",
            positions=positions, dtype=torch.float64, seed=0,
        )
    )  # fmt: skip
    tokens = inputs_for(model, batch=1, length=5)[:, [0] * 5].expand(20_000, -1) % 3
    torch.manual_seed(0)
    with torch.no_grad():
        found, expected = model(tokens)[:, -1], explicit(model, tokens)[:, -1]  # [sample, token]
    n = len(tokens)
    spread = expected.std(0)
    assert ((found.mean(0) - expected.mean(0)).abs() < 5 * spread * (2 / n) ** 0.5).all()
    kurtosis = ((expected - expected.mean(0)) / spread).pow(4).mean(0)
    assert ((found.var(0) / spread.square() - 1).abs() < 5 * (2 * (kurtosis - 1) / n).sqrt()).all()


def test_dropout_repeats_with_torchs_seed() -> None:
    model = build_transformer(n_layers=1, n_heads=2, d_model=4, n_ctx=5, d_vocab=3, dropout=0.3, seed=0)
    tokens = inputs_for(model, length=5) % 3
    torch.manual_seed(4)
    first = model(tokens)
    torch.manual_seed(4)
    assert torch.equal(model(tokens), first)


# Copies, transforms, second derivatives.


def test_a_copy_computes_with_its_own_parameters() -> None:
    model = small(positions="alibi")
    twin = randomize(copy.deepcopy(model))
    tokens = inputs_for(model)
    assert not torch.allclose(twin(tokens), model(tokens))
    torch.testing.assert_close(twin(tokens), explicit(twin, tokens), rtol=1e-5, atol=1e-5)


class Reader(torch.nn.Module):
    def __init__(self, model: Transformer, queries: slice) -> None:
        super().__init__()
        self.model, self.queries = model, queries

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.answers(tokens, self.queries)


@pytest.mark.parametrize("queries", [slice(None), slice(-1, None)])
@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_many_models_at_once(positions: str, queries: slice) -> None:
    """`torch.func.vmap` over stacked parameters gives the gradient of each model, without a warning."""
    models = [Reader(small(seed=seed, positions=positions, dtype=torch.float64), queries) for seed in range(3)]
    parameters, buffers = stack_module_state(models)
    tokens = inputs_for(models[0].model)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(models[0], (parameters, buffers), (tokens,)).square().mean()

    found = vmap(grad(loss))(parameters, buffers)
    for index, model in enumerate(models):
        model.zero_grad()
        model(tokens).square().mean().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][index], parameter.grad, rtol=1e-10, atol=1e-10)


def test_a_model_in_evaluation_mode_can_be_differentiated_twice() -> None:
    model = small(dtype=torch.float64).eval()
    tokens = inputs_for(model)
    curvatures = []
    for forward in (model, lambda given: explicit(model, given)):
        first = torch.autograd.grad(forward(tokens).square().mean(), model.blocks[0].attn.W_Q, create_graph=True)[0]
        curvatures.append(torch.autograd.grad(first.square().sum(), model.blocks[1].attn.W_K)[0])
    torch.testing.assert_close(*curvatures, rtol=1e-9, atol=1e-12)
    assert curvatures[0].abs().max() > 0


# Models of users.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attn_only": True, "normalization_type": None, "use_attn_scale": False},
        {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
        {"normalization_type": "LNPre", "scale_attn_by_inverse_layer_idx": True, "act_fn": "gelu_fast"},
        {"attention_dir": "bidirectional", "use_attn_result": True, "use_split_qkv_input": True, "act_fn": "solu"},
    ],
)
def test_a_users_own_model_becomes_fast(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    model = theirs(**options)
    tokens = torch.randint(5, (3, 7), generator=torch.Generator().manual_seed(0))
    before = model(tokens)
    assert sl.fast(model) is model and sl.fast(model) is model
    assert taken(model, tokens, monkeypatch) == "fast"
    torch.testing.assert_close(model(tokens), before, rtol=1e-10, atol=1e-10)
    for name, value in gradients(model, before).items():
        torch.testing.assert_close(gradients(model, model(tokens))[name], value, rtol=1e-10, atol=1e-10)
    assert torch.equal(model.run_with_cache(tokens)[0], before)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"positional_embedding_type": "rotary"}, "rotary positions"),
        ({"gated_mlp": True}, "gated_mlp = True"),
        ({"normalization_type": "RMS"}, "a part of type RMSNorm"),
        ({"act_fn": "solu_ln"}, "act_fn = 'solu_ln'"),
        ({"parallel_attn_mlp": True}, "parallel_attn_mlp = True"),
        ({"attn_scores_soft_cap": 3.0}, "attn_scores_soft_cap = 3.0"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
    ],
)
def test_a_model_that_is_not_covered_is_reported_and_stays_as_it_is(options: dict[str, object], reason: str) -> None:
    model = theirs(**options)
    tokens = torch.randint(5, (3, 7), generator=torch.Generator().manual_seed(0))
    before = model(tokens)
    with pytest.warns(SlowForward, match=f"TransformerLens' speed: .*{reason}"):
        assert sl.fast(model) is model
    assert type(model) is HookedTransformer
    assert torch.equal(model(tokens), before)


def test_other_models_pass_through() -> None:
    from kit.tasks import TwoMaps

    model = TwoMaps(0)
    assert sl.fast(model) is model and type(model) is TwoMaps
