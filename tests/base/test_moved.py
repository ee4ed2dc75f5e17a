"""Old names of the toolkit still work, and emit a warning that gives the new name."""

from __future__ import annotations

import importlib

import pytest

from stagelens.base.moved import MOVED, RENAMED


@pytest.mark.parametrize("old", RENAMED)
def test_a_renamed_name_is_the_new_one_with_a_warning(old):
    module, _, name = old.rpartition(".")
    room, new = importlib.import_module(module), RENAMED[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}") as warned:
        assert getattr(room, name) is getattr(room, new)
    assert warned[0].filename == __file__, "the warning points at whoever used the old name"
    assert name not in room.__all__


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_gives_the_names_of_the_new_module(old, monkeypatch):
    monkeypatch.delitem(importlib.sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        module = importlib.import_module(old)
    room = importlib.import_module(MOVED[old])
    assert all(getattr(module, name) is getattr(room, name) for name in room.__all__)


def test_the_context_of_a_recorder_has_its_old_name():
    import stagelens as sl
    from kit.probe_models import tokens, transformer

    recorder = sl.Recorder(transformer(), [], batch=tokens())
    with pytest.warns(DeprecationWarning, match=r"Recorder.scene is now Recorder.context") as warned:
        assert recorder.scene is recorder.context
    assert warned[0].filename == __file__
