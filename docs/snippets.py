"""The code blocks of README and docs, and their type check: `python docs/snippets.py` calls mypy on all of them.

A page's Python blocks share one set of names, as for a reader who types them. A block with `title="PATH"` is (a part
of) that file of an example. A `text` block right after a Python block is what that block prints.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
EXAMPLES = ROOT / "docs" / "examples"
BUILT = ROOT / ".mypy_cache" / "snippets"
CONFIG = """[mypy]
python_version = 3.11
check_untyped_defs = true
allow_redefinition = true
ignore_missing_imports = true
disable_error_code = no-redef, has-type, union-attr, var-annotated
plugins = pydantic.mypy
mypy_path = {path}
[mypy-transformer_lens.*,matplotlib.*,plotly.*,lightning.*,transformers.*]
follow_imports = skip
[mypy-page_docs_own_model]
disable_error_code = arg-type
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is a part of, its text, and what it prints (None: not shown)."""

    language: str
    title: str
    text: str
    printed: str | None = None


def pages() -> list[Path]:
    """Returns README, the pages of the docs and the READMEs of the plugins, without those of the examples."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    return sorted(page for page in found if "examples" not in page.parts)


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = [*FENCE.finditer(text)]
    made = []
    for index, one in enumerate(found):
        language, _, rest = one[1].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', rest)
        after = found[index + 1] if index + 1 < len(found) else None
        shown = after is not None and after[1].strip() == "text" and not text[one.end() : after.start()].strip()
        printed = after[2] if after is not None and shown and language == "python" and not title else None
        made.append(Block(language, title[1] if title else "", one[2], printed))
    return made


def code_of(page: Path) -> str:
    """Returns the Python blocks of a page as one module."""
    return "\n".join(block.text for block in blocks(page) if block.language == "python" and not block.title)


def main() -> int:
    """Type-checks the blocks of every page, and the examples. Returns the exit code of mypy."""
    from mypy import api

    BUILT.mkdir(parents=True, exist_ok=True)
    for old in BUILT.glob("*.py"):
        old.unlink()
    for page in pages():
        if code := code_of(page):
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            (BUILT / f"page_{name}.py").write_text(code, encoding="utf-8")
    path = [ROOT / part for part in ("toolkit", "probes", "plugins")] + [*EXAMPLES.glob("*/src")]
    config = BUILT / "mypy.ini"
    config.write_text(CONFIG.format(path=":".join(map(str, path))), encoding="utf-8")
    examples = [str(folder) for folder in EXAMPLES.glob("*/src/*") if folder.is_dir()]
    out, err, code = api.run(["--config-file", str(config), *map(str, BUILT.glob("*.py")), *examples])
    print(out + err, end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
