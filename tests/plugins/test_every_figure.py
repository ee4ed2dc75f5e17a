"""Every figure that recall and rich register can be drawn: its task draws a figure of that name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kit.pictures import empty_panels
from kit.tiny import host, tiny_settings
from stagelens.claims import Lab, choose_figures, draw_figure
from stagelens.figures import styled
from stagelens_rich.data import corpus


@dataclass(frozen=True)
class TinyLab(Lab):
    """A lab whose runs have a few steps. The order stays 4, which the betas of registered figures fit."""

    def run(self, task: Any, settings: Mapping[str, Any] | None = None, seed: int = 0, **options: Any) -> Any:
        tiny = {key: value for key, value in tiny_settings(task).items() if key != "order"}
        return super().run(task, {**tiny, **(settings or {})}, seed, **options)


CHOSEN = [chosen for chosen in choose_figures(host()) if chosen.plugin in ("recall", "rich")]


@pytest.mark.parametrize("chosen", CHOSEN, ids=[f"{one.plugin}-{one.ref.name}" for one in CHOSEN])
def test_a_registered_figure_is_drawn(chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "wikitext_2", lambda: corpus.split(corpus.words_of(corpus.PYTHON)))  # without a network
    figure = draw_figure(chosen.ref, TinyLab(host(), tmp_path))
    assert isinstance(figure, Figure)
    assert figure.axes and not empty_panels(figure)


def test_the_legends_of_fig_4_of_recall_cover_no_level(tmp_path):
    (chosen,) = [one for one in CHOSEN if (one.plugin, one.ref.name) == ("recall", "fig4")]
    with styled():
        figure = draw_figure(chosen.ref, TinyLab(host(), tmp_path))
        FigureCanvasAgg(figure).draw()
        with_legends = [axis for axis in figure.axes if axis.get_legend()]
        assert len(with_legends) == 2
        for axis in with_legends:
            assert axis.get_legend().get_window_extent().x0 >= axis.get_window_extent().x1
