"""The generated pages of the reference are those of this version."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import reference_pages  # noqa: E402

HOW = "run `python docs/reference_pages.py`"


@pytest.mark.parametrize("file", reference_pages.PAGES)
def test_a_page_is_not_stale(file):
    assert (reference_pages.FOLDER / file).read_text(encoding="utf-8") == reference_pages.written(file), HOW


def test_every_public_name_is_on_the_page_of_python():
    import stagelens

    page = (reference_pages.FOLDER / "api.md").read_text(encoding="utf-8")
    assert [name for name in stagelens.__all__ if not re.search(rf"[.]{name}$|`sl[.]{name}`", page, re.MULTILINE)] == []


def test_every_public_name_and_field_is_described():
    for file in ("names.md", "context.md", "run-directory.md"):
        rows = re.findall(r"^\| `(\w+)` \|  \|", (reference_pages.FOLDER / file).read_text("utf-8"), re.MULTILINE)
        assert rows in ([], ["name", "layer", "hook"]), f"{file}: {rows}"  # the fields of Site, which its docstring has


def test_the_exit_codes_are_those_of_the_errors():
    from stagelens.base import EnvironmentFault, StagelensError, UsageError
    from stagelens.cli.output import INTERRUPTED

    codes = {0, *(kind.exit_code for kind in (StagelensError, UsageError, EnvironmentFault)), INTERRUPTED}
    assert codes == reference_pages.EXIT_CODES.keys()


def test_every_environment_variable_has_a_meaning():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "toolkit").rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"STAGELENS_[A-Z_]*[A-Z]", source)}
    assert used == reference_pages.ENVIRONMENT.keys()
