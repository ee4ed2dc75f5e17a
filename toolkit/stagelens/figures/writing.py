"""Drawing all figures of a run into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from stagelens.errors import EnvironmentFault, StagelensError
from stagelens.figures.attention import attention_figure
from stagelens.figures.style import save, styled
from stagelens.figures.timelines import loss_figure, probes_figure, specialization_figure

if TYPE_CHECKING:
    from stagelens.runs import Run

FOLDER = "figures"
ENDINGS = (".png", ".svg")


def write_figures(run: Run, folder: Path | None = None) -> list[Path]:
    """Draws all figures of `run` as png and svg (default: into its own folder of them), and returns the png files."""
    folder = folder or run.folder / FOLDER
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder}: {error.strerror or error}; write elsewhere with -o") from None
    files = []
    for name, figure in figures_of(run).items():
        for ending in ENDINGS:
            save(figure, folder / f"{name}{ending}")
        files.append(folder / f"{name}.png")
    return files


def figures_of(run: Run) -> dict[str, Figure]:
    """Every figure that the run's timeline can fill, by name; those of its task only while its plugin is there."""
    with styled():
        drawn: dict[str, Figure | None] = {
            "loss": loss_figure(run),
            "specialization": specialization_figure(run),
            "probes": probes_figure(run),
        }
        try:
            run.experiment  # noqa: B018  a run outlives its plugin
        except StagelensError:
            pass
        else:
            drawn |= {"attention": attention_figure(run), **run.experiment.figures(run)}
    return {name: figure for name, figure in drawn.items() if figure is not None}
