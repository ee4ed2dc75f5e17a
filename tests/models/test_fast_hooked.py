"""Hooks on models with a fused forward path are never missed, and positions that are not read are not computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformer_lens import HookedTransformer, components as lens

from kit.fast_models import assert_near, explicit, inputs_for, randomize, small, taken
from stagelens.host.host import make_host
from stagelens.models import Transformer, fast_forward as fast


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
def test_torchs_own_hooks_are_called(register: object, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_hook_on_the_model_itself_is_called_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_calls_with_further_options_take_transformer_lens_path(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_hooks_and_caches_see_every_position(place: str) -> None:
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
