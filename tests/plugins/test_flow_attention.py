"""The probes give the same readings for the attention of a flow and of a model in the same state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.store import host
from kit.tiny import tiny_task
from stagelens.base import generator
from stagelens.experiments import integrate
from stagelens_rich.data.toy import sample_tokens
from stagelens_rich.flow import SEQUENCES

PROBES = ["attention_sparsity", "head_specialization"]


def solved(flow: sl.Flow) -> list[dict[str, sl.Reading]]:
    """The readings of a flow at each of its times, by name."""
    found = integrate(flow)
    assert not found.error
    return [{reading.name: reading for reading in readings} for readings in found.readings]


def compare(flow: dict[str, sl.Reading], model: Any, task: Any, batch: Any, layer: int) -> int:
    """Compares all readings of the probes in one layer; returns how many there are."""
    recorder = sl.Recorder(model, PROBES, batch, task=task, host=host())
    recorder.measure(0)
    names = [name for name in flow if name.partition("/")[0] in PROBES]
    for name in names:
        own = recorder.timeline[name].isel(step=0).sel(layer=layer)
        theirs = flow[name].array()[list(flow[name].coords["layer"]).index(layer)]
        if "head" in own.dims:
            own = own[: len(theirs)]  # layers with fewer heads are filled
        np.testing.assert_allclose(theirs, own.values, rtol=1e-6, atol=1e-9, err_msg=name)
    return len(names)


def test_the_recall_flow_reads_as_the_simplified_model_with_its_scores():
    flow, task = tiny_task("recall/flow"), tiny_task("recall/simplified")
    assert flow.config.order == task.config.order
    readings = solved(flow)
    for found in (readings[0], readings[-1], readings[len(readings) // 2]):
        model = task.build_model().double()
        with torch.no_grad():
            model.w.copy_(torch.from_numpy(found["w"].array()))
            model.beta.copy_(torch.from_numpy(found["beta"].array()))
        assert compare(found, model, task, task.sample(1, generator(0)), layer=0) >= 10


@pytest.mark.parametrize("tokens", ["gaussian", "boolean"])
def test_the_rich_flow_reads_as_the_toy_model_with_its_parameters(tokens):
    kind = host().tasks["rich/flow"].load()
    flow = kind(kind.Config(L=10, tokens=tokens, system="five", points=16), 0)
    toy = host().tasks["rich/toy"].load()
    task = toy(toy.Config(L=10, tokens=tokens, first_steps=0), 0)
    x = sample_tokens(SEQUENCES, 10, 1, tokens, generator(0, "probes")).double()
    for found in solved(flow)[::5]:
        model: Any = task.build_model().double()
        with torch.no_grad():
            for name, own in (("p", "p"), ("w_Q", "W_Q"), ("w_K", "W_K")):
                getattr(model.second, own).fill_(float(found[name].array()))
        assert compare(found, model, task, x, layer=1) >= 10


def test_the_first_layer_of_the_rich_flow_reads_as_the_models():
    kind = host().tasks["rich/flow"].load()
    flow = kind(kind.Config(L=10, system="first-layer", points=8), 0)
    toy = host().tasks["rich/toy"].load()
    task = toy(toy.Config(L=10), 0)
    for found in solved(flow)[::3]:
        model: Any = task.build_model().double()
        with torch.no_grad():
            model.first.p.fill_(float(found["p_first"].array()))
        assert compare(found, model, task, task.sample(4, generator(0)).double(), layer=0) >= 4


def test_the_emergence_flow_reads_as_the_toy_model_with_its_attention():
    flow, task = tiny_task("emergence/flow"), tiny_task("emergence/toy")
    T, B = flow.config.T, flow.config.B
    task = type(task)(task.config.model_copy(update={"T": T, "B": B}), 0)
    for found in solved(flow)[::5]:
        model: Any = task.build_model()
        with torch.no_grad():
            model.attention.a[-B:] = float(found["delta_a"].array())
        assert compare(found, model, task, task.sample(4, generator(0)), layer=0) >= 4


def test_the_heads_of_the_markov_flow_lead_the_groups_of_the_positions_that_they_attend_to():
    """Against a plain computation: the mass on I(k) is the attention to position k, the sparsity 1 - H / log T."""
    flow = tiny_task("markov/flow")
    T = flow.config.T
    for found in solved(flow):
        attention = found["attention"].array()  # [head, position or rest]
        mass = found["head_specialization/mass"]
        np.testing.assert_allclose(mass.array()[0], attention, atol=1e-9)
        assert list(mass.coords["group"]) == ["I(1)", "I(2)", "I(3)", "rest"]
        entropy = found["attention_sparsity/entropy"].array()
        np.testing.assert_allclose(found["attention_sparsity/sparsity"].array(), 1 - entropy / np.log(T), atol=1e-9)
        assert (entropy <= np.log(T) + 1e-9).all()


def test_identical_heads_of_the_markov_flow_are_one_head():
    kind = host().tasks["markov/flow"].load()
    found = solved(kind(kind.Config(system="symmetric", start="ordered", points=8, time=100.0), 0))[-1]
    assert "attention_sparsity/sparsity" in found and "head_specialization/mass" not in found


def test_readings_of_all_states_at_once_are_those_of_each_state():
    class Both(host().tasks["markov/flow"].load()):  # type: ignore[misc]
        def series(self, states: Any) -> Any:
            yield sl.Reading("largest", states["s"].max(-1), ("time", "head"))

    flow = Both(tiny_task("markov/flow").config, 0)
    found = integrate(flow)
    timeline = sl.Timeline(found.measurements)
    top = timeline["largest"].values  # [time, head]
    assert top.shape == (len(found.measurements), flow.config.n_heads)
    np.testing.assert_allclose(top[0], flow.initial()["s"].max(-1))
