"""The fused forward path against TransformerLens' own, over random architectures; no hook is ever missed."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from transformer_lens import HookedTransformer, HookedTransformerConfig, components as lens

import stagelens as sl
from stagelens.host.host import make_host
from stagelens.models import FastTransformer, SlowForward, Transformer, build_transformer, fast_forward as fast
from stagelens.models.covered import covers

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, object]:
    """Random arguments of build_transformer, with every option.

    From d_model = 8 up: a layer norm of two numbers leaves a sign only, whose gradient is nothing but rounding.
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


# Models with hooks.


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


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_hook_on_any_point_sees_what_it_saw_before(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(dtype=torch.float64)
    tokens = inputs_for(model)
    assert taken(model, tokens, monkeypatch) == "fast"
    _, cache = model.run_with_cache(tokens)
    for name in cache:
        seen: list[Tensor] = []

        def keep(value: Tensor, hook: object, seen: list[Tensor] = seen) -> None:
            seen.append(value.detach().clone())

        with model.hooks(**{f"{direction}_hooks": [(name, keep)]}):
            assert taken(model, tokens, monkeypatch) == "explicit"
            seen.clear()
            model(tokens).square().sum().backward()
        assert seen, name
        if direction == "fwd":
            assert torch.equal(seen[0], cache[name]), name
    assert taken(model, tokens, monkeypatch) == "fast"
    model.add_perma_hook("hook_embed", lambda value, hook: 2 * value)
    torch.testing.assert_close(model(tokens), explicit(model, tokens), rtol=0, atol=0)


@pytest.mark.parametrize(
    "register",
    [
        lambda model, hook: model.blocks[0].register_forward_hook(hook),
        lambda model, hook: model.blocks[1].attn.register_forward_pre_hook(hook),
        lambda model, hook: model.blocks[1].mlp.register_full_backward_hook(hook),
        lambda model, hook: model.unembed.register_full_backward_pre_hook(hook),
        lambda model, hook: torch.nn.modules.module.register_module_forward_hook(hook),
    ],
)
def test_torchs_own_hooks_are_heard(register: object, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    tokens, calls = inputs_for(model), []
    handle = register(model, lambda *args: calls.append(1))
    try:
        assert taken(model, tokens, monkeypatch) == "explicit"
        model(tokens).sum().backward()
        assert calls
    finally:
        handle.remove()
    assert taken(model, tokens, monkeypatch) == "fast"


def test_a_hook_on_the_model_itself_is_heard_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model, outputs = small(), []
    model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    tokens = inputs_for(model)
    assert taken(model, tokens, monkeypatch) == "fast"
    assert torch.equal(outputs[0], fast.logits(model, tokens))


def test_parts_that_a_user_replaced_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(lens.MLP):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros_like(x)

    model = small()
    tokens = inputs_for(model)
    model.blocks[0].mlp = Silent(model.cfg)
    assert taken(model, tokens, monkeypatch) == "explicit"
    model = small()
    model.blocks[0].attn.forward = lambda query_input, **rest: torch.zeros_like(query_input)
    assert taken(model, tokens, monkeypatch) == "explicit"
    model = small()
    model.cfg.attn_scores_soft_cap = 1.0
    assert taken(model, tokens, monkeypatch) == "explicit"
    model.cfg.attn_scores_soft_cap = -1.0
    model.cfg.window_size, model.blocks[1].attn.attn_type = 2, "local"
    assert taken(model, tokens, monkeypatch) == "fast"
    torch.testing.assert_close(model(tokens), explicit(model, tokens), rtol=1e-5, atol=1e-5)


def test_calls_that_ask_for_more_take_transformer_lens_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(dtype=torch.float64)
    tokens = inputs_for(model)
    resid = model(tokens, stop_at_layer=1)
    assert resid.shape == (3, 7, 8)
    torch.testing.assert_close(model(resid, start_at_layer=1), model(tokens), rtol=1e-10, atol=1e-10)
    assert model(tokens, return_type=None) is None
    assert torch.equal(model(tokens[0]), explicit(model, tokens[0]))  # one sequence without a batch
    mask = torch.ones_like(tokens)
    assert torch.equal(
        model(tokens, attention_mask=mask), HookedTransformer.forward(model, tokens, attention_mask=mask)
    )
    assert model(tokens[:0]).shape == (0, 7, 5)
    assert model.answers(tokens[:0], slice(-1, None)).shape == (0, 1, 5)
    half = small(dtype=torch.bfloat16)
    assert taken(half, tokens, monkeypatch) == "explicit"


@pytest.mark.parametrize("return_type", ["loss", "both"])
def test_the_loss_of_the_next_token(return_type: str) -> None:
    model = small(dtype=torch.float64)
    tokens = inputs_for(model)
    found = model(tokens, return_type=return_type)
    expected = HookedTransformer.forward(model, tokens, return_type=return_type)
    assert type(found) is type(expected)
    for one, other in zip(*([x] if isinstance(x, Tensor) else x for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


# Only some positions are read.


def test_positions_that_are_not_read_cost_nothing_in_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns the cost in rows that the last layer's MLP reads: those of the queries alone."""
    model, rows, own = small(), [], fast._mlp
    monkeypatch.setattr(fast, "_mlp", lambda mlp, x: rows.append(len(x)) or own(mlp, x))
    tokens = inputs_for(model)  # [3, 7]
    model(tokens)
    model.answers(tokens, slice(-2, None))
    assert rows == [3 * 7, 3 * 7, 3 * 7, 3 * 2]


@pytest.mark.parametrize("place", ["blocks.0.attn.hook_pattern", "itself", "forward", "subclass"])
def test_whoever_looks_sees_every_position(place: str) -> None:
    model, seen = small(dtype=torch.float64), []
    tokens, own = inputs_for(model), model.forward
    if place == "itself":
        model.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    elif place == "forward":
        model.forward = lambda given: seen.append(given.shape[1]) or own(given)
    elif place == "subclass":

        class Counting(Transformer):
            def forward(self, given: Tensor) -> Tensor:
                seen.append(given.shape[1])
                return super().forward(given)

        model.__class__ = Counting
    else:
        model.add_perma_hook(place, lambda pattern, hook: seen.append(pattern.shape[2]))
    found = model.answers(tokens, slice(-1, None))
    assert seen == [7]
    torch.testing.assert_close(found, explicit(small(dtype=torch.float64), tokens)[:, -1:], rtol=1e-10, atol=1e-10)


class Bare(torch.nn.Module):
    """A model that has no `answers`."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return explicit(self.model, inputs)


@pytest.mark.parametrize("name", ["emergence/recall", "emergence/regression"])
def test_a_task_whose_loss_reads_the_end_has_the_same_loss_either_way(name: str) -> None:
    kind = make_host().task(name).load()
    task = kind(kind.Config(batch_size=4))
    model, batch = randomize(task.build_model()), task.batches("cpu")(0)
    expected, found = task.loss(Bare(model), batch), task.loss(model, batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    names = [name for name, _ in model.named_parameters()]
    ways = [torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected)]
    assert_near(*(dict(zip(names, way, strict=True)) for way in ways))


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
    """`torch.func.vmap` over stacked parameters gives each model's own gradient, and says nothing."""
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


def theirs(**options: object) -> HookedTransformer:
    sizes = {"n_layers": 2, "d_model": 8, "n_ctx": 7, "d_head": 4, "n_heads": 2, "d_mlp": 6, "d_vocab": 5}
    sizes |= {"act_fn": "gelu", "dtype": torch.float64, "device": "cpu", "seed": 3}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return HookedTransformer(HookedTransformerConfig(**sizes | options))


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
