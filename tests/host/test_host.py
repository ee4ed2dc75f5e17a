"""Plugins are found and loaded; errors name the plugin, and a broken one does not affect the others."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

from stagelens.base.errors import UsageError
from stagelens.host.host import make_host

pytestmark = pytest.mark.usefixtures("imports")

GOOD = """
from stagelens import ProbeRef, TaskRef, hookimpl

@hookimpl
def stagelens_register_tasks():
    return [TaskRef("{name}/one", "first", ("quick",), "{name}:One"),
            TaskRef("{name}/two", "second", ("quick", "paper"), "{name}:Two", default=True)]

@hookimpl
def stagelens_register_probes():
    return [ProbeRef("{name}_probe", "a probe", ("value",), "{name}:Probe")]
"""

HOOKIMPL = "from stagelens import hookimpl\n\n\n@hookimpl\n"

# what is wrong -> (text, what the error says, the line that is to blame)
BAD = {
    "import_error": ("import stagelens\n\nimport nothing_of_that_name\n", "No module named 'nothing_of_that_name'", 3),
    "syntax_error": ("x = 1\ndef f(:\n", "SyntaxError", 2),
    "misspelt": (
        HOOKIMPL + "def stagelens_register_task():\n    return []\n",
        "did you mean 'stagelens_register_tasks'",
        4,
    ),
    "wrong_argument": (HOOKIMPL + "def stagelens_run_started(runs):\n    pass\n", "{'runs'}", 4),
    "raises": (HOOKIMPL + "def stagelens_register_probes():\n    return [1 / 0]\n", "ZeroDivisionError", 6),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
}


def write(folder, name, text=GOOD):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text.replace("{name}", name))
    return path


def plugin(host, name):
    return next(plugin for plugin in host.plugins if plugin.name == name)


def test_the_built_in_plugins_come_through_entry_points():
    host = make_host()
    entries = {entry.name for entry in importlib.metadata.entry_points(group="stagelens")}
    assert {"markov", "probes"} <= entries == {plugin.name for plugin in host.plugins}
    version = importlib.metadata.version("stagelens")
    assert {(p.status, p.error, p.version) for p in host.plugins} == {("loaded", "", version)}
    assert host.task("markov").id == "markov/minimal"
    assert host.tasks.owners["markov/minimal"] == "markov"
    assert host.probes.owners["attention_sparsity"] == "probes"


def test_a_file_a_package_a_folder_and_a_module_can_be_plugins(tmp_path, monkeypatch):
    file = write(tmp_path / "a", "as_file")
    package = tmp_path / "b" / "as_package"
    write(package, "__init__", GOOD.replace("{name}", "as_package"))
    folder = tmp_path / "c"
    write(folder, "in_folder")
    write(folder, "test_in_folder", "raise Exception('a test is not a plugin')")
    write(folder / "pack", "__init__", GOOD.replace("{name}", "pack"))
    write(tmp_path / "d" / "src", "under_src")
    write(tmp_path / "e", "as_module")
    monkeypatch.syspath_prepend(tmp_path / "e")
    host = make_host([file, package, folder, tmp_path / "d", "as_module"])
    names = ["as_file", "as_package", "in_folder", "pack", "under_src", "as_module"]
    assert [p.name for p in host.plugins if p.version == "development"] == names
    assert not host.failed
    assert {f"{name}/one" for name in names} <= dict(host.tasks).keys()
    assert plugin(host, "pack").file == str(folder / "pack" / "__init__.py")


def test_the_environment_names_plugins_too(tmp_path, monkeypatch):
    first, second = write(tmp_path, "env_first"), write(tmp_path, "env_second")
    monkeypatch.setenv("STAGELENS_PLUGINS", os.pathsep.join([str(first), "", str(second)]))
    assert {"env_first", "env_second"} <= {p.name for p in make_host().plugins if p.status == "loaded"}


def test_a_plugins_bare_name_means_its_default_task(tmp_path):
    host = make_host([write(tmp_path, "bare")])
    assert host.task("bare").id == "bare/two"
    assert host.default_task("nobody") is None


@pytest.mark.parametrize("kind", BAD)
def test_a_plugin_that_fails_is_named_by_file_and_line_and_the_others_work(kind, tmp_path):
    text, message, line = BAD[kind]
    path = write(tmp_path, f"bad_{kind}", text)
    write(tmp_path, f"good_beside_{kind}")
    host = make_host([tmp_path])
    blamed = plugin(host, f"bad_{kind}")
    assert blamed.status == "failed" and message in blamed.error and "\n" not in blamed.error
    assert blamed.file == f"{path}:{line}"
    assert [p.name for p in host.failed] == [f"bad_{kind}"]
    assert host.task(f"good_beside_{kind}") and host.task("markov")
    assert not host.manager.has_plugin(f"bad_{kind}")


def test_a_failed_plugin_leaves_nothing_registered(tmp_path):
    text = GOOD + "\n@hookimpl\ndef stagelens_register_claims():\n    raise RuntimeError('late')\n"
    host = make_host([write(tmp_path, "halfway", text)])
    assert plugin(host, "halfway").error == "RuntimeError: late"
    assert not [name for name, _ in [*host.tasks, *host.probes] if name.startswith("halfway")]


def test_two_plugins_with_one_task_name_are_both_named_and_neither_has_it(tmp_path):
    first = write(tmp_path / "a", "first", GOOD.replace("{name}/one", "shared/task"))
    second = write(tmp_path / "b", "second", GOOD.replace("{name}/one", "shared/task"))
    host = make_host([first, second])
    for ask in (lambda: host.task("shared/task"), lambda: host.task("shared")):
        with pytest.raises(UsageError, match=r"'shared/task' .*two plugins, 'first' and 'second'"):
            ask()
    assert "'first' and 'second'" in plugin(host, "second").error
    assert host.task("first/two") and "second/two" not in dict(host.tasks)


def test_a_probe_name_of_a_built_in_is_disputed_and_other_probes_still_run(tmp_path):
    host = make_host([write(tmp_path, "taker", GOOD.replace("{name}_probe", "weight_norms"))])
    with pytest.raises(UsageError, match="'probes' and 'taker'"):
        host.probes["weight_norms"]
    assert "weight_norms" not in dict(host.probes) and "attention_sparsity" in dict(host.probes)


def test_one_plugin_that_registers_a_name_twice_fails(tmp_path):
    host = make_host([write(tmp_path, "twice", GOOD.replace("{name}/two", "{name}/one"))])
    assert plugin(host, "twice").error.startswith("task 'twice/one' is registered twice by plugin 'twice'")


def test_a_plugin_given_twice_is_loaded_once(tmp_path):
    path = write(tmp_path, "given_twice")
    host = make_host([path, path, "stagelens_markov"])
    errors = {p.name: p.error for p in host.failed}
    assert errors["given_twice"].startswith("it is already loaded") and str(path) in errors["given_twice"]
    assert "as 'markov'" in errors["stagelens_markov"]
    assert host.task("given_twice") and host.task("markov")


def test_a_plugin_that_hides_another_module_is_refused(tmp_path):
    host = make_host([write(tmp_path, "json")])
    assert "has the name of another module" in plugin(host, "json").error


def test_paths_without_a_plugin_are_mistakes(tmp_path):
    with pytest.raises(UsageError, match="has no Python module"):
        make_host([tmp_path])
    with pytest.raises(UsageError, match="does not exist"):
        make_host([tmp_path / "nowhere"])


def test_unknown_names_list_the_known_ones_and_the_nearest():
    host = make_host()
    with pytest.raises(UsageError, match=r"unknown task 'markow' \(did you mean 'markov'\?\); known: .*markov/min"):
        host.task("markow")
    with pytest.raises(UsageError, match=r"'attention_sparcity' \(did you mean 'attention_sparsity'\?\).*weight_norms"):
        host.probes["attention_sparcity"]
