"""The matrix: every registered probe, the plugins' own included, on every registered task, at a tiny size.

A probe gives readings of its documented names, or its reason in one plain sentence. A reading is nan only in elements
that the model does not have (a layer with fewer heads), which are the same in all measurements, and at the first one
if it compares a measurement with the one before.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from kit.store import host
from kit.tiny import exact_run, is_flow, task_ids

TASKS = [name for name in task_ids() if not is_flow(name)]
PROBES = dict(host().probes)
# What a reason must not be: the text of an exception, or of an object.
OPTIONAL = {"qk_alignment/reference"}  # given only for tasks that name directions, and no reason is needed
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
    assert given <= documented and {f"{name}/{reading}" for reading in lacking} <= OPTIONAL and not given & omitted
    for reading in given:
        assert_finite(run.timeline.series(f"{name}/{reading}"), reading)


def assert_finite(values, reading):
    """`values` [step, ...] are finite in all elements that the model has."""
    values = values.reshape(len(values), -1)
    lacking = np.isnan(values)  # [step, element]
    assert not np.isinf(values).any(), reading
    assert (lacking[1:] == lacking[1]).all() and not lacking[1].all(), f"{reading} turns nan"
    assert (lacking[0] >= lacking[1]).all() and (lacking[0].all() or (lacking[0] == lacking[1]).all()), reading


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_applies_to_some_task(name):
    """Otherwise the matrix would be one of reasons alone."""
    assert any(name not in exact_run(task, 0).manifest.skipped for task in TASKS)


def test_the_matrix_sees_a_reading_that_turns_nan():
    good = np.array([[np.nan, np.nan], [1.0, np.nan], [2.0, np.nan]])  # the second element does not exist
    assert_finite(good, "good")
    for bad in ([[1.0], [np.nan], [2.0]], [[1.0], [np.inf], [1.0]], [[np.nan], [np.nan], [np.nan]]):
        with pytest.raises(AssertionError):
            assert_finite(np.array(bad), "bad")
