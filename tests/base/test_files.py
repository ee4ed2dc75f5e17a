"""Atomic writes, and names of runs that cannot lead out of the runs directory."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.base.files import safe_name, write_text, writing


def test_what_is_written_replaces_the_file_at_once(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with writing(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_next_to_it(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), writing(path) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_an_environment_error(tmp_path):
    with pytest.raises(EnvironmentFault, match=r"cannot write .*No such file or directory"):
        write_text(tmp_path / "nowhere" / "a.txt", "text")
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="Not a directory"):
        write_text(tmp_path / "file" / "a.txt", "text")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../a", "/a", "a\\b", "a\0b", " a", "a\n", "x" * 201]
)
def test_names_that_could_leave_the_folder_are_refused(name):
    with pytest.raises(UsageError, match="run name"):
        safe_name(name)


@given(st.text(max_size=60))
def test_an_accepted_name_is_one_visible_folder_inside(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp()
    try:
        safe_name(name)
    except UsageError:
        return
    path = folder / name
    assert path.parent == folder and path.resolve().parent == folder.resolve() and not path.name.startswith(".")
