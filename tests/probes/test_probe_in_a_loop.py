"""The recorder in a user's own training loop, own probes, and what happens when a probe is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.probe_models import PositionalToy, Written, next_token_loss, tokens, transformer, written_pattern
from stagelens import Probe, Reading
from stagelens.recording.probes import DoesNotApply

GOOD = "attention_sparsity"


def test_three_lines_in_a_plain_loop():
    model, batch = transformer(), tokens()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    recorder = sl.Recorder(model, batch=batch)  # 1
    for step in range(6):
        loss = next_token_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.measure(step, loss=loss)  # 2
    series = recorder.timeline["attention_sparsity/effective_keys"]  # 3

    assert series.shape == (6, 2, 3) and not recorder.problems
    assert recorder.timeline["loss"].values[-1] < recorder.timeline["loss"].values[0]
    assert {"induction/prefix_matching", "qk_alignment/explained", "weight_norms/norm"} <= set(recorder.timeline)
    assert {name for name in recorder.skipped if "/" not in name} == {"kl_to_references", "conserved"}


def test_measuring_does_not_change_the_training():
    def trained(measure):
        model, batch = transformer(dropout=0.2), tokens()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        every = [*sl.Recorder(model, batch=batch).probes, "gradient", "head_ablation", "curvature"]
        recorder = sl.Recorder(model, probes=every, batch=batch, loss=next_token_loss)
        torch.manual_seed(0)
        for step in range(3):
            optimizer.zero_grad()
            next_token_loss(model, batch).backward()
            if measure:
                recorder.measure(step)  # between backward and step, the worst moment
            optimizer.step()
        assert not recorder.problems
        return torch.nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(trained(True), trained(False))


def test_a_function_becomes_a_probe():
    @sl.probe(hooks="attn.hook_pattern", dims=("head",))
    def first_key(pattern, context):
        """attention to the first key"""
        return pattern[..., 0].mean((0, 2))

    model, batch = transformer(), tokens()
    recorder = sl.Recorder(model, probes=[first_key], batch=batch)
    recorder.measure(0)
    found = recorder.timeline["first_key/value"]
    _, cache = model.run_with_cache(batch)
    expected = torch.stack([cache["pattern", layer][..., 0].mean((0, 2)) for layer in range(2)])
    assert found.dims == ("step", "layer", "head")
    np.testing.assert_allclose(found[0], expected.detach(), rtol=1e-6)
    assert first_key.title == "attention to the first key"


class Wrong(Probe):
    name = "wrong"
    hooks = ("attn.hook_pattern",)

    def reduce(self, activation, site, context):
        return activation.mean()

    def readings(self, reduced, context):
        yield Reading("value", torch.stack(list(reduced.values())), ("layer",))


class RaisesInReduce(Wrong):
    def reduce(self, activation, site, context):
        if site.layer == 1:
            raise RuntimeError("no luck in layer one")
        return super().reduce(activation, site, context)


class RaisesInReadings(Wrong):
    def readings(self, reduced, context):
        raise RuntimeError("no luck\nat the end")


class WithoutDims(Wrong):
    def readings(self, reduced, context):
        yield Reading("value", torch.zeros(2, 3))


class ChangesShape(Wrong):
    def readings(self, reduced, context):
        yield Reading("value", torch.ones(2 + int(context.step)), ("layer",))


class BecomesNan(Wrong):
    def readings(self, reduced, context):
        yield Reading("value", torch.tensor([1.0, torch.nan if context.step else 2.0]), ("layer",))


class RaisesInApplies(Wrong):
    def applies(self, context):
        raise RuntimeError("cannot even say")


class ReducesNothing(Wrong):
    reduce = Probe.reduce


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (RaisesInReduce, ["'blocks.1.attn.hook_pattern'", "no luck in layer one"]),
        (RaisesInReadings, ["'attn.hook_pattern'", "no luck at the end"]),
        (WithoutDims, ["(2, 3)", "dims ()"]),
        (ChangesShape, ["{'layer': 2}", "{'layer': 3}"]),
        (BecomesNan, ["nan"]),
        (RaisesInApplies, ["cannot even say"]),
        (ReducesNothing, ["no reduce()"]),
    ],
)
def test_a_wrong_probe_is_named_with_its_hook_and_the_others_continue(wrong, says):
    recorder = sl.Recorder(transformer(), probes=[wrong, GOOD], batch=tokens())
    for step in range(3):
        recorder.measure(step)
    message = recorder.problems["wrong"]
    assert "probe 'wrong'" in message and "attn.hook_pattern" in message
    assert all(part in message for part in says), message
    assert "\n" not in message
    assert "wrong" not in recorder.probes and set(recorder.problems) == {"wrong"}
    assert np.isfinite(recorder.timeline[f"{GOOD}/entropy"]).all() and len(recorder.timeline.steps) == 3


def test_a_hook_that_the_model_lacks_is_a_reason_and_not_an_error():
    class Elsewhere(Wrong):
        hooks = ("attn.hook_patern",)

    recorder = sl.Recorder(transformer(), probes=[Elsewhere, GOOD], batch=tokens())
    recorder.measure(0)
    assert recorder.skipped == {"wrong": "the model has no hook 'attn.hook_patern'"}
    assert not recorder.problems


def test_a_probe_may_find_out_late_that_it_does_not_apply():
    class Late(Wrong):
        def reduce(self, activation, site, context):
            raise DoesNotApply("the pattern is too small")

    recorder = sl.Recorder(transformer(), probes=[Late, GOOD], batch=tokens())
    recorder.measure(0)
    recorder.measure(1)
    assert recorder.skipped == {"wrong": "the pattern is too small"} and not recorder.problems


def test_nan_in_the_model_is_named_by_the_probes_that_see_it():
    model = transformer()
    recorder = sl.Recorder(model, batch=tokens())
    recorder.measure(0)
    model.embed.W_E.data.fill_(torch.nan)
    recorder.measure(1)
    recorder.measure(2)
    assert {"induction", "qk_alignment", "loss_by_position", "weight_norms"} <= set(recorder.problems)
    assert all("nan" in problem or "finite" in problem for problem in recorder.problems.values())
    assert len(recorder.timeline.steps) == 3


def test_layers_with_different_numbers_of_heads():
    patterns = {f"blocks.{i}.attn.hook_pattern": torch.rand(2, heads, 4, 4).tril() for i, heads in enumerate((2, 3))}
    recorder = sl.Recorder(Written(patterns), probes=[GOOD, "head_specialization"], batch=0)
    recorder.measure(0)
    recorder.measure(1)
    assert not recorder.problems
    entropy = recorder.timeline[f"{GOOD}/entropy"].values[0]
    assert entropy.shape == (2, 3) and np.isnan(entropy).sum() == 1


def test_a_batch_of_the_wrong_kind_is_reported():
    recorder = sl.Recorder(PositionalToy(), probes=[GOOD], batch=torch.randn(2, 3, 4))  # three positions, not six
    with pytest.raises(RuntimeError):
        recorder.measure(0)
    recorder = sl.Recorder(written_pattern([[1.0, 0], [0.5, 0.5]]), probes=[GOOD], batch=0)
    recorder.measure(0)  # and a model that does not look at its batch takes anything
    assert not recorder.problems
