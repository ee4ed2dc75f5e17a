"""Writes a new plugin: a package with tests that works and that its author then changes."""

from __future__ import annotations

import re
from pathlib import Path

from stagelens.base import EnvironmentFault, UsageError

# The file that each template is rendered to; `package` is the name of the Python package.
FILES = {
    "pyproject.toml.j2": "pyproject.toml",
    "README.md.j2": "README.md",
    "init.py.j2": "src/{package}/__init__.py",
    "config.py.j2": "src/{package}/config.py",
    "data.py.j2": "src/{package}/data.py",
    "model.py.j2": "src/{package}/model.py",
    "losses.py.j2": "src/{package}/losses.py",
    "theory.py.j2": "src/{package}/theory.py",
    "predictions.py.j2": "src/{package}/predictions.py",
    "tasks.py.j2": "src/{package}/tasks.py",
    "probes.py.j2": "src/{package}/probes.py",
    "claims_init.py.j2": "src/{package}/claims/__init__.py",
    "claims_measures.py.j2": "src/{package}/claims/measures.py",
    "claims_copying.py.j2": "src/{package}/claims/copying.py",
    "figures_init.py.j2": "src/{package}/figures/__init__.py",
    "figures_copying.py.j2": "src/{package}/figures/copying.py",
    "conftest.py.j2": "tests/conftest.py",
    "test_plugin.py.j2": "tests/test_{module}.py",
}
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40


def write_plugin(name: str, into: Path, taken: set[str]) -> list[Path]:
    """Writes the skeleton of plugin `name` into the new directory `into / name`. Returns the files.

    `taken` are the names of the installed plugins.
    """
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        raise UsageError(
            f"plugin name {name!r}: expected lower-case letters, digits and single hyphens, a letter first, at most "
            f"{LONGEST} characters, for example my-paper"
        )
    if name in taken:
        raise UsageError(f"plugin name {name!r} is taken by an installed plugin; choose another")
    folder = into / name
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name, or another directory with --into")
    texts = _render(name)
    try:
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {folder}: {error.strerror or error}; give another --into") from None
    return [folder / path for path in texts]


def _render(name: str) -> dict[str, str]:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    import stagelens

    module = name.replace("-", "_")
    major, minor = stagelens.__version__.split(".")[:2]
    words = {
        "name": name,
        "package": f"stagelens_{module}",
        "module": module,
        "probe": f"{module}_source",
        "claim": f"{name.upper()}-1",
        "version": f"{major}.{minor}",
        "next_version": f"{int(major) + 1}" if int(major) else f"0.{int(minor) + 1}",
    }
    templates = Environment(  # nosec B701  # it writes Python and TOML, where HTML must not be escaped
        loader=PackageLoader("stagelens.cli"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    return {path.format(**words): templates.get_template(file).render(words) for file, path in FILES.items()}
