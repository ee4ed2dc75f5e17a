"""The manifest: replaced at once, and a folder without one is no run."""

from __future__ import annotations

import json
import math

import pytest

from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.runs.manifest import FILE, Manifest, load_manifest


def manifest(**changes):
    return Manifest("a/b", "a", "quick", {"steps": 5}, seed=3, kind="training", steps=5, **changes)


def test_it_comes_back_as_it_went_in(tmp_path):
    given = manifest(status="failed", error="why", events={"half": 0.1 + 0.2}, skipped={"probe": "reason"})
    given.save(tmp_path)
    assert load_manifest(tmp_path) == given


def test_it_is_json_that_every_reader_takes(tmp_path):
    manifest(predictions=[{"name": "p", "measured": math.nan, "expected": math.inf}]).save(tmp_path)
    text = (tmp_path / FILE).read_text()
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert read["predictions"] == [{"name": "p", "measured": None, "expected": None}]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, UsageError, "is not a run: it has no run.json"),
        ("{", EnvironmentFault, "cannot be read"),
        ("\x00\xff", EnvironmentFault, "cannot be read"),
        ("[]", EnvironmentFault, "holds a list"),
        ('{"format": 99}', UsageError, "not a manifest of format 1"),
        ('{"format": 1, "task": "a/b"}', EnvironmentFault, "not a whole manifest"),
        ('{"format": 1, "theirs": 1}', EnvironmentFault, "not a whole manifest"),
    ],
)
def test_what_is_no_manifest_is_told(tmp_path, text, error, message):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(error, match=message) as caught:
        load_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_status_that_does_not_exist_is_told(tmp_path):
    manifest(status="asleep").save(tmp_path)
    with pytest.raises(EnvironmentFault, match="status 'asleep' is none of running, finished"):
        load_manifest(tmp_path)
