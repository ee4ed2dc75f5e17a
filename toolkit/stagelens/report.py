"""The report of a run: one self-contained html page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, select_autoescape

from stagelens.figures import write_figures
from stagelens.files import write_text

if TYPE_CHECKING:
    from stagelens.runs import Run

FILE = "report.html"


def write_report(run: Run) -> Path:
    """Draws the figures of `run` and writes its page. Returns the page's path."""
    figures = write_figures(run)
    environment = Environment(
        loader=PackageLoader("stagelens", "templates"), autoescape=select_autoescape(default=True)
    )
    environment.filters["number"] = lambda value: f"{value:.5g}" if isinstance(value, float) else value
    page = environment.get_template("report.html.j2").render(
        run=run, summary=run.summary(), figures=[(path.stem, _inline(path)) for path in figures]
    )
    write_text(run.folder / FILE, page)
    return run.folder / FILE


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
