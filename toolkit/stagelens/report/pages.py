"""HTML reports: of a run, of several runs, and of a comparison, each one self-contained file.

A report loads nothing from the network: plotly's script and all figures are inside it. Its Content-Security-Policy
forbids everything else, and allows two scripts by their hashes. The template engine escapes every text, also in the
data of the charts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from stagelens.base import noting, own, write_text
from stagelens.claims import last_results

if TYPE_CHECKING:
    from jinja2 import Environment

    from stagelens.comparing import AlignedRuns
    from stagelens.runs import Run

FILE = "report.html"
CAPTIONS = {
    "overview": "The loss with its stages, and what each head became",
    "loss": "The metric, its stages (grey bands) and theory (dashed)",
    "specialization": "What each head attends to",
    "stages": "All readings over training, sorted by when they move, under the stages of the whole model",
    "trajectory": "The first two principal components of all readings, coloured by stage",
    "probes": "Every probe",
    "attention": "Attention at the ends of the stages",
}


def write_report(run: Run, path: Path | None = None) -> Path:
    """Writes the HTML report of `run` and returns its path: in the run's directory with its figures, or at `path`.

    A figure whose code in the plugin fails is left out; `run.noted` says why. The claims of the run's plugin are shown
    as they were last verified.
    """
    from stagelens.figures import write_figures

    claims = [result.to_dict() for result in last_results(run.manifest.plugin)]
    if path is None:
        path = run.folder / FILE
        write_text(path, report_page(run, write_figures(run), claims))
    else:
        with TemporaryDirectory(prefix="stagelens-") as aside:  # the directory of the run may be read-only
            write_text(path, report_page(run, write_figures(run, Path(aside)), claims))
    return path


def write_comparison(runs: Sequence[Run], path: Path | None = None) -> Path:
    """Writes one HTML report of several runs and returns its path. Default: next to the directory of the first."""
    from stagelens.comparing import align_runs

    path = path or runs[0].folder.parent / FILE
    write_text(path, runs_page(runs, align_runs(runs), path))
    return path


def report_page(run: Run, figures: Sequence[Path] = (), claims: Sequence[dict[str, Any]] = ()) -> str:
    """Returns the HTML report of one run, with `figures` (png files) inside."""
    from stagelens.figures import predictions_of
    from stagelens.report.charts import run_chart

    chart = None
    with noting(run.noted, "chart", run.known_experiment):
        chart = run_chart(run, predictions_of(run))
    return _render("report.html.j2", title=run.name, section=_section(run, figures, claims), chart=chart)


def comparison_page(comparison: AlignedRuns) -> str:
    """Returns the HTML page of a comparison: its chart and its table."""
    return _render("comparison.html.j2", title="comparison", sections=[], **_compared(comparison))


def runs_page(runs: Sequence[Run], comparison: AlignedRuns, path: Path) -> str:
    """Returns one HTML report of several runs, to be written at `path`: their comparison, and a section for each.

    The table shows the series of `comparison`; the chart offers every series that the runs share.
    """
    from stagelens.comparing import EVERY, align_runs
    from stagelens.report.charts import comparison_chart

    sections = [_section(run, _drawn(run)) for run in runs]
    for run, section in zip(runs, sections, strict=True):
        section["link"] = _link(run.folder / FILE, path.parent)
    values = _compared(comparison) | {"chart": comparison_chart(align_runs(runs, EVERY))}
    return _render("comparison.html.j2", title=f"{len(runs)} runs", sections=sections, **values)


def _compared(comparison: AlignedRuns) -> dict[str, Any]:
    from stagelens.comparing import SPREAD
    from stagelens.report.charts import comparison_chart

    return {
        "comparison": comparison,
        "chart": comparison_chart(comparison),
        "several": any(len(group.members) > 1 for group in comparison.groups),
        "spread": SPREAD,
    }


def _section(run: Run, figures: Sequence[Path], claims: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Returns the values of the section about one run."""
    return {
        "run": run,
        "summary": run.summary(),
        "figures": [(path.stem, CAPTIONS.get(path.stem, path.stem), _inlined(path)) for path in figures],
        "claims": claims,
    }


def _drawn(run: Run) -> list[Path]:
    """Returns the figures in the run's directory, in the order of `CAPTIONS`."""
    order = list(CAPTIONS)
    files = [own(run.folder, "figures", path.name) for path in sorted(run.folder.glob("figures/*.png"))]
    return sorted(files, key=lambda file: order.index(file.stem) if file.stem in order else len(order))


def _render(template: str, **values: Any) -> str:
    scripts = _scripts() if values["chart"] else {}
    return _environment().get_template(template).render(scripts=scripts, **values)


@cache
def _scripts() -> dict[str, str]:
    """Returns the scripts of a page with a chart, by the hash in its Content-Security-Policy."""
    from plotly.offline import get_plotlyjs

    environment = _environment()
    assert environment.loader is not None
    texts = [get_plotlyjs(), environment.loader.get_source(environment, "chart.js")[0]]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return {f"'sha256-{found}'": text for found, text in zip(hashes, texts, strict=True)}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("stagelens.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    return environment


def _number(value: Any) -> Any:
    """Returns a value as people read it: five digits of a float, yes or no, commas between the items of a list."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(_number(item)) for item in value)
    return value


def _inlined(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _link(file: Path, folder: Path) -> str:
    """Returns the link to `file` from a page in `folder`; empty if there is no such file."""
    import os
    from urllib.parse import quote

    if not file.exists():
        return ""
    return quote(os.path.relpath(file.resolve(), folder.resolve()).replace(os.sep, "/"))
