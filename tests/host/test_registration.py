"""The table of a plugin, `Registration`: what it registers is what the hooks would, and mistakes are one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stagelens as sl
from stagelens.base import UsageError
from stagelens.host import make_host

pytestmark = pytest.mark.usefixtures("imports")

TABLE = """
from stagelens import Registration, TaskRef, hookimpl

plugin = Registration(__name__)
plugin.task("tabled/one", "tasks:One", "first")
plugin.task("tabled/two", "tasks:Two", "second", ("quick", "fig2"))
plugin.probe("tabled_probe", "probes:Probe", "a probe", ("value",), passes="1", default=False)
plugin.claim("TB1", "claims.main:First", "it holds")
plugin.figure("fig1", "figures.main:fig1", "drawn by a function", "the paper's", ("TB1",))
plugin.figure("fig2", "tabled/two", "drawn by a task with a preset", settings={"steps": 3})
plugin.figure("fig3", "tabled/two", "drawn by a task without one")
"""


def loaded(folder, text, name="tabled"):
    (folder / f"{name}.py").write_text(text)
    return make_host([folder / f"{name}.py"], installed=False)


def test_a_table_registers_the_references_that_hooks_would_return(tmp_path):
    host = loaded(tmp_path, TABLE)
    assert not host.failed
    assert [ref for _, ref in host.tasks] == [
        sl.TaskRef("tabled/one", "first", ("quick", "paper"), "tabled.tasks:One", default=True),
        sl.TaskRef("tabled/two", "second", ("quick", "fig2"), "tabled.tasks:Two"),
    ]
    expected = sl.ProbeRef("tabled_probe", "a probe", ("value",), "tabled.probes:Probe", passes="1", default=False)
    assert host.probes["tabled_probe"] == expected
    assert host.claims["TB1"] == sl.ClaimRef("TB1", "it holds", "tabled.claims.main:First")
    assert [ref for _, ref in host.figures] == [
        sl.FigureRef("fig1", "drawn by a function", "tabled.figures.main:fig1", paper="the paper's", claims=("TB1",)),
        sl.FigureRef("fig2", "drawn by a task with a preset", task="tabled/two", preset="fig2", settings={"steps": 3}),
        sl.FigureRef("fig3", "drawn by a task without one", task="tabled/two"),
    ]
    assert host.task("tabled").id == "tabled/one"


def test_a_plugin_may_have_a_table_and_hooks(tmp_path):
    hook = (
        '\n@hookimpl\ndef stagelens_register_tasks():\n    return [TaskRef("tabled/three", "x", ("quick",), "x:X")]\n'
    )
    host = loaded(tmp_path, TABLE + hook)
    assert [name for name, _ in host.tasks] == ["tabled/one", "tabled/two", "tabled/three"]


def test_a_name_that_table_and_hook_share_is_registered_twice(tmp_path):
    hook = '\n@hookimpl\ndef stagelens_register_tasks():\n    return [TaskRef("tabled/one", "x", ("quick",), "x:X")]\n'
    host = loaded(tmp_path, TABLE + hook)
    assert "task 'tabled/one' is registered twice" in host.failed[0].error and not dict(host.tasks)


def test_a_target_without_a_module_is_in_the_plugins_own_file(tmp_path):
    text = TABLE.replace('"tasks:One"', '":One"') + "\n\nclass One:\n    pass\n"
    assert loaded(tmp_path, text).task("tabled/one").load().__name__ == "One"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('plugin.task("tabled/x", "Copy", "x")', "target 'Copy': expected module:name inside tabled"),
        ('plugin.claim("X", "claims.copying:", "x")', "target 'claims.copying:': expected module:name"),
        ('plugin.figure("fig4", "tabled/late", "x")', "task 'tabled/late' is not registered; register it before"),
        ('plugin.figure("fig 4", "figures:fig4", "x")', "figure 'fig 4': expected a name"),
    ],
)
def test_a_mistake_in_the_table_is_one_line_at_the_line_of_the_table(line, message, tmp_path):
    host = loaded(tmp_path, f"{TABLE}{line}\n")
    (failed,) = host.failed
    assert message in failed.error and "\n" not in failed.error
    assert failed.file.endswith(f"tabled.py:{len(TABLE.splitlines()) + 1}"), failed.file
    assert not dict(host.tasks)


def test_another_object_called_plugin_is_no_table(tmp_path):
    assert not loaded(tmp_path, "plugin = {'tasks': 3}\n").failed


def test_the_table_itself_reports_a_mistake():
    with pytest.raises(UsageError, match="expected module:name inside mine"):
        sl.Registration("mine").task("mine/x", "X", "x")


def test_listing_what_the_built_in_plugins_register_imports_no_torch():
    code = "import sys; from stagelens.host import make_host; h = make_host(); assert len(list(h.tasks)) >= 17; "
    done = subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
