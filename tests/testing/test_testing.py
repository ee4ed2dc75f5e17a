"""The checks for plugin authors find the mistakes that they are meant to find."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.tasks import Regression, Repeats
from stagelens.claims import at_least, reported
from stagelens.host.host import make_host
from stagelens.recording.probes import Omitted
from stagelens.testing import check_claim, check_probe, check_task

pytest_plugins = ["stagelens.testing.fixtures"]


@pytest.mark.parametrize("kind", [Regression, Repeats])
def test_a_sound_task_passes_and_says_which_probes_do_not_apply(kind):
    skipped = check_task(kind)
    assert all(reason for reason in skipped.values())


class DrawsGlobally(Regression):
    def sample(self, n, generator):
        x, y = super().sample(n, generator)
        return x + 1e-3 * torch.randn(n, 3), y


def test_a_failing_check_shows_the_line_of_the_plugin_that_called_it():
    with pytest.raises(AssertionError, match="does not draw from the generator") as error:
        check_task(DrawsGlobally)
    shown = [entry for entry in error.traceback if not entry.ishidden(error)]
    assert [entry.path.name for entry in shown] == ["test_testing.py"] and len(error.traceback) > 1


class CarriesSecretState(Regression):
    """Its loss depends on the number of calls, which no checkpoint stores."""

    calls = 0

    def __init__(self, config, seed=0):
        super().__init__(config, seed)
        self.calls = 0

    def loss(self, model, batch):
        self.calls += 1
        return super().loss(model, batch) * (1 + self.calls)


class RandomModel(Regression):
    def build_model(self):
        model = super().build_model()
        with torch.no_grad():
            model.first += float(np.random.default_rng().random())
        return model


class PlainName(Regression):
    id = "regression"


class InfinitePrediction(Regression):
    def predictions(self):
        return [sl.Prediction("end", "level", float("inf"), "Eq. 1")]


class Breaks(sl.Probe):
    name, gives = "breaks", ("value",)

    def readings(self, reduced, context):
        raise RuntimeError("no")


class WithABrokenProbe(Regression):
    probes: ClassVar = (Breaks,)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (DrawsGlobally, "does not draw from the generator"),
        (CarriesSecretState, "resumed at step 2, it has different weights"),
        (RandomModel, "trained twice with one seed"),
        (PlainName, "should be `plugin/name`"),
        (InfinitePrediction, "prediction 'end' is inf"),
        (WithABrokenProbe, "a probe failed"),
    ],
)
def test_a_broken_promise_of_a_task_is_named(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_task(kind)


def test_a_preset_that_makes_no_config_is_named():
    class BadPreset(Regression):
        presets: ClassVar = {"quick": {}, "paper": {"stepz": 1}}

    with pytest.raises(sl.StagelensError, match="stepz"):
        check_task(BadPreset)


class Decay(sl.Flow):
    id = "small/decay-checked"
    Config = sl.FlowConfig

    def initial(self):
        return {"x": np.ones(1)}

    def derivative(self, time, state):
        return {"x": -state["x"]}

    def observables(self, time, state):
        yield sl.Reading("loss", float(state["x"][0]))


class Explodes(Decay):
    def derivative(self, time, state):
        return {"x": state["x"] ** 2 * 10}


def test_a_flow_is_integrated_to_its_end():
    assert check_task(Decay, {"time": 3.0, "points": 10}) == {}
    with pytest.raises(AssertionError, match="small/decay-checked"):
        check_task(Explodes, {"time": 3.0, "points": 10})


class Wrong(sl.Probe):
    name, gives, hooks = "wrong", ("value",), ("attn.hook_pattern",)

    def reduce(self, activation, site, context):
        return activation.mean()

    def readings(self, reduced, context):
        yield sl.Reading("value", float(next(iter(reduced.values()))))


class Misnames(Wrong):
    gives = ("other",)


class GivesNan(Wrong):
    def readings(self, reduced, context):
        yield sl.Reading("value", float("nan"))


class Writes(Wrong):
    def readings(self, reduced, context):
        context.model.W_E.data.add_(1.0)
        return super().readings(reduced, context)


class Forgets(Wrong):
    """Returns another number at each measurement."""

    def readings(self, reduced, context):
        self.state["n"] = self.state.get("n", torch.zeros(())) + 1
        yield sl.Reading("value", float(self.state["n"]))


class NeedsWhatIsNotThere(Wrong):
    hooks = ("attn.hook_dream",)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Misnames, "which `gives` lacks"),
        (GivesNan, "is nan"),
        (Writes, "changed the model's parameters"),
        (Forgets, "differs when measured again"),
        (NeedsWhatIsNotThere, "no hook 'attn.hook_dream'"),
        (Breaks, "failed"),
    ],
)
def test_a_broken_promise_of_a_probe_is_named(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_probe(kind)


def test_a_sound_probe_passes_on_a_small_transformer_and_on_a_task():
    assert [reading.name for reading in check_probe(Wrong)] == ["wrong/value"]
    task = Repeats(Repeats.Config())
    assert len(check_probe(Wrong, task=task)) == 1


class Learns(sl.Claim):
    id, title, reference = "T1", "the loss falls", "section 1"

    def checks(self, lab):
        for seed in lab.seeds:
            loss = lab.run(Regression, {}, seed).timeline["loss"]
            yield at_least("fall", float(loss[0] - loss[-1]), 0.0, "section 1")


class OnlyReports(Learns):
    def checks(self, lab):
        yield reported("nothing much", 1.0, "section 1")


def test_a_claim_comes_to_a_verdict():
    result = check_claim(Learns, seeds=2, host=make_host())
    assert result.verdict == "holds" and len(result.checks) == 2
    with pytest.raises(AssertionError, match="judged nothing"):
        check_claim(OnlyReports)


def test_the_fixtures_are_there(lab, host):
    assert lab.host is host and "markov/minimal" in dict(host.tasks)


class Forgetful(sl.Probe):
    """Names a reading that it neither returns nor omits."""

    name = "forgetful"
    gives = ("given", "forgotten")

    def readings(self, reduced, context):
        yield sl.Reading("given", 1.0)


class Honest(Forgetful):
    name = "honest"

    def readings(self, reduced, context):
        yield sl.Reading("given", 1.0)
        yield Omitted("forgotten", "this model has none")


def test_a_probe_that_neither_gives_nor_omits_a_reading_is_reported():
    with pytest.raises(AssertionError, match=r"neither gives nor omits \['forgetful/forgotten'\]"):
        check_probe(Forgetful)
    assert [reading.name for reading in check_probe(Honest)] == ["honest/given"]


@pytest.mark.parametrize("name", ["induction", "weight_norms", "gradient", "curvature", "loss_by_position"])
def test_built_in_probes_give_or_omit_all_that_they_name(name):
    check_probe(make_host().probes[name].load())
