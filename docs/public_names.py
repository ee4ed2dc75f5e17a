"""The names that plugins may import from the toolkit, room by room, each with the first sentence of its documentation.

`pages.py` makes the page `reference/rooms.md` of it. Nothing is imported: the names are read from the source.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TOOLKIT = Path(__file__).parent.parent / "toolkit" / "stagelens"
# The rooms whose names are stable, as `stability.md` lists them.
ROOMS = ("base", "host", "timelines", "stages", "models", "experiments", "recording", "runs", "claims", "figures")


def page() -> str:
    """Returns the Markdown page: a table of names for each room."""
    lines = ["# Names for plugins", "", "What a plugin may import: `from stagelens.ROOM import NAME`.", ""]
    lines += ["See [what is stable](../stability.md) and [the rooms](../architecture.md).", ""]
    for room in ROOMS:
        lines += [f"## stagelens.{room}", "", "| name | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in sorted(names_in(room).items())]
        lines.append("")
    return "\n".join(lines)


def names_in(room: str) -> dict[str, str]:
    """Returns each name that the room's `__init__.pyi` declares, with its description; empty if it has none."""
    found = {}
    for node in ast.parse((TOOLKIT / room / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            source = (TOOLKIT / room / f"{node.module.replace(chr(46), chr(47))}.py").read_text(encoding="utf-8")
            found |= {alias.name: _described(source, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                source = (TOOLKIT / room / f"{alias.name}.py").read_text(encoding="utf-8")
                found[alias.name] = _first_sentence(ast.get_docstring(ast.parse(source)) or "")
    return found


def _described(source: str, name: str) -> str:
    """Returns the first sentence of the docstring of `name`; of a constant the comment on its line, else its value."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _first_sentence(ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _assigned(node):
            comment = re.search(r"  # (.*)$", lines[node.lineno - 1]) or re.match(r"# (.*)$", lines[node.lineno - 2])
            return comment[1] if comment else f"`{ast.unparse(node.value)[:80]}`" if node.value else ""
    return ""


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {found.id for target in targets for found in ast.walk(target) if isinstance(found, ast.Name)}


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
