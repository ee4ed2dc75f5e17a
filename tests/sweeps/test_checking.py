"""A sweep metric that the runs cannot have is an error before any run starts, also with `--dry-run`."""

from __future__ import annotations

import pytest

import stagelens as sl
from kit.tasks import Decay, Regression
from stagelens.base import UsageError
from stagelens.sweeps import check_measures, parse_measure, plan_sweep

TRAINED = {"lr": [0.01, 0.02]}


def check(task, grid, *measures, **options):
    check_measures(plan_sweep(task, grid, **options), [parse_measure(text) for text in measures])


@pytest.mark.parametrize(
    ("measure", "line"),
    [
        ("attention_sparsty/sparsity", "did you mean 'attention_sparsity/sparsity'"),
        ("attention_sparsity/sparsity[layr=0]", "unknown dim 'layr' (did you mean 'layer'?)"),
        ("attention_sparsity/sparsity[layer=7]", "unknown layer '7'; known: 0"),
        ("plateau_length:attention_sparsity/sparsity[layer=7]@0.5", "unknown layer '7'; known: 0"),
        ("mean(attention_sparsity/spars)", "did you mean 'attention_sparsity/sparsity'"),
        ("head_specialization/phase", "holds labels"),
        ("head_specialization/mass", "give one of them"),
        ("event:nope", "unknown event 'nope'"),
        ("loss@0.1", "only plateau_length has a threshold, as plateau_length:loss@0.1"),
    ],
)
def test_an_unknown_part_is_named_with_the_known_ones(tmp_path, measure, line):
    with pytest.raises(UsageError) as error:
        check("markov/minimal", TRAINED, measure, runs=tmp_path, probes=["attention_sparsity", "head_specialization"])
    assert line in str(error.value)
    assert not list(tmp_path.iterdir())


def test_what_the_runs_will_have_passes(tmp_path):
    check("markov/minimal", TRAINED, "attention_sparsity/sparsity[layer=0,head=1]:best", runs=tmp_path)
    check("recall/flow", {"order": [3, 4]}, "event:escape", "transition1", "loss:min", runs=tmp_path)


def test_a_reading_that_begins_with_the_second_measurement_passes(tmp_path):
    check("markov/minimal", TRAINED, "gradient/cosine[group=all]", runs=tmp_path, probes=["gradient"])


def test_the_series_of_the_training_begin_with_its_first_step(tmp_path):
    check("markov/minimal", TRAINED, "train_loss:min", runs=tmp_path, probes=["attention_sparsity"])
    check(Regression, {"clip": [1.0, 2.0]}, "gradient_norm", runs=tmp_path)
    with pytest.raises(UsageError, match="unknown series 'gradient_norm'"):
        check(Regression, {"clip": [0.0], "lr": [0.1]}, "gradient_norm", runs=tmp_path)


def test_a_flow_has_its_observables(tmp_path):
    with pytest.raises(UsageError, match="unknown series 'lss'"):
        check(Decay, {"rtol": [1e-6, 1e-7]}, "lss", runs=tmp_path)


def test_the_loss_alone_builds_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(Regression, "build_model", lambda self: pytest.fail("a model was built"))
    check(Regression, {"lr": [0.1, 0.2]}, "loss:final", "transition1", runs=tmp_path)


def test_a_dry_run_reports_it_too(cli):
    answer = cli("sweep", "recall/flow", "--grid", "order=3,4", "--measure", "event:nope", "--dry-run")
    assert answer.code == 2 and "known: escape" in answer.complaint
    with pytest.raises(UsageError, match="unknown event"):
        sl.sweep("recall/flow", {"order": [3, 4]}, measures="event:nope")
