"""The hooks: each typed, documented and tested; observers see a run as it happens."""

from __future__ import annotations

import inspect
import re
import typing

import pytest

import stagelens as sl
from conftest import ROOT
from kit.tasks import Crash, CrashAt, Decay, Regression, host_with, run
from stagelens import hookspecs

HOOKS = {name: function for name, function in vars(hookspecs).items() if name.startswith("stagelens_")}


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_typed_and_documented(name):
    function = HOOKS[name]
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    doc = inspect.getdoc(function) or ""
    assert len(doc.splitlines()[0]) > 20
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert re.search(rf":param {parameter.name}: \w+", doc), f"{name}: argument {parameter.name} has no line"
    if signature.return_annotation != "None":
        assert ":return:" in doc


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_implemented_in_some_test(name):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    assert any(f"@sl.hookimpl\n    def {name}(" in text for text in texts)


def test_the_module_lists_every_hook_in_its_life_cycle():
    for name in HOOKS:
        assert name.removeprefix("stagelens_") in (hookspecs.__doc__ or "")


class Observer:
    """Records the calls of its hooks, and what was on disk at that moment."""

    def __init__(self) -> None:
        self.calls: list[tuple[typing.Any, ...]] = []

    @sl.hookimpl
    def stagelens_run_started(self, run):
        self.calls.append(("started", run.manifest.status, (run.folder / "run.json").exists()))

    @sl.hookimpl
    def stagelens_reading_recorded(self, run, step, readings):
        on_disk = sl.load(run.folder).timeline
        loss = next(reading.values for reading in readings if reading.name == "loss")
        self.calls.append(("recorded", step, float(loss), on_disk["loss"].sel(step=step).item()))

    @sl.hookimpl
    def stagelens_run_finished(self, run):
        self.calls.append(("finished", run.status))


def test_observers_are_called_in_order_and_after_the_measurement_is_on_disk(tmp_path):
    observer = Observer()
    done = run(Regression, tmp_path, host_with(observer))
    kinds = [call[0] for call in observer.calls]
    assert kinds == ["started", *["recorded"] * len(done.timeline.steps), "finished"]
    assert observer.calls[0] == ("started", "running", True) and observer.calls[-1] == ("finished", "finished")
    recorded = observer.calls[1:-1]
    assert [call[1] for call in recorded] == done.timeline.steps.tolist()
    assert all(told == on_disk for _, _, told, on_disk in recorded)


def test_observers_are_called_for_a_run_that_failed_and_for_its_resuming(tmp_path):
    observer = Observer()
    with pytest.raises(Crash):
        run(Regression, tmp_path, host_with(observer, CrashAt(20)))
    assert observer.calls[-1] == ("finished", "failed")
    observer.calls.clear()
    run(Regression, tmp_path, host_with(observer), resume=True)
    assert observer.calls[0][0] == "started" and observer.calls[-1] == ("finished", "finished")


def test_observers_of_a_flow(tmp_path):
    observer = Observer()
    done = run(Decay, tmp_path, host_with(observer))
    assert [call[1] for call in observer.calls[1:-1]] == done.timeline.steps.tolist()


class Registering:
    """Registers classes instead of references, as a plugin in one file does."""

    @sl.hookimpl
    def stagelens_register_tasks(self):
        return [Regression, Decay]

    @sl.hookimpl
    def stagelens_register_probes(self):
        return [middle]

    @sl.hookimpl
    def stagelens_register_claims(self):
        return [sl.ClaimRef("small-1", "it learns", "small:Claim")]

    @sl.hookimpl
    def stagelens_register_figures(self):
        return [sl.FigureRef("fig1", "it learns, drawn", task="small/regression")]


@sl.probe(hooks="hook_middle")
def middle(activation, context):
    """The mean of the middle layer."""
    return activation.mean()


def test_a_plugin_hands_over_tasks_probes_claims_and_figures():
    host = host_with()
    host.load("registering", "1", Registering)
    assert host.failed == []
    assert host.task("small").load() is Regression and host.task("small/decay").load() is Decay
    assert (host.probes["middle"].title, host.probes["middle"].readings) == (
        "The mean of the middle layer.",
        ("value",),
    )
    assert host.claims["small-1"].title == "it learns"
    assert host.figures["registering/fig1"].title == "it learns, drawn"


def test_a_probe_of_a_plugin_runs_by_default(tmp_path):
    host = host_with()
    host.load("registering", "1", Registering)
    kind = type("All", (Regression,), {"probes": None, "id": "small/all"})
    done = run(kind, tmp_path, host)
    assert "middle/value" in done.timeline and "weight_norms/norm" in done.timeline
    assert "attention_sparsity" in done.manifest.skipped and not done.manifest.problems
