"""The public surface is the pinned one."""

from __future__ import annotations

import importlib

from project import surface

HOW = (
    "The public surface is not the pinned one ('-' is gone, '+' is new). Whatever is gone needs a deprecation first "
    "(docs/stability.md). If the change is meant, run `python tests/project/pin.py surface`."
)


def test_the_public_surface_is_the_pinned_one():
    wrong = list(surface.differences(surface.load(), surface.measure()))
    assert not wrong, "\n".join([HOW, *wrong])


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
