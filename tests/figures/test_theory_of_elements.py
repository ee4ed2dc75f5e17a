"""Figures draw a prediction about one element of a series, `probe/reading[head=1]`, on the panel of that series."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from kit.written_runs import STEPS, write_run
from stagelens.figures import loss_figure, styled
from stagelens.report.charts import run_chart

HEADS = np.stack([STEPS / 1000, STEPS / 500], axis=1)
ABOUT = "p/score[head=1]"
THEORY = [
    sl.Prediction("plateau", "level", 0.75, "Eq. 1", series=ABOUT),
    sl.Prediction("late", "time", 300.0, "Eq. 2", series=ABOUT),
    sl.Prediction("line", "curve", lambda steps: steps / 500, "Eq. 3", series=ABOUT),
]


@pytest.fixture
def of_heads(tmp_path, monkeypatch):
    """A run of two heads, and its theory."""
    run = write_run(tmp_path, "a", {"loss": STEPS * 1.0, "p/score": (HEADS, ("head",))})
    monkeypatch.setattr(type(run), "known_experiment", sl.experiments.OwnLoop(THEORY))
    monkeypatch.setattr(type(run), "experiment", sl.experiments.OwnLoop(THEORY))
    return run


def test_it_is_on_the_panel_of_its_series(of_heads):
    with styled():
        loss, score = loss_figure(of_heads).axes
    entries = [text.get_text().replace("\n", " ") for text in score.get_legend().get_texts()]
    assert {"theory: plateau (Eq. 1)", "theory: late (Eq. 2)", "theory: line (Eq. 3)"} <= set(entries)
    assert {"plateau", "late"} <= {text.get_text() for text in score.texts}
    assert [list(line.get_ydata()) for line in score.lines if list(line.get_xdata()) == [0, 1]] == [[0.75, 0.75]]
    curves = [line.get_ydata() for line in score.lines if line.get_color() == "black" and len(line.get_ydata()) > 2]
    assert any(np.array_equal(curve, STEPS / 500) for curve in curves)
    assert not any("theory" in str(line.get_label()) for line in loss.lines)


def test_the_chart_of_the_report_agrees(of_heads):
    (series,) = [one for one in run_chart(of_heads, THEORY)["series"] if one["name"] == "p/score"]
    assert series["levels"] == [{"y": 0.75, "name": "plateau"}]
    assert "theory: line" in [trace["name"] for trace in series["traces"]]


def test_a_wrong_name_of_a_series_is_noted_and_the_rest_is_drawn(of_heads, monkeypatch):
    wrong = sl.Prediction("broken", "level", 0.1, "Eq. 4", series="p/score[head")
    monkeypatch.setattr(type(of_heads), "known_experiment", sl.experiments.OwnLoop([wrong, *THEORY]))
    monkeypatch.setattr(type(of_heads), "experiment", sl.experiments.OwnLoop([wrong, *THEORY]))
    with styled():
        assert len(loss_figure(of_heads).axes) == 2
    assert any("brackets are wrong" in line for line in of_heads.noted.values())
