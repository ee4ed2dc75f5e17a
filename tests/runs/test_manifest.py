"""The manifest: replaced atomically; a directory without one is not a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from pydantic import ValidationError

from stagelens.base import save_sealed
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.runs.manifest import FILE, Manifest, load_manifest

STAGE = {"kind": "plateau", "name": "", "level": None, "drop": None}


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
def test_what_is_no_manifest_is_reported(tmp_path, text, error, message):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(error, match=message) as caught:
        load_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_status_that_does_not_exist_is_reported(tmp_path):
    given = manifest()
    given.status = "asleep"
    given.save(tmp_path)
    with pytest.raises(EnvironmentFault, match="'status' is 'asleep': input should be 'running', 'finished'"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", 3),
        ("seed", True),
        ("seed", 1.0),
        ("seed", 2**63),
        ("steps", True),
        ("steps", "5"),
        ("steps", 10**400),
        ("config", []),
        ("probes", ["a", 1]),
        ("skipped", {"probe": None}),
        ("events", {"half": "0.3"}),
        ("events", {"half": True}),
        ("events", {"half": 2**63}),
        ("stages", [3]),
        ("stages", [{"kind": "plateau", "name": "", "start": 0}]),
        ("stages", [{"kind": "plateau", "name": "", "start": 0, "end": 5, "level": "low"}]),
        ("predictions", [{"name": "p"}]),
        ("vectorized", "no"),
        ("surprise", 1),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_in_one_line_that_names_it(tmp_path, key, value):
    values = asdict(manifest()) | {key: value}
    save_sealed(tmp_path / FILE, values)
    with pytest.raises(EnvironmentFault, match=rf"not a whole manifest \(.*({key}|StageRow|PredictionRow)") as caught:
        load_manifest(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400 + len(str(tmp_path))


def test_numbers_stay_what_they_were_written_as(tmp_path):
    given = manifest(events={"one": 1, "half": 0.5}, seconds=2, stages=[{**STAGE, "start": 0, "end": 2.5}])
    given.save(tmp_path)
    text = (tmp_path / FILE).read_text()
    load_manifest(tmp_path).save(tmp_path)
    assert (tmp_path / FILE).read_text() == text


def test_of_very_many_wrong_values_only_the_first_is_collected():
    many = {str(number): number for number in range(1000)}
    with pytest.raises(ValidationError) as caught:
        manifest(skipped=many, events=dict.fromkeys(many, "x"), probes=list(many.values()), stages=list(many))
    assert caught.value.error_count() == 4
