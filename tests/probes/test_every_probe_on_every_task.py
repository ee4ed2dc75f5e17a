"""The matrix: every registered probe, the plugins' own included, on every registered task, at a tiny size.

A probe gives readings of its documented names, or its reason in one plain sentence. A reading is nan only in elements
that the model does not have (a layer with fewer heads). They are the same in all measurements. A reading that compares
a measurement with the one before is also nan at the first one.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from kit.store import host
from kit.tiny import exact_run, is_flow, task_ids
from stagelens.timelines import described_reading

TASKS = [name for name in task_ids() if not is_flow(name)]
PROBES = dict(host().probes)
# What a reason must not be: the text of an exception, or of an object.
MACHINE = re.compile(r"Error|Exception|Traceback|object at 0x|<class|NoneType|\bself\b|\n|  |\{|\}")


def test_the_matrix_has_the_probes_of_the_plugins_too():
    owners = host().probes.owners
    assert len([name for name in PROBES if owners[name] != "probes"]) >= 7
    assert len(TASKS) >= 13


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("task_id", TASKS)
def test_a_probe_gives_finite_readings_or_its_reason(task_id, name):
    run = exact_run(task_id, 0)
    assert name not in run.manifest.problems
    documented = set(PROBES[name].readings)
    given = {series.partition("/")[2] for series in run.timeline if series.startswith(f"{name}/")}
    reasons = {key: reason for key, reason in run.manifest.skipped.items() if key.partition("/")[0] == name}
    for key, reason in reasons.items():
        assert len(reason.split()) > 3 and not MACHINE.search(reason), f"{key}: {reason}"
    if name in reasons:
        assert not given
        return
    omitted = {key.partition("/")[2] for key in reasons}
    omitted |= {f"{key}_{companion}" for key in omitted for companion in ("error", "chance")} & documented
    lacking = documented - given - omitted
    assert given <= documented and not lacking and not given & omitted
    for reading in given:
        assert_finite(run.timeline.series(f"{name}/{reading}"), reading)


# The probes that have a meaning in addition to attention_sparsity and weight_norms, which every task records.
MEANT = {
    "emergence/toy": {"single_location", "head_ablation", "curvature"},
    "emergence/regression": {"relevant_attention", "head_specialization", "qk_alignment"},
    "emergence/recall": {"key_value", "head_specialization", "induction", "qk_alignment"},
    **{
        f"recall/{name}": {"head_specialization", "kl_to_references", "head_ablation", "curvature"}
        for name in ("simplified", "original", "transformer")
    },
    "markov/full": {"head_specialization", "induction", "qk_alignment", "kl_to_references"},
    "rich/text": {"head_specialization", "induction", "qk_alignment"},
}


@pytest.mark.parametrize("task_id", TASKS)
def test_the_probes_that_have_a_meaning_give_readings(task_id):
    given = {series.partition("/")[0] for series in exact_run(task_id, 0).timeline}
    assert {"attention_sparsity", "weight_norms", *MEANT.get(task_id, ())} <= given


def assert_finite(values, reading):
    """`values` [step, ...] are finite in all elements that the model has."""
    values = values.reshape(len(values), -1)
    lacking = np.isnan(values)  # [step, element]
    assert not np.isinf(values).any(), reading
    assert (lacking[1:] == lacking[1]).all() and not lacking[1].all(), f"{reading} turns nan"
    assert (lacking[0] >= lacking[1]).all() and (lacking[0].all() or (lacking[0] == lacking[1]).all()), reading


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_applies_to_some_task(name):
    """A probe that applies to no task would have only reasons in the matrix."""
    assert any(name not in exact_run(task, 0).manifest.skipped for task in TASKS)


def test_the_matrix_sees_a_reading_that_turns_nan():
    good = np.array([[np.nan, np.nan], [1.0, np.nan], [2.0, np.nan]])  # the second element does not exist
    assert_finite(good, "good")
    for bad in ([[1.0], [np.nan], [2.0]], [[1.0], [np.inf], [1.0]], [[np.nan], [np.nan], [np.nan]]):
        with pytest.raises(AssertionError):
            assert_finite(np.array(bad), "bad")


@pytest.mark.parametrize("name", PROBES)
def test_every_reading_is_described(name):
    kind = PROBES[name].load()
    lacking = [reading for reading in kind.gives if described_reading(reading, kind.described) is None]
    assert lacking == [] and set(kind.described) <= set(kind.gives)


@pytest.mark.parametrize("task_id", TASKS)
def test_readings_have_the_dims_and_range_of_their_description(task_id):
    timeline = exact_run(task_id, 0).timeline
    for series in timeline:
        probe, slash, reading = series.partition("/")
        if not slash or probe not in PROBES:
            continue
        info = described_reading(reading, PROBES[probe].load().described)
        column = timeline.column(series)
        assert len(column.dims) == len(info.dims), f"{series}: {column.dims} is not {info.dims}"
        for dim, allowed in zip(column.dims, info.dims, strict=True):
            assert dim in allowed.split("|"), f"{series}: {column.dims} is not {info.dims}"
        values = timeline.series(series)[np.isfinite(timeline.series(series))]
        assert (values >= info.low - 1e-6).all() and (values <= info.high + 1e-6).all(), f"{series}: {info.range}"
        assert (info.unit == "label") == bool(column.labels), series
