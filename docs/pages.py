"""What the site has beyond the files of this folder: a page per paper, from its plugin's README, and the changelog.

mkdocs calls the functions below. A paper's page ends with all checks of its claims as last verified, from `verified/`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from verdicts import BUDGETS, PAPERS, load, row, text, verdict_of

ROOT = Path(__file__).parent.parent
REPOSITORY_LINKS = re.compile(r"\]\((?:\.\./)*plugins/stagelens_(\w+)/README\.md(#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    for name, package in PAPERS.items():
        readme = ROOT / "plugins" / f"stagelens_{package}" / "README.md"
        written = re.sub(r"\]\((?:\.\./)*docs/", "](../", readme.read_text(encoding="utf-8"))
        tables = "".join(checks_table(name, budget) for budget in BUDGETS)
        files.append(File.generated(config, f"papers/{name}.md", content=written + tables))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to a plugin's README, as they are in the repository, lead to its page."""
    up = "../" * page.file.src_uri.count("/")
    names = {package: name for name, package in PAPERS.items()}
    return REPOSITORY_LINKS.sub(lambda m: f"]({up}papers/{names[m[1]]}.md{m[2] or ''})", markdown)


def checks_table(plugin: str, budget: str) -> str:
    """The checks of all claims of `plugin`: measured and expected values, and sanity checks marked as such."""
    results = load(plugin, budget)
    if not results:
        return ""
    lines = ["", f"## All checks, budget {budget}", ""]
    lines += ["| claim | verdict | check | measured | expected | tolerance | where | verdict of the check |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for result in results.values():
        claim, verdict = f"{result['id']}: {result['title']}", f"**{result['verdict']}**"
        for check in result["checks"]:
            interval = f" [{text(check['interval'])}]" if check.get("interval") else ""
            numbers = [text(check["measured"]) + interval, text(check["expected"]), text(check["tolerance"])]
            mark = verdict_of(check) + (" (sanity)" if check.get("sanity") else "")
            lines.append(row([claim, verdict, check["what"], *numbers, check["reference"], mark]))
            claim = verdict = ""
        if not result["checks"]:
            lines.append(row([claim, verdict, result.get("needs") or result["error"], "", "", "", "", ""]))
    lines += ["", f"`stagelens verify {plugin} --budget {budget}` repeats them.", ""]
    return "\n".join(lines)
