"""The names that plugins may import from the toolkit, room by room, each with the first sentence of its documentation.

`reference_pages.py` writes it to `reference/names.md`. Nothing is imported: the names are read from the source.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from signatures import TOOLKIT, signatures

# The rooms whose names are stable, as `stability.md` lists them.
ROOMS = ("base", "host", "timelines", "stages", "models", "experiments", "recording", "runs", "claims", "figures")


def page() -> str:
    """Returns the Markdown page: a table of names for each room."""
    lines = [
        "# Public names",
        "",
        "`import stagelens as sl` has the names of the first table. Plugins and programs may also",
        "",
    ]
    lines[-2] += " import the names of the rooms: `from stagelens.ROOM import NAME`."
    lines += [
        "Signatures are below each table; [Python](api.md) has the whole documentation on the site. See also",
        "[what is stable](../stability.md) and [the rooms](../architecture.md).",
        "",
    ]
    lines += _table("stagelens", public_names()) + _signatures(TOOLKIT)
    lines += _table("stagelens.testing", names_in("testing", "__init__.py"))
    lines += _signatures(TOOLKIT / "testing", "__init__.py")
    for room in ROOMS:
        lines += _table(f"stagelens.{room}", names_in(room)) + _signatures(TOOLKIT / room)
    return "\n".join(lines)


def _table(title: str, names: dict[str, str]) -> list[str]:
    rows = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in sorted(names.items())]
    return [f"## {title}", "", "| name | what it is |", "|---|---|", *rows, ""]


def _signatures(folder: Path, declared: str = "__init__.pyi") -> list[str]:
    return ["```text", *signatures(folder, declared), "```", ""]


def public_names() -> dict[str, str]:
    """Returns the names of `stagelens` itself, each with its description."""
    found = {}
    for node in ast.parse((TOOLKIT / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = TOOLKIT / node.module.replace(".", "/")
            known = names_in(node.module) if folder.is_dir() else {}
            for alias in node.names:
                file = folder.with_suffix(".py")
                source = file.read_text(encoding="utf-8") if file.is_file() else ""
                text = known.get(alias.name) or _described(source, alias.name)
                found[alias.name] = text or names_in("training").get(alias.name, "")  # `Recorder` wraps the engine's
    return found


def names_in(room: str, declared: str = "__init__.pyi") -> dict[str, str]:
    """Returns each name that the room's `declared` file imports, with its description; empty if it has none."""
    found = {}
    for node in ast.parse((TOOLKIT / room / declared).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.removeprefix(f"stagelens.{room}.")
            source = (TOOLKIT / room / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
            found |= {alias.name: _described(source, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                source = (TOOLKIT / room / f"{alias.name}.py").read_text(encoding="utf-8")
                found[alias.name] = _first_sentence(ast.get_docstring(ast.parse(source)) or "")
    return found


def _described(source: str, name: str) -> str:
    """Returns the first sentence of the docstring of `name`; of a constant the comment on its line, else its value.

    A name of another library has the comment on the line of its import.
    """
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _first_sentence(ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _assigned(node):
            comment = re.search(r"  # (.*)$", lines[node.lineno - 1]) or re.match(r"# (.*)$", lines[node.lineno - 2])
            return comment[1] if comment else f"`{ast.unparse(node.value)[:80]}`" if node.value else ""
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if alias.asname == name and (comment := re.search(r"  # (.*)$", lines[alias.lineno - 1])):
                return comment[1]
    return ""


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {found.id for target in targets for found in ast.walk(target) if isinstance(found, ast.Name)}


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
