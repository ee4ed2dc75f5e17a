"""The public surface as data: names, hooks, commands, `--json` keys, ids. It is pinned in `surface.json`."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kit.tiny import host, tiny_settings
from project.write_runs import FOLDER

FILE = Path(__file__).with_name("surface.json")
MODULES = ("stagelens", "stagelens.models", "stagelens.claims", "stagelens.testing", "stagelens.hookspecs")
# Objects whose keys are data (config keys, series, probes, ...) and no part of the surface.
DATA = ("config", "final", "skipped", "problems", "events", "exponents", "seeds", "spread", "files")
OLD = FOLDER / "0.1.0"
ANSWERS: dict[str, list[Any]] = {}  # what the commands printed when `measure` was last called


def measure() -> dict[str, Any]:
    """Returns the public surface of the current code."""
    return {
        "names": {module: names_of(module) for module in MODULES},
        "hooks": hooks(),
        "commands": commands(),
        "json": json_keys(),
        "tasks": {name: task_of(name) for name, _ in host().tasks},
        "probes": {name: list(reference.readings) for name, reference in host().probes},
        "claims": claims(),
    }


def names_of(module: str) -> list[str]:
    """The names in `__all__`, else the public names that the module itself defines."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return sorted(loaded.__all__)
    own = inspect.getsource(loaded)
    defined = [name for name, value in vars(loaded).items() if getattr(value, "__module__", module) == module]
    assigned = [name for name in vars(loaded) if f"\n{name} = " in own or f"\n{name}: " in own]
    kept = {name for name in [*defined, *assigned] if not name.startswith("_")}
    return sorted(
        name for name in kept - {"annotations", "TYPE_CHECKING"} if not inspect.ismodule(getattr(loaded, name))
    )


def hooks() -> dict[str, list[str]]:
    """The hooks with the names of their arguments, which an implementation may ask for."""
    specs = importlib.import_module("stagelens.hookspecs")
    found = {name: value for name, value in vars(specs).items() if name.startswith("stagelens_")}
    return {name: list(inspect.signature(function).parameters) for name, function in found.items()}


def commands() -> dict[str, Any]:
    """The arguments and options of every command; those before a command are under `stagelens`."""
    import typer.main

    from stagelens.cli.main import app

    _call("--help")  # registers the commands
    group: Any = typer.main.get_command(app)
    every = {"stagelens": group, **group.commands}
    return {name: _parameters(command) for name, command in sorted(every.items())}


def _parameters(command: Any) -> dict[str, list[str]]:
    options = [
        flag for one in command.params if one.opts[0].startswith("-") for flag in (*one.opts, *one.secondary_opts)
    ]
    arguments = [one.metavar or one.name for one in command.params if not one.opts[0].startswith("-")]
    return {"arguments": arguments, "options": sorted(options)}


def task_of(name: str) -> dict[str, list[str]]:
    kind = host().task(name).load()
    return {"presets": list(kind.presets), "config": sorted(kind.Config.model_fields)}


def claims() -> dict[str, list[str]]:
    owners = host().claims.owners
    return {plugin: [name for name in owners if owners[name] == plugin] for plugin in dict.fromkeys(owners.values())}


def json_keys() -> dict[str, list[str]]:
    """The keys that each command prints with `--json`, as paths such as `stages[].kind`, from really running it."""
    with TemporaryDirectory() as folder, chdir(folder):
        shutil.copytree(OLD, "runs")
        ANSWERS.clear()
        for title, words in calls():
            ANSWERS.setdefault(title, []).append(_answer(*words))
    return {title: sorted({path for one in some for path in _paths(one)}) for title, some in ANSWERS.items()}


def calls() -> list[tuple[str, list[str]]]:
    """Calls of every command that has `--json`, in a folder with the old runs in `runs`.

    The keys of several calls of one title are put together.
    """
    Path("curve.csv").write_text("step,value\n" + "".join(f"{n},{1.0 if n < 20 else 0.1}\n" for n in range(40)))
    _save_checkpoints(Path("saved"))
    swept = ["--grid", "T=16,32,64", "--fit", "T", *_sets("emergence/flow", "T"), "--workers", "1"]
    drawing = ["--plugin-dir", str(Path(__file__).parents[1] / "kit" / "figures_plugin.py")]
    return [
        ("tasks", ["tasks"]),
        ("tasks TASK", ["tasks", "recall/flow", "--time"]),
        ("tasks TASK", ["tasks", "rich/toy"]),
        ("probes", ["probes"]),
        ("probes PROBE", ["probes", "induction"]),
        ("plugins", ["plugins"]),
        ("doctor", ["doctor"]),
        ("runs", ["runs"]),
        *(("show", ["show", run]) for run in ("training", "flow", "phases")),
        ("export", ["export", "training", "--format", "csv"]),
        ("stages", ["stages", "training"]),
        ("stages", ["stages", "curve.csv"]),
        ("stages --joint", ["stages", "training", "--joint"]),
        ("compare", ["compare", "training", "flow", "-o", "both.csv"]),
        ("compare", ["compare", "ensemble-seed0", "ensemble-seed1", "--align", "fraction"]),
        ("report", ["report", "flow", "-o", "page.html"]),
        ("run", ["run", "recall/flow", *_sets("recall/flow"), "--name", "new"]),
        ("run --seeds", ["run", "linear-icl/separate", *_sets("linear-icl/separate"), "--seeds", "2", "--name", "two"]),
        ("sweep", ["sweep", "emergence/flow", *swept]),
        ("sweep --dry-run", ["sweep", "emergence/flow", *swept, "--dry-run"]),
        ("probe", ["probe", "saved", "--probes", "attention_sparsity,weight_norms"]),
        ("figure", [*drawing, "figure"]),
        ("figure", [*drawing, "figure", "halves", "fig2", "--cache", "cache"]),
        ("verify", ["verify", "recall", "--claim", "R5", "--workers", "1"]),
        ("new-plugin", ["new-plugin", "my-paper"]),
    ]


def _sets(task: str, *without: str) -> list[str]:
    return [
        word for key, value in tiny_settings(task).items() if key not in without for word in ("--set", f"{key}={value}")
    ]


def _save_checkpoints(folder: Path) -> None:
    """Three checkpoints of a HookedTransformer, as an analyst has them."""
    from safetensors.torch import save_file

    from stagelens.models import build_transformer

    folder.mkdir()
    for step in (1, 2, 3):
        model = build_transformer(n_layers=1, n_heads=2, d_model=8, n_ctx=8, d_vocab=5, seed=step)
        weights = {name: values.contiguous().clone() for name, values in model.state_dict().items()}
        save_file(weights, folder / f"step{step}.safetensors")
    config = {key: value for key, value in model.cfg.to_dict().items() if key not in ("dtype", "device")}
    (folder / "config.json").write_text(json.dumps(config, default=str))


def _answer(*words: str) -> Any:
    code, out = _call(*words, "--json")
    if code != 0:
        raise AssertionError(f"`stagelens {' '.join(words)} --json` ended with exit code {code}")
    return json.loads(out)


def _call(*words: str) -> tuple[int, str]:
    """The exit code and stdout of a command, called in this process."""
    from stagelens.cli.main import main

    before, sys.argv = sys.argv, ["stagelens", *words]
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("the command line did not end with an exit code")


def _paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _paths(item, f"{path}[]")
    elif isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}".lstrip(".")
            yield here
            if key in DATA and isinstance(item, dict):
                yield from (inner for one in item.values() for inner in _paths(one, f"{here}.*"))
            else:
                yield from _paths(item, here)


def measured_keys(schema: dict[str, Any], path: str = "") -> set[str]:
    """The keys that a JSON Schema names, as paths."""
    found = measured_keys(schema["items"], f"{path}[]") if "items" in schema else set()
    for key, inner in schema.get("properties", {}).items():
        found |= {f"{path}.{key}", *measured_keys(inner, f"{path}.{key}")}
    return found


def save(surface: dict[str, Any], path: Path = FILE) -> None:
    path.write_text(json.dumps(surface, indent=1) + "\n", encoding="utf-8")


def load(path: Path = FILE) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def differences(pinned: Any, found: Any, path: str = "") -> Iterator[str]:
    """One line for each name that is gone or new."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        for key in [*pinned, *(key for key in found if key not in pinned)]:
            here = f"{path} > {key}" if path else key
            if key not in found:
                yield f"- {here}"
            elif key not in pinned:
                yield f"+ {here}"
            else:
                yield from differences(pinned[key], found[key], here)
    else:
        yield from (f"- {path}: {name}" for name in pinned if name not in found)
        yield from (f"+ {path}: {name}" for name in found if name not in pinned)
        if sorted(pinned) == sorted(found) and pinned != found:
            yield f"~ {path}: the order was {', '.join(pinned)}, and is {', '.join(found)}"
