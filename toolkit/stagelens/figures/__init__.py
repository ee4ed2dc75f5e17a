"""The figures that every run gets, in one style: loss and theory, heads over groups, probes, attention maps."""

from __future__ import annotations

from stagelens.figures.attention import attention_figure, attention_maps, composite
from stagelens.figures.comparison import comparison_figure
from stagelens.figures.drawing import draw_predictions, draw_series, shade_stages, title_of, x_label
from stagelens.figures.style import COLOURS, DASHES, save, styled
from stagelens.figures.timelines import loss_figure, probes_figure, specialization_figure
from stagelens.figures.writing import FOLDER, figures_of, write_figures

__all__ = [
    "COLOURS",
    "DASHES",
    "FOLDER",
    "attention_figure",
    "attention_maps",
    "comparison_figure",
    "composite",
    "draw_predictions",
    "draw_series",
    "figures_of",
    "loss_figure",
    "probes_figure",
    "save",
    "shade_stages",
    "specialization_figure",
    "styled",
    "title_of",
    "write_figures",
    "x_label",
]
