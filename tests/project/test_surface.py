"""The public surface is the pinned one."""

from __future__ import annotations

import importlib
import json

import pytest

from project import schemas, surface

HOW = (
    "The public surface is not the pinned one ('-' is gone, '+' is new). Whatever is gone needs a deprecation first "
    "(docs/stability.md). If the change is meant, run `python tests/project/pin.py surface`."
)


@pytest.fixture(scope="module")
def measured():
    return surface.measure()


def test_the_public_surface_is_the_pinned_one(measured):
    wrong = list(surface.differences(surface.load(), measured))
    assert not wrong, "\n".join([HOW, *wrong])


def test_every_answer_fits_its_json_schema(measured):
    """A key or a type that a schema lacks is a stale schema, or an answer that changed."""
    jsonschema = pytest.importorskip("jsonschema")
    assert {path.name for path in schemas.FOLDER.iterdir()} == {
        schemas.path_of(title).name for title in surface.ANSWERS
    }
    for title, answers in surface.ANSWERS.items():
        schema = json.loads(schemas.path_of(title).read_text(encoding="utf-8"))
        for answer in answers:
            jsonschema.validate(answer, schema)
        new = surface.measured_keys(schemas.infer(answers)) - surface.measured_keys(schema)
        assert not new, f"{title}: {HOW} New: {sorted(new)}"


def test_a_schema_refuses_a_wrong_answer():
    jsonschema = pytest.importorskip("jsonschema")
    schema = schemas.infer([{"a": 1, "final": {"loss": 0.5}}, {"a": None, "final": {}}])
    jsonschema.validate({"a": 2.5, "final": {"other": 1}}, schema)
    for wrong in ({"a": "1", "final": {}}, {"final": {}}, {"a": 1, "final": {"loss": "low"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_every_public_name_can_be_imported():
    for module, names in surface.load()["names"].items():
        loaded = importlib.import_module(module)
        assert [name for name in names if not hasattr(loaded, name)] == []


def test_every_command_with_json_is_called():
    pinned = surface.load()
    with_json = {name for name, parameters in pinned["commands"].items() if "--json" in parameters["options"]}
    assert {title.split()[0] for title in pinned["json"]} == with_json


def test_differences_name_what_is_gone_and_what_is_new():
    before = {"names": {"stagelens": ["a", "b"]}, "hooks": {"h": ["run", "step"]}}
    after = {"names": {"stagelens": ["b", "c"]}, "hooks": {"h": ["step", "run"]}, "more": {}}
    assert list(surface.differences(before, after)) == [
        "- names > stagelens: a",
        "+ names > stagelens: c",
        "~ hooks > h: the order was run, step, and is step, run",
        "+ more",
    ]
