"""Tests of every probe: its registration, the models on which it runs, and that it changes nothing."""

from __future__ import annotations

import random
from copy import deepcopy

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.probe_models import PositionalToy, next_token_loss, squared_loss, transformer
from stagelens.host.references import ProbeRef
from stagelens_probes import plugin as built_in

NAMES = [ref.name for ref in built_in.probes]
LONG = {"induction/prefix_matching_by_gap", "induction/icl_score_fixed"}  # of contexts longer than those here
TOY = {"weight_norms/qk_norm", "weight_norms/ov_norm", "head_ablation/zero_error", "head_ablation/mean_error"}
BIDIRECTIONAL = {"loss_by_position", "induction/icl_score", "head_ablation/zero_error", "head_ablation/mean_error"}
COSTLY = {"head_ablation", "gradient", "curvature"}


def skewed(batch):
    return torch.arange(11.0).log_softmax(0).expand(*batch.shape, 11)


class Everything(sl.Task):
    """A task that defines everything that a probe can use."""

    id = "test/everything"

    def build_model(self):
        return transformer(dropout=0.3)

    def sample(self, n, generator):
        return torch.randint(11, (n, 10), generator=generator)

    def loss(self, model, batch):
        return next_token_loss(model, batch)

    def groups(self):
        return {"near": sl.Group(offsets=(0, 1)), "start": sl.Group(positions=(0,))}

    def directions(self):
        return {"x": torch.tensor([1.0, 0, 0, 0])}

    def references(self):
        return {"uniform": lambda batch: torch.full((*batch.shape, 11), -np.log(11)), "skewed": skewed}

    def conserved(self, model):
        return {"embedding": model.W_E.norm()}


class Toy(Everything):
    def build_model(self):
        return PositionalToy()

    def sample(self, n, generator):
        return torch.randn(n, 6, 4, generator=generator)

    def loss(self, model, batch):
        return squared_loss(model, batch)

    def references(self):
        return {"skewed": lambda batch: torch.arange(4.0).log_softmax(0).expand_as(batch)}

    def conserved(self, model):
        return {"output": model.blocks[0].attn.W_O.norm()}


def recorder_of(name, task, model=None, batch=None):
    batch = task.sample(5, torch.Generator().manual_seed(0)) if batch is None else batch
    return sl.Recorder(task.build_model() if model is None else model, probes=[name], batch=batch, task=task)


def copied(tensors):
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in tensors}


def trace(model):
    """Returns all state that a measurement must not change, in a form that can be compared."""
    points = model.hook_dict.values()
    return {
        "tensors": copied(model.state_dict().items()),
        "grads": copied((name, p.grad) for name, p in model.named_parameters()),
        "trains": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "hooks": [[list(point.fwd_hooks), list(point.bwd_hooks)] for point in points],
        "torch hooks": [list(module._forward_hooks.values()) for module in model.modules()],
        "level": model.context_level,
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
    }


def assert_same(before, after):
    for key in before:
        if key in ("tensors", "grads"):
            assert before[key].keys() == after[key].keys()
            for name, tensor in before[key].items():
                other = after[key][name]
                assert tensor is other if tensor is None or other is None else torch.equal(tensor, other), (key, name)
        elif key == "torch":
            assert torch.equal(before[key], after[key])
        else:
            assert before[key] == after[key], key


@pytest.mark.parametrize("ref", built_in.probes, ids=lambda ref: ref.name)
def test_the_registration_agrees_with_the_class(ref):
    of_class = ProbeRef.of(ref.load())
    assert (ref.name, ref.title, ref.readings) == (of_class.name, of_class.title, of_class.readings)
    assert (ref.passes, ref.default) == (of_class.passes, of_class.default)


def test_only_probes_that_multiply_the_cost_are_off_by_default():
    assert {ref.name for ref in built_in.probes if not ref.default} == COSTLY


@pytest.mark.parametrize("task", [Everything, Toy])
@pytest.mark.parametrize("name", NAMES)
def test_measuring_leaves_no_trace(name, task):
    task = task(sl.TaskConfig())
    model = task.build_model().train()
    model.blocks[0].attn.eval()  # a part in another mode than the whole
    batch = task.sample(5, torch.Generator().manual_seed(0))
    model.add_hook("blocks.0.attn.hook_pattern", lambda pattern, hook: None)
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: None, is_permanent=True)
    task.loss(model, batch).backward()
    next(model.parameters()).grad = None  # one without a gradient
    recorder = recorder_of(name, task, model, batch)
    before, kept = trace(model), deepcopy(batch)
    recorder.measure(0)
    recorder.measure(1)
    assert not recorder.problems
    assert_same(before, trace(model))
    assert torch.equal(batch, kept)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_a_hooked_transformer_and_gives_what_it_promises(name):
    recorder = recorder_of(name, Everything(sl.TaskConfig()))
    recorder.measure(0)
    readings = {r.name: r for r in recorder.measure(1)}
    assert not recorder.problems and recorder.skipped.keys() <= LONG
    omitted = {f"{skipped}{part}" for skipped in recorder.skipped for part in ("", "_error", "_chance")}
    promised = {f"{name}/{reading}" for reading in recorder.probes[name].gives}
    assert {n for n in readings if n.startswith(f"{name}/")} == promised - omitted
    for reading in readings.values():
        assert np.isfinite(reading.array()).all(), reading.name
    assert recorder.timeline.dataset.sizes["step"] == 2  # dims and coordinates of all readings fit together


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_a_toy_model_or_says_why_not(name):
    recorder = recorder_of(name, Toy(sl.TaskConfig()))
    readings = [r for r in recorder.measure(0) if r.name.startswith(f"{name}/")]
    assert not recorder.problems
    assert bool(readings) != (name in recorder.skipped)
    whole = {name} if name in {"induction", "qk_alignment", "loss_by_position"} else set()
    assert set(recorder.skipped) - TOY == whole
    assert all(len(reason.split()) > 3 for reason in recorder.skipped.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_in_every_precision(name, dtype):
    task = Everything(sl.TaskConfig())
    single = {r.name: r.array() for r in recorder_of(name, task, transformer()).measure(0)}
    recorder = recorder_of(name, task, transformer(dtype=dtype))
    readings = recorder.measure(0)
    assert not recorder.problems and recorder.skipped.keys() <= LONG
    assert single.keys() == {r.name for r in readings}
    exact = dtype == torch.float64
    # In half precision: derivatives of small losses are noise, and directions of near equals may turn.
    loose = {"head_ablation/zero", "head_ablation/mean", "curvature/smallest", "qk_alignment/leading"}
    loose |= {"curvature/residual_largest", "curvature/residual_smallest"}
    loose |= {"qk_alignment/rank", "qk_alignment/key_query", "qk_alignment/key_query_chance"}
    loose |= {"qk_alignment/reference", "head_specialization/leader"}
    for reading in readings:
        if exact or reading.name not in loose:
            tolerance = {"rtol": 1e-3, "atol": 1e-4} if exact else {"rtol": 0.1, "atol": 0.03}
            np.testing.assert_allclose(reading.array(), single[reading.name], err_msg=reading.name, **tolerance)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changes", [{"causal": False}, {"positions": "alibi"}, {"n_layers": 1, "n_heads": 1, "d_head": 4}]
)
def test_it_runs_on_other_architectures_or_says_why_not(name, changes):
    recorder = recorder_of(name, Everything(sl.TaskConfig()), transformer(**changes))
    recorder.measure(0)
    assert not recorder.problems
    skipped = {"n_heads": {"head_specialization"}, "causal": BIDIRECTIONAL}
    expected = set().union(*(skipped.get(key, set()) for key in changes))
    assert set(recorder.skipped) - LONG == {key for key in expected if key.partition("/")[0] == name}


def test_all_probes_together_give_the_readings_of_each_alone():
    task = Everything(sl.TaskConfig())
    together = {
        r.name: r.array()
        for r in sl.Recorder(
            task.build_model(), probes=NAMES, batch=task.sample(5, torch.Generator().manual_seed(0)), task=task
        ).measure(0)
    }
    for name in NAMES:
        for reading in recorder_of(name, task).measure(0):  # a pass that no hook watches rounds otherwise
            np.testing.assert_allclose(reading.array(), together[reading.name], rtol=0, atol=2e-6, err_msg=reading.name)
