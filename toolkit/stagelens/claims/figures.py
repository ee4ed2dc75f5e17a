"""The papers' figures: choosing them by name, and drawing one from the runs that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stagelens.base import StagelensError, unknown
from stagelens.claims.lab import Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stagelens.host import FigureRef, Host


@dataclass(frozen=True)
class ChosenFigure:
    """A figure, and the plugin that registered it."""

    plugin: str
    ref: FigureRef


def choose_figures(host: Host, plugin: str | None = None, names: Sequence[str] = ()) -> list[ChosenFigure]:
    """Returns the figures called `names` of `plugin`; without names all of the plugin; without a plugin all.

    Raises if a name is unknown; the error lists the known ones.
    """
    meant = None if plugin is None else host.providers(plugin, host.figures)
    every = [ChosenFigure(host.figures.owners[key], ref) for key, ref in host.figures]
    pool = {one.ref.name: one for one in every if meant is None or one.plugin in meant}
    if meant is None:
        return every
    for name in names:
        if name not in pool:
            raise unknown("figure", name, pool, f"of plugin {plugin!r}")
    return [pool[name] for name in names] if names else list(pool.values())


def draw_figure(ref: FigureRef, lab: Lab) -> Figure | None:
    """Returns the figure, drawn from runs that `lab` trains or has cached; None if it has nothing to show."""
    from stagelens.figures import styled

    with styled():
        found: Figure | None = ref.load()(lab) if ref.target else _of_task(ref, lab)
    return found


def _of_task(ref: FigureRef, lab: Lab) -> Any:
    run = lab.run(ref.task, ref.settings, preset=ref.preset or None)
    drawn = run.experiment.figures(run)
    if ref.name not in drawn:
        raise StagelensError(
            f"figure {ref.name!r}: task {ref.task!r} with preset {run.manifest.preset!r} draws "
            f"{', '.join(drawn) or 'no figure'}, not {ref.name}"
        )
    return drawn[ref.name]
