"""The order of imports, the modules that commands may load, and the sizes of files and functions."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from functools import cache

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import public_names

TREES = {"toolkit": ("stagelens",), "probes": ("stagelens_probes",), "plugins": ()}
PACKAGE_FILES = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))


@cache
def nodes_of(path):
    """Returns all nodes of a file's code; each file is parsed once for all tests here."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imported(path):
    """The modules that a file imports, also inside functions."""
    return list(_imported(path))


def _imported(path):
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield node.module or ""


def ours(tree):
    return {module.partition(".")[0] for path in (ROOT / tree).rglob("*.py") for module in imported(path)} & {
        folder.name for name in TREES for folder in (ROOT / name).iterdir()
    }


def test_the_toolkit_imports_neither_probes_nor_plugins():
    assert ours("toolkit") == {"stagelens"}


def test_the_probes_import_no_plugin():
    assert ours("probes") <= {"stagelens", "stagelens_probes"}


def test_plugins_import_only_themselves_and_the_toolkit_and_probes():
    for plugin in (ROOT / "plugins").glob("stagelens_*"):
        used = {module.partition(".")[0] for path in plugin.rglob("*.py") for module in imported(path)}
        assert {name for name in used if name.startswith("stagelens")} <= {"stagelens", "stagelens_probes", plugin.name}


def test_only_one_file_names_the_class_that_transformer_lens_4_removes():
    naming = [path.relative_to(ROOT).as_posix() for path in PACKAGE_FILES if "HookedTransformer" in names_in(path)]
    assert naming == ["toolkit/stagelens/models/transformer.py"]


ROOMS = sorted(path.parent for path in (ROOT / "toolkit/stagelens").glob("*/__init__.py"))


def test_every_module_of_the_toolkit_is_in_a_room():
    flat = {path.stem for path in (ROOT / "toolkit/stagelens").glob("*.py")}
    assert flat == {"__init__", "__main__", "api", "hookspecs"} and len(ROOMS) == 17


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_other_rooms_import_only_the_names_that_a_room_declares(room):
    """Other rooms, probes and plugins import the names that `__init__.pyi` declares, not from the room's modules."""
    others = [path for path in PACKAGE_FILES if room not in path.parents and path.name != "__init__.py"]
    inside = {f"stagelens.{room.name}.{path.stem}" for path in room.glob("*.py") if path.stem != "__init__"}
    behind = {f"{path.relative_to(ROOT)}: {module}" for path in others for module in imported(path) if module in inside}
    allowed = {"cli"} if room.name == "cli" else set()
    assert not behind or room.name in allowed, behind


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_has_a_docstring_and_the_names_that_it_declares(room):
    door = importlib.import_module(f"stagelens.{room.name}")
    assert (door.__doc__ or "").startswith(f"{room.name}: ")
    if (stub := room / "__init__.pyi").exists():
        assert_as_declared(door, stub)


def assert_as_declared(package, stub):
    """The package has the names that its stub declares, no others, and each is the one of the module named there."""
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    declared = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level + bool(node.module)
        for alias in node.names
    }
    assert set(package.__all__) == declared.keys() - {"annotations"}
    for name in package.__all__:
        module, original = declared[name]
        base = package.__name__ if not module or not module.startswith("stagelens") else ""
        home = importlib.import_module(".".join(part for part in (base, module) if part))
        assert getattr(package, name) is getattr(home, original), name


def not_public(nodes):
    """The names that a plugin's code imports from the toolkit although they are not public, or not documented."""
    import stagelens

    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "stagelens":
            continue
        room = (node.module or "").partition(".")[2]
        if room in ("hookspecs", "testing"):
            continue
        documented = set(stagelens.__all__)
        if room:
            documented = documented_in(room) if room in PUBLIC else set()
        yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in documented)


PUBLIC = public_names.ROOMS


@cache
def documented_in(room):
    return {name for name, text in public_names.names_in(room).items() if text}


def test_what_built_in_plugins_and_probes_import_is_public_and_documented():
    built_in = [path for path in PACKAGE_FILES if path.relative_to(ROOT).parts[0] != "toolkit"]
    found = {path.name: names for path in built_in if (names := list(not_public(nodes_of(path))))}
    assert not found


def test_a_name_that_a_room_does_not_declare_is_not_public():
    source = (
        "from stagelens.training import run\nfrom stagelens.base.files import writing\nfrom stagelens.base import files"
    )
    assert list(not_public(ast.walk(ast.parse(source)))) == [
        "stagelens.training.run",
        "stagelens.base.files.writing",
        "stagelens.base.files",
    ]
    public = "from stagelens import run\nfrom stagelens.recording import Probe, ProbeContext"
    assert not list(not_public(ast.walk(ast.parse(public))))


def test_the_rooms_that_are_stable_are_those_of_the_docs():
    listed = re.search(r"rooms declare.*?;", (ROOT / "docs/stability.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert tuple(re.findall(r"`(?:stagelens)?\.(\w+)`", listed)) == PUBLIC


def test_the_path_of_a_measurement_is_as_the_docs_say():
    """Each step names a file and a function that are there, and no room comes twice."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"^\| \d+ \| `([\w/.]+): ([\w.]+)`", text, re.MULTILINE)
    assert len(hops) >= 9
    for file, name in hops:
        trees = [
            path for tree in TREES for path in (ROOT / tree).glob(file if tree != "toolkit" else f"stagelens/{file}")
        ]
        (path,) = trees
        defined = [node.name for node in nodes_of(path) if hasattr(node, "name")]
        assert set(name.split(".")) <= set(defined), (file, name)
    rooms = [file.partition("/")[0] for file, _ in hops]
    assert len(set(rooms)) == len(rooms)


LONGEST_FILE, LONGEST_TEST_FILE, LONGEST_FUNCTION = 350, 400, 50  # lines; of a function's body without its docstring


def body_length(function):
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.end_lineno - function.body[documented].lineno + 1


def longer_than(most, paths):
    return {
        path.relative_to(ROOT).as_posix() for path in paths if len(path.read_text(encoding="utf-8").splitlines()) > most
    }


def test_no_file_is_too_long():
    assert not longer_than(LONGEST_FILE, PACKAGE_FILES)
    assert not longer_than(LONGEST_TEST_FILE, (ROOT / "tests").rglob("*.py"))


def test_no_function_is_too_long():
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {body_length(node)} lines"
        for path in PACKAGE_FILES
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and body_length(node) > LONGEST_FUNCTION
    ]
    assert not long


def names_in(path):
    """Returns the identifiers of a file's code, without comments, docstrings and messages."""
    for node in nodes_of(path):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def test_no_file_names_a_path_of_one_machine():
    texts = [*PACKAGE_FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.*")]
    for path in texts:
        if path.is_file() and path.name != ".git":  # in a work tree it is a file that names the repository
            found = re.search(r"/(?:home|Users|root|work|tmp/v)/\w+", path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found}"


HEAVY = ("torch", "transformer_lens", "transformers", "matplotlib", "xarray", "pandas")
LIGHT_COMMANDS = (
    ["--help"],
    ["tasks", "--json"],
    ["probes", "--json"],
    ["plugins", "--json"],
    ["runs", "--json"],
    ["figure", "--json"],
)


def heavy_after(code):
    """The heavy modules that a fresh Python has loaded after `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def calling(*words):
    return f"""
sys.argv = ["stagelens", *{list(words)}]
from stagelens.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""


def test_importing_stagelens_imports_nothing_heavy():
    assert heavy_after("import stagelens; dir(stagelens); stagelens.__version__") == []


@pytest.mark.parametrize("words", LIGHT_COMMANDS, ids=lambda words: words[0])
def test_commands_that_only_list_import_nothing_heavy(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert heavy_after(calling(*words)) == []


def test_showing_a_run_imports_no_torch(tmp_path):
    from kit.tasks import Decay, run

    done = run(Decay, tmp_path)
    assert set(heavy_after(calling("show", str(done.folder), "--json"))) <= {"xarray", "pandas"}


def test_every_public_name_is_there():
    import stagelens

    assert_as_declared(stagelens, ROOT / "toolkit/stagelens/__init__.pyi")
    assert len(stagelens.__all__) >= 35
    with pytest.raises(AttributeError, match="nothing"):
        stagelens.nothing  # noqa: B018
