"""Writes all figures of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from stagelens.base import make_folder, noting
from stagelens.figures.attention import attention_figure
from stagelens.figures.heat_map import heat_map_figure
from stagelens.figures.overview import overview_figure
from stagelens.figures.probes import probes_figure
from stagelens.figures.style import save, styled
from stagelens.figures.timelines import loss_figure, specialization_figure
from stagelens.figures.trajectory import trajectory_figure

if TYPE_CHECKING:
    from stagelens.runs import Run

FOLDER = "figures"
ENDINGS = (".png", ".svg")
OURS: dict[str, Callable[[Run], Figure | None]] = {
    "overview": overview_figure,
    "loss": loss_figure,
    "specialization": specialization_figure,
    "stages": heat_map_figure,
    "trajectory": trajectory_figure,
    "probes": probes_figure,
}


def write_figures(run: Run, folder: Path | None = None) -> list[Path]:
    """Writes all figures of `run` as png and svg and returns the png files. Default: into the run's directory."""
    folder = folder or run.folder / FOLDER
    make_folder(folder, "write elsewhere with -o", parents=False)
    files = []
    for name, figure in figures_of(run).items():
        with noting(run.noted, f"figure {name!r}", *_blamed(run, name)):
            save(figure, *(folder / f"{name}{ending}" for ending in ENDINGS))
            files.append(folder / f"{name}.png")
    return files


def figures_of(run: Run) -> dict[str, Figure]:
    """Returns the figures of the run by name; those of its task only if its plugin is installed.

    A figure that raises is left out, and noted in `run.noted`.
    """
    drawing, experiment = OURS, run.known_experiment
    if experiment is not None:
        drawing = drawing | {"attention": attention_figure}
    drawn: dict[str, Figure | None] = {}
    with styled():
        for name, draw in drawing.items():
            with noting(run.noted, f"figure {name!r}", experiment):
                drawn[name] = draw(run)
        if experiment is not None:
            with noting(run.noted, "figures()", experiment, experiment.figures):
                drawn |= experiment.figures(run)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _blamed(run: Run, name: str) -> tuple[Any, ...]:
    """Returns whose code made the figure `name`: the task and its `figures`, or nothing for one of ours."""
    experiment = run.known_experiment
    return () if name in OURS or experiment is None else (experiment, experiment.figures)
