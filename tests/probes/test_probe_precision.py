"""Probes compute in float32 or better: under `torch.autocast`, and of models in bfloat16 or float16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.probe_models import lens_model, measured, next_token_loss, tokens, transformer
from probes.test_every_probe import NAMES, Everything, recorder_of
from stagelens.recording.precision import as_trained, full_precision
from stagelens.recording.probes import Probe

GROUPS = {"near": sl.Group(offsets=(0, 1)), "far": sl.Group(offsets=tuple(range(2, 10)))}
HALVES = [torch.bfloat16, torch.float16]
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)


class Products(Probe):
    """A probe that multiplies matrices of float32, in a hook and afterwards."""

    name = "products"
    hooks = ("attn.hook_pattern",)

    def reduce(self, activation, site, context):
        return product(activation)

    def readings(self, reduced, context):
        yield sl.Reading("in_hook", torch.stack(list(reduced.values())), ("layer",))
        yield sl.Reading("after", product(torch.zeros(1)))
        with as_trained():
            yield sl.Reading("in_a_pass", product(torch.zeros(1)))


def product(like):
    """1 + 2^-12 + 2^-20, which neither bfloat16 nor float16 holds."""
    row = torch.tensor([[1.0, 2.0**-12, 2.0**-20]], device=like.device)
    return (row @ torch.ones(3, 1))[0, 0]


EXACT = 1 + 2.0**-12 + 2.0**-20


@halves
def test_autocast_is_off_for_what_a_probe_computes_and_on_for_the_passes_that_it_makes(dtype):
    with torch.autocast("cpu", dtype):
        recorder = sl.Recorder(transformer(), [Products], tokens())
        found = {r.name.partition("/")[2]: r.array() for r in recorder.measure(0)}
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == dtype
    np.testing.assert_array_equal(found["in_hook"], EXACT)
    assert found["after"] == EXACT
    assert found["in_a_pass"] == 1


def test_without_autocast_nothing_is_switched_on_or_off():
    with full_precision(), as_trained(), full_precision():
        assert not torch.is_autocast_enabled("cpu")


@halves
def test_passes_of_a_probe_compute_as_the_training_does(dtype):
    model, batch, seen = transformer(), tokens(), []

    def loss(model, batch):
        logits = model(batch)
        seen.append((torch.is_autocast_enabled("cpu"), logits.dtype))
        return next_token_loss(model, batch)

    probes = ["head_ablation", "gradient", "curvature"]
    with torch.autocast("cpu", dtype):
        recorder = sl.Recorder(model, probes, batch, loss=loss)
        recorder.measure(0)
    assert not recorder.problems and len(seen) > 12
    assert set(seen) == {(True, dtype)}


@halves
@pytest.mark.parametrize("n_heads", [2, 3])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_masses_sum_to_one_and_shares_are_those_of_the_activations(n_layers, n_heads, dtype):
    """Against float64 sums of the very activations, which are in half precision themselves."""
    model, batch = lens_model(n_layers=n_layers, n_heads=n_heads), tokens(40)
    for block in model.blocks:  # keys of one direction, up to little: the sums decide about the rank
        block.attn.b_K.data += 30.0
    with torch.autocast("cpu", dtype):
        mass = measured(model, "head_specialization", batch, groups=GROUPS)["mass"]
        alignment = measured(model, "qk_alignment", batch)
        sparsity = measured(model, "attention_sparsity", batch)
        _, cache = model.run_with_cache(batch)
    np.testing.assert_allclose(mass.sum(-1), 1, atol=1e-6)
    for layer in range(n_layers):
        pattern = cache["pattern", layer].detach().double()[:, :, 1:]  # the first query sees one key
        pattern = (pattern / pattern.sum(-1, keepdim=True)).numpy()
        entropy = -np.where(pattern > 0, pattern * np.log(np.where(pattern > 0, pattern, 1)), 0).sum(-1)
        np.testing.assert_allclose(sparsity["entropy"][layer], entropy.mean((0, 2)), rtol=1e-5)
        for side, name in enumerate("kq"):
            for head in range(n_heads):
                x = cache[name, layer][:, :, head].detach().double().flatten(0, 1).numpy()
                ratios = np.linalg.svd(x, compute_uv=False) ** 2
                ratios /= ratios.sum()
                rank = np.exp(-(ratios * np.log(ratios)).sum())
                assert alignment["effective_rank"][layer, head, side] == pytest.approx(rank, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_probe_runs_under_autocast_and_agrees_with_float32(name):
    task = Everything(sl.TaskConfig())
    single = {r.name: r.array() for r in recorder_of(name, task, transformer()).measure(0)}
    with torch.autocast("cpu", torch.bfloat16):
        recorder = recorder_of(name, task, transformer())
        readings = recorder.measure(0)
    assert not recorder.problems and single.keys() == {r.name for r in readings}
    # Differences of nearly equal losses, and choices between nearly equal directions, are noise in bfloat16.
    loose = {
        "head_ablation",
        "curvature",
        "qk_alignment/leading",
        "qk_alignment/reference",
        "head_specialization/leader",
    }
    loose |= {"qk_alignment/rank", "qk_alignment/key_query", "qk_alignment/key_query_chance"}
    # A gradient in bfloat16 is off by some percent of its norm, and so is the cosine of the gradients of two halves.
    absolute = {"gradient/halves_cosine": 0.1}
    for reading in readings:
        if not {reading.name, reading.name.partition("/")[0]} & loose:
            np.testing.assert_allclose(
                reading.array(),
                single[reading.name],
                rtol=0.05,
                atol=absolute.get(reading.name, 0.02),
                err_msg=reading.name,
            )


class Measured(Everything):
    """A task whose metric is its loss, computed from the output that it is given."""

    def metrics(self, output, batch):
        return {
            "of_the_output": torch.nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        }


@halves
def test_metrics_and_further_outputs_are_not_rounded_again(dtype):
    """Logits in half precision make a loss in half precision, unless they are widened first."""
    model, batch, further = transformer(init_scale=2.0), tokens(40), []

    class Further(Probe):
        name = "further"

        def readings(self, reduced, context):
            further.append(context.output_of(batch))
            yield sl.Reading("mean", further[-1].mean())

    with torch.autocast("cpu", dtype):
        recorder = sl.Recorder(model, [Further], batch, task=Measured(sl.TaskConfig()))
        recorder.measure(0)
        with torch.no_grad():
            logits = model(batch)
    assert not recorder.problems and logits.dtype == dtype and further[0].dtype == torch.float32
    torch.testing.assert_close(further[0], logits.float(), rtol=0, atol=0)
    exact = torch.nn.functional.cross_entropy(logits.double()[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    assert recorder.timeline["of_the_output"].item() == pytest.approx(exact.item(), rel=1e-6)
    assert float(exact.to(dtype)) != pytest.approx(exact.item(), rel=1e-6)
