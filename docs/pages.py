"""What the site has beyond the files of this folder: a page per paper, from its plugin's README, the public
names of the rooms, and the changelog.

mkdocs calls the functions below. A paper's page ends with its claims as they were last verified, from `verified/`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import public_names

ROOT = Path(__file__).parent.parent
PAPERS = {"markov": "markov", "linear-icl": "linear_icl", "recall": "recall", "rich": "rich", "emergence": "emergence"}
REPOSITORY_LINKS = re.compile(r"\]\((?:\.\./)*plugins/stagelens_(\w+)/README\.md(#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    for name, package in PAPERS.items():
        readme = ROOT / "plugins" / f"stagelens_{package}" / "README.md"
        text = readme.read_text(encoding="utf-8")
        text = re.sub(r"\]\((?:\.\./)*docs/", "](../", text) + claims_table(name)
        files.append(File.generated(config, f"papers/{name}.md", content=text))
    files.append(File.generated(config, "reference/rooms.md", content=public_names.page()))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to a plugin's README, as they are in the repository, lead to its page."""
    up = "../" * page.file.src_uri.count("/")
    names = {package: name for name, package in PAPERS.items()}
    return REPOSITORY_LINKS.sub(lambda m: f"]({up}papers/{names[m[1]]}.md{m[2] or ''})", markdown)


def claims_table(plugin: str) -> str:
    """The claims of `plugin` with their verdicts, each check's measured beside its expected value."""
    kept = ROOT / "docs" / "verified" / f"{plugin}.json"
    if not kept.exists():
        return ""
    rows = [
        "",
        "## Claims, as last verified",
        "",
        "| claim | verdict | check | measured | expected | tolerance | where |",
    ]
    rows.append("|---|---|---|---|---|---|---|")
    for result in json.loads(kept.read_text(encoding="utf-8")):
        claim, verdict = f"{result['id']}: {result['title']}", f"**{result['verdict']}**"
        for check in result["checks"]:
            mark = "" if check["holds"] else " ✗"
            cells = [claim, verdict, check["what"] + mark, *(_text(check[k]) for k in ("measured", "expected"))]
            rows.append(_row([*cells, _text(check["tolerance"]), check["reference"]]))
            claim = verdict = ""
        if not result["checks"]:
            rows.append(_row([claim, verdict, result["error"], "", "", "", ""]))
    rows += ["", f"`stagelens verify {plugin}` repeats them.", ""]
    return "\n".join(rows)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_text(item) if not isinstance(item, list) else f"({_text(item)})" for item in value)
    return str(value)
