"""The signatures of the functions and classes of a room, as text, for `reference/names.md`.

Nothing is imported: they are read from the source.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

TOOLKIT = Path(__file__).parent.parent / "toolkit" / "stagelens"
WIDEST = 110  # letters of a line


def signatures(folder: Path, declared: str = "__init__.pyi") -> list[str]:
    """Returns the signature of each function and class that the `declared` file of `folder` imports, by name."""
    found = {}
    for node in ast.parse((folder / declared).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for alias in node.names:
                own = _definition(folder, node.module or alias.name, alias.name)
                wrapped = _definition(TOOLKIT, "training", alias.name) if folder == TOOLKIT else None  # the Recorder
                text = next((text for one in (own, wrapped) if one is not None and (text := _signature(one))), "")
                if text:
                    found[alias.name] = text
    return [found[name] for name in sorted(found)]


def _definition(folder: Path, module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """Returns the definition of `name`, which `module` of `folder` defines or imports; None if it is neither."""
    start = TOOLKIT.parent if module.split(".")[0] == "stagelens" else folder
    place = start / module.replace(".", "/")
    if place.is_dir():
        for node in ast.parse((place / "__init__.pyi").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
                return _definition(place, node.module or name, name)
        return None
    file = place.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    defined = (node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
    return next(defined, None)


def _signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Returns `name(arguments) -> result`; of a class the arguments of `__init__`, else its fields."""
    if isinstance(node, ast.FunctionDef):
        return _wrapped(
            f"{node.name}({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
        )
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            arguments = ast.unparse(inner.args).removeprefix("self").removeprefix(", ")
            return _wrapped(f"{node.name}({arguments})")
    decorators = [ast.unparse(one) for one in node.decorator_list]
    if not any("dataclass" in one for one in decorators):
        return ""
    fields = [
        one for one in node.body if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_")
    ]
    shown = [ast.unparse(one) for one in fields if "ClassVar" not in ast.unparse(one.annotation)]
    if not shown:
        return ""
    return _wrapped(f"{node.name}({', '.join(shown)})")


def _wrapped(text: str) -> str:
    return "\n".join(
        textwrap.wrap(text, WIDEST, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    )
