"""The signature figure of a run: the loss with its stages, and below it, on the same axis, what each head became."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from stagelens.figures.drawing import draw_band, fit_x_axis, keep_rounding_out, shade_stages, title_of, x_label
from stagelens.figures.heads import Look, looks
from stagelens.figures.labels import fit_left
from stagelens.figures.strips import Strip, draw_strip, strips_of
from stagelens.figures.style import lower_top, stack, width_of
from stagelens.timelines import HEADLINES, Headline, HeadLines, head_lines

if TYPE_CHECKING:
    from stagelens.runs import Run

LOSS_HEIGHT, PANEL_HEIGHT = 1.35, 0.82  # inches
WIDTH = 5.6  # inches of every panel
TOP = 0.85  # inches above the panels, for the headline and up to five lines of stage names
WIDEST_NOTE = 118  # letters of a line of the note at the foot
MOST_LINES = 8  # of the note
TITLE = 8.5  # points
ENTRY = 0.155  # inches of an entry in a legend
SMALL: Any = {"fontsize": 7, "color": "0.35"}
SUBSPACES = "overlap of the directions with 90% of the variance"  # what `key_query` is, which older runs have


def overview_figure(run: Run) -> Figure | None:
    """Draws the loss with its stages, the headline reading of each probe with one line per head, phases and roles.

    All panels share the axis of the steps. A headline that the run lacks has no panel; a line at the foot says why.
    """
    timeline = run.timeline
    found = [(headline, lines) for headline in HEADLINES if (lines := head_lines(timeline, headline)) is not None]
    metric = next((name for name in ("loss", run.manifest.metric) if name in timeline), None)
    strips = strips_of(timeline)
    heights = [LOSS_HEIGHT] * (metric is not None) + [PANEL_HEIGHT] * len(found) + [strip.height for strip in strips]
    if not heights or not len(timeline.steps):
        return None
    note = _note(run, [headline for headline, _ in found], metric)
    figure, axes = stack(WIDTH, heights, gap=0.3, margin=(0.62, 1.25, TOP, 0.5 + 0.13 * len(note.splitlines())))
    panels = iter(axes)
    if metric is not None:
        _draw_metric(next(panels), run, metric)
    styles = _looks([lines for _, lines in found])
    for headline, lines in found:
        _draw_headline(next(panels), run, headline, lines, styles)
    for strip in strips:
        _draw_strip(next(panels), run, strip, styles)
    _finish(figure, axes, run, note, [lines for _, lines in found], styles)
    return figure


def _finish(
    figure: Figure, axes: list[Axes], run: Run, note: str, lines: list[HeadLines], styles: dict[str, Look]
) -> None:
    """Fits the common axis, shades the stages, and writes headline, legend of the heads and note."""
    fit_x_axis(axes[0], run)
    names = [shade_stages(axis, run, labels=axis is axes[0]) for axis in axes]
    for axis in axes[:-1]:
        axis.tick_params(labelbottom=False, axis="x", which="both", length=2)
    axes[-1].set_xlabel(x_label(run))
    figure.align_ylabels(axes)
    if lines:
        first = next(axis for axis in axes if axis.get_gid() == lines[0].series)
        _legend_of_heads(first, list(styles.values()), any(one.chance.size for one in lines))
    for row, line in enumerate(reversed(note.splitlines())):  # long texts are shortened, so each line is a text
        figure.text(axes[0].get_position().x0, (0.07 + 0.13 * row) / figure.get_figheight(), line, **SMALL)
    titled = axes[0].get_gid() is None  # the loss has no title above it
    fit_left(figure, axes)
    lower_top(figure, TOP - 0.4 - (0.11 * max(names[0], 1 - titled)))
    width, height = figure.get_size_inches()
    figure.text(0.08 / width, 1 - 0.08 / height, title_of(run), va="top", fontsize=10, fontweight="bold")


def _draw_metric(axis: Axes, run: Run, metric: str) -> None:
    """Draws the loss; the loss of the training batch is a thin line behind it."""
    if "train_loss" in run.timeline and metric == "loss":
        axis.plot(*run.timeline.scalar("train_loss"), color="0.75", lw=0.8, zorder=1)
    steps, values = run.timeline.steps, run.timeline.series(metric).reshape(len(run.timeline.steps), -1)
    for line in values.T:
        there = np.isfinite(line)
        axis.plot(steps[there], line[there], color="0.1", lw=1.7)
    keep_rounding_out(axis, values)
    axis.set_ylabel(metric.replace("/", "/\n"))


def _draw_strip(axis: Axes, run: Run, strip: Strip, styles: dict[str, Look]) -> None:
    """Draws a strip with its title and legend. The names of few heads have the colours of their lines.

    The legend of the phases is in the line of the title, that of the roles next to the strip.
    """
    entries = draw_strip(axis, run.timeline.steps, strip)
    title = _title(axis, strip.title, strip.note)
    patches: Any = {"handlelength": 1.0, "handleheight": 0.8}
    if strip.note:
        _legend(axis, entries, **_within(axis, len(entries)), **patches)
    else:
        moved = axis.transAxes + ScaledTranslation((title + 8) / 72, 0.03, axis.figure.dpi_scale_trans)
        row: Any = {"loc": "lower left", "ncols": len(entries), "bbox_transform": moved, "bbox_to_anchor": (0.0, 1.0)}
        _legend(axis, entries, **row, **patches, borderpad=0.0, columnspacing=1.2)
    ticks = axis.get_yticklabels()
    if len(ticks) == len(strip.names):
        for tick, name in zip(ticks, strip.names, strict=True):
            tick.set_color(styles[name].style["color"] if name in styles else "0.25")


def _within(axis: Axes, entries: int) -> dict[str, Any]:
    """Returns where the legend right of the lowest panel begins: at its top, or higher if it is long."""
    figure: Any = axis.figure
    top, height = axis.get_position().y1, figure.get_figheight()
    above = max(0.0, (ENTRY * entries + 0.1) / height - top)
    return {"bbox_to_anchor": (1.0, 1.0 + above / axis.get_position().height)}


def _draw_headline(axis: Axes, run: Run, headline: Headline, lines: HeadLines, styles: dict[str, Look]) -> None:
    """Draws one line per head, its standard error as a band, and the chance level as a thin dotted line."""
    steps = run.timeline.steps
    for level in lines.levels.T:
        axis.plot(steps, level, color="0.5", lw=0.8, ls=":", zorder=1)
    for index, look in enumerate(styles[label] for label in lines.labels):
        values, error = lines.values[:, index], None if lines.error is None else lines.error[:, index]
        there = np.isfinite(values)
        axis.plot(steps[there], values[there], **{"lw": 1.4} | look.style)
        draw_band(axis, steps, values, error, look.style["color"])
    if np.nanmin(lines.values) > -0.1 and np.nanmax(lines.values) <= 1.001:
        axis.set_ylim(min(-0.04, float(np.nanmin(lines.values)) - 0.02), 1.04)
        axis.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    note = SUBSPACES if lines.series.endswith("key_query") else headline.note
    axis.set_gid(lines.series)
    _title(axis, headline.title, note)


def _title(axis: Axes, title: str, note: str) -> float:
    """Writes the title of a panel above its left corner, and a note in grey behind it. Returns the title's width."""
    place: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
    width = width_of(title, TITLE)
    axis.annotate(title, (0, 1), xytext=(0, 5), fontsize=TITLE, **place)
    axis.annotate(note, (0, 1), xytext=(width + 8, 5), **place, **SMALL)
    return width


def _looks(panels: list[HeadLines]) -> dict[str, Look]:
    """Returns the look of each head by its name, the same in all panels. The panel with most heads decides it."""
    found: dict[str, Look] = {}
    for lines in sorted(panels, key=lambda one: len(one.labels), reverse=True):
        column = lines.column
        layers = column.coordinate("layer") if "layer" in column.dims else ()
        every = looks(column.dims, column.shape, lines.names, layers)
        new = {name: look for name, look in zip(lines.names, every, strict=True) if name in lines.labels}
        found |= {name: look for name, look in new.items() if name not in found}
    return found


def _legend_of_heads(axis: Axes, found: list[Look], chance: bool) -> None:
    entries = {look.entry: Line2D([], [], **{"lw": 1.6} | look.style | {"alpha": 1.0}) for look in found if look.entry}
    if len(entries) < 2:
        entries = {}
    if chance:
        entries["chance"] = Line2D([], [], color="0.5", lw=0.8, ls=":")
    if entries:
        _legend(axis, entries)


def _legend(axis: Axes, entries: dict[str, Any], **options: Any) -> None:
    """Draws a legend right of the axis, aligned with its top."""
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0, "frameon": False}
    look: Any = {"fontsize": 7, "handlelength": 1.9, "handletextpad": 0.5, "labelspacing": 0.25}
    axis.legend(list(entries.values()), list(entries), **place | look | options)


def _note(run: Run, found: list[Headline], metric: str | None) -> str:
    """Returns what is not recorded and why, in a line or two; empty if all is there."""
    reasons: dict[str, list[str]] = {}  # the probes that are missing for each reason
    for headline in HEADLINES:
        if headline not in found:
            reasons.setdefault(_reason(run, headline), []).append(headline.title)
    missing = [f"{', '.join(titles)} ({reason})" for reason, titles in reasons.items()]
    missing += [] if metric else ["loss (it was not given to the recorder)"]
    if not found and run.manifest.kind == "flow":
        missing = ["the four probes (a flow integrates equations and has no model)"]
    return fill(f"not recorded: {'; '.join(missing)}", WIDEST_NOTE, max_lines=MOST_LINES) if missing else ""


def _reason(run: Run, headline: Headline) -> str:
    skipped = run.manifest.skipped
    for name in (headline.probe, *(f"{headline.probe}/{reading}" for reading in headline.readings)):
        if name in skipped:
            return str(skipped[name])
    if run.manifest.kind == "flow":
        return "a flow has no model"
    return "not among the run's probes" if headline.probe not in run.manifest.probes else "no reading"
