"""Pages of the reference that are read from the source: the probe context, and the run directory."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TOOLKIT = Path(__file__).parent.parent / "toolkit" / "stagelens"


def context_page() -> str:
    """Returns the fields and methods of `ProbeContext` and of `Site`."""
    source = (TOOLKIT / "recording" / "context.py").read_text(encoding="utf-8")
    lines = [*CONTEXT.splitlines(), ""]
    for name, title in (("ProbeContext", "ProbeContext"), ("Site", "Site: where a hook is")):
        node = _class(source, name)
        lines += [
            f"## {title}",
            "",
            _text(ast.get_docstring(node)),
            "",
            "| field | meaning | type | default |",
            "|---|---|---|---|",
        ]
        lines += [_field(one, source) for one in node.body if isinstance(one, ast.AnnAssign) and _public(one)]
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
        methods = [one for one in methods if ast.get_docstring(one)]
        lines += ["", *(line for method in methods for line in _method(method))]
    return "\n".join(lines).rstrip() + "\n"


CONTEXT = """# The probe context

`applies`, `reduce` and `readings` of a probe get a `ProbeContext`: the model and all that is known about it at one
measurement. `from stagelens.recording import ProbeContext, Site`. The tutorial is [your own
probe](../tutorial/probe.md)."""
HIDDEN = {"constants", "sampled", "shared"}  # behind `constant`, `read_queries` and `once`


def _public(field: ast.AnnAssign) -> bool:
    return isinstance(field.target, ast.Name) and field.target.id not in HIDDEN


def run_directory_page() -> str:
    """Returns what is in the directory of a run: files, fields of the manifest, tables, checkpoints, statuses."""
    manifest = (TOOLKIT / "runs" / "manifest.py").read_text(encoding="utf-8")
    store = (TOOLKIT / "runs" / "store.py").read_text(encoding="utf-8")
    schema = re.search(r'SCHEMA = """\n(.*?)"""', store, re.DOTALL)
    assert schema is not None
    fields = [one for one in _class(manifest, "Manifest").body if isinstance(one, ast.AnnAssign)]
    return RUN_DIRECTORY.format(
        files="\n".join(f"| `{name}` | {what} |" for name, what in FILES.items()),
        fields="\n".join(_field(one, manifest) for one in fields),
        statuses="\n".join(f"| `{name}` | {what} |" for name, what in STATUSES.items()),
        schema=schema[1].strip(),
    )


RUN_DIRECTORY = """# The run directory

A run is a directory in the runs directory (`--runs`, `$STAGELENS_RUNS`, else `runs`):

| file | content |
|---|---|
{files}

A sweep has its own directory `sweeps/NAME` with `sweep.json`, `table.csv`, `table.parquet` and `figures/`. Its grid
points are runs in `points/`.

## run.json

The manifest is replaced atomically. It has these fields, and `checksum`, a digest of all others. An older run lacks
newer fields, which then have their defaults.

| field | meaning | type | default |
|---|---|---|---|
{fields}

| status | meaning |
|---|---|
{statuses}

## timeline.sqlite

SQLite in WAL mode, with one transaction per measurement, so it can be read while it is written. `layout.columns` is
JSON: name, dims, shape, coordinates and labels of each series. A layout is added when a reading appears or changes its
shape.

```sql
{schema}
```

`sl.load(RUN).timeline` reads it; `stagelens export RUN --format parquet` writes it for other programs.

## checkpoints

The name is the step, with nine digits. The file is safetensors. Its metadata are the texts `stagelens` (the format),
`task`, `step`, `content` (a digest of task, config and seed), `trees` (JSON: which tensor belongs where) and
`checksum`. It holds the states of model, optimizer, scheduler and recorder. `run.model_at(step)` gives the model.
"""
FILES = {
    "run.json": "the manifest: what the run is, how it was made, and its status",
    "timeline.sqlite": "every measurement",
    "checkpoints/000000120.safetensors": "weights, optimizer, scheduler and probe states at a step (trainings only)",
    "figures/": "figures, as png and svg",
    "report.html": "the HTML report",
    "run.lock": "held by the process that writes the run",
}
STATUSES = {
    "running": "a process writes the run; if the process is gone, `stagelens runs` shows it as interrupted",
    "finished": "the run reached its last step",
    "interrupted": "it was stopped; `--resume` continues it",
    "failed": "it ended with an error, which `error` has",
}


def _class(source: str, name: str) -> ast.ClassDef:
    return next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)


ALIASES = {
    "Integer": "int",
    "Number": "int | float",
    "Texts": "list[str]",
    "Rows": "list[dict]",
    "NamedTexts": "dict[str, str]",
    "NamedNumbers": "dict[str, float]",
}


def _field(node: ast.AnnAssign, source: str) -> str:
    """Returns the row of a dataclass field: its name, the comment on its line, its type, and its default."""
    comment = re.search(r"  # (.*)$", source.splitlines()[node.lineno - 1])
    kind = re.sub(r"\w+", lambda word: ALIASES.get(word[0], word[0]), ast.unparse(node.annotation))
    default = ast.unparse(node.value) if node.value is not None else ""
    made = re.search(r"default_factory=(?:lambda: )?(\w+)", default)
    default = {"dict": "{}", "list": "[]"}.get(made[1], "all") if made else default
    cells = [f"`{ast.unparse(node.target)}`", comment[1] if comment else "", f"`{kind}`"]
    cells.append(f"`{default}`" if default else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _method(node: ast.FunctionDef) -> list[str]:
    arguments = ", ".join(one.arg for one in node.args.args if one.arg not in ("self", "cls"))
    text = _text(ast.get_docstring(node))
    return [f"**`{node.name}({arguments})`** {text}", ""]


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").split())
