"""Figures: names and legends do not overlap, axes hide rounding errors, and attention maps are visible."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from kit.written_runs import STEPS, staircase, write_run
from stagelens import Prediction
from stagelens.figures import (
    draw_levels,
    drawing,
    levels_of,
    loss_figure,
    panels,
    probes_figure,
    specialization_figure,
    styled,
    timelines,
)
from stagelens.figures.attention import NARROWEST, _panel, composite
from stagelens.figures.labels import legend_beside, legend_row, name_beside, name_times, spread
from stagelens.figures.style import COLOURS, MOST_LETTERS, grid, headline, make_room, save
from stagelens.figures.timelines import MASS

LOSS = staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))
LEVELS = [3.0, 2.0, 1.2, 1.15, 1.1, 1.05, 1.0]


@pytest.fixture
def panel():
    """A figure of one panel, and the panel."""
    with styled():
        figure, ((axis,),) = grid((1, 1), (4.0, 1.7), (0.0, 0.0), (0.7, 0.15, 0.6, 0.5))
        yield figure, axis


def boxes(figure, things):
    """Returns the bounding box of each of `things` on the canvas. For a name it excludes the leader line."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    places = []
    for thing in things:
        place = thing.get_window_extent(renderer)  # drawing places the names
        places.append(Text.get_window_extent(thing, renderer) if isinstance(thing, Text) else place)
    return places


def overlapping(figure, things):
    return sum(one.overlaps(other) for one, other in combinations(boxes(figure, things), 2))


@pytest.mark.parametrize("places", [[0.5], [0.1, 0.5, 0.9], [0.5, 0.5, 0.5], [0.0, 0.01, 0.02], [0.97, 0.98, 1.0]])
def test_label_positions_are_spread_and_stay_inside(places):
    moved = spread(places, 0.1)
    assert (np.diff(moved) >= 0.1 - 1e-12).all() and moved.min() >= -1e-12 and moved.max() <= 1 + 1e-12


def test_label_positions_move_as_little_as_possible():
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])  # each half of the way
    assert spread([], 0.1).size == 0
    crowded = spread(np.linspace(0.4, 0.6, 8), 0.2)  # more than fits: evenly beyond both ends
    assert np.diff(crowded) == pytest.approx(np.full(7, 0.2))


def test_names_of_near_levels_do_not_run_into_each_other(panel):
    figure, axis = panel
    axis.plot(STEPS, LOSS)
    name_beside(axis, [(level, f"level {level}") for level in LEVELS])
    assert [text.get_text() for text in axis.texts] == [f"level {level}" for level in sorted(LEVELS)]
    assert not overlapping(figure, axis.texts)


def test_a_legend_next_to_a_panel_crosses_neither_lines_nor_names(panel):
    figure, axis = panel
    for number in range(3):
        axis.plot(STEPS, LOSS + number, label=f"line {number}")
    names = ["a level of a long name", "another"]
    name_beside(axis, list(zip((1.5, 3.0), names, strict=True)))
    make_room(figure, legend_beside(axis, names))
    headline(figure, "a headline")
    (legend, *texts) = boxes(figure, [axis.get_legend(), *axis.texts])
    inside = axis.get_window_extent()
    assert legend.x0 > inside.x1 and not any(legend.overlaps(text) for text in texts)
    assert legend.x1 <= figure.bbox.x1 and all(text.x1 <= figure.bbox.x1 for text in texts)
    assert inside.width == pytest.approx(4.0 * figure.dpi)


def test_of_many_lines_a_legend_names_theory_alone(panel):
    _, axis = panel
    for number in range(20):
        axis.plot(STEPS, LOSS + number, label=f"line {number}")
    axis.plot(STEPS, LOSS, label="theory: Eq. 1")
    legend_beside(axis)
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["theory: Eq. 1"]


def test_a_row_of_legends_is_between_headline_and_panels():
    with styled():
        figure, axes = grid((1, 2), (2.0, 1.5), (0.3, 0.0), (0.6, 0.2, 0.9, 0.5))
        for number, axis in enumerate(axes[0]):
            axis.plot(STEPS, LOSS, label=f"line {number}")
            axis.set_title("panel")
        legend_row(figure, *axes[0])
        headline(figure, "a headline")
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["line 0", "line 1"]
        assert not overlapping(figure, [figure.legends[0], figure._suptitle, axes[0, 0].title, axes[0, 1].title])


@pytest.mark.parametrize("size", [1.0, -40.0, 1e-9, 3e6])
def test_an_axis_does_not_show_the_rounding_of_a_constant(tmp_path, size):
    noise = 1e-13 * np.random.default_rng(0).normal(size=len(STEPS))
    made = write_run(tmp_path, "a", {"loss": LOSS, "p/constant": size * (1 + noise)})
    with styled():
        (axis,) = [axis for axis in probes_figure(made).axes if axis.lines]
    low, high = axis.get_ylim()
    assert high - low > 0.09 * abs(size) and low < size < high


def test_an_axis_shows_what_is_more_than_rounding(tmp_path):
    made = write_run(tmp_path, "a", {"loss": LOSS, "p/nearly": 1 + 1e-3 * STEPS / STEPS[-1]})
    with styled():
        (axis,) = [axis for axis in probes_figure(made).axes if axis.lines]
    assert np.ptp(axis.get_ylim()) == pytest.approx(1.1e-3, rel=0.01)


def test_every_level_is_named_and_the_legend_says_where_it_comes_from(tmp_path, monkeypatch):
    theory = [Prediction(f"L_{m}", "level", level, "Eq. 5") for m, level in enumerate(LEVELS)]
    theory += [Prediction(f"drop {n}", "time", time, f"Eq. {n}") for n, time in ((38, 210.0), (43, 590.0))]
    for module in (drawing, timelines):
        monkeypatch.setattr(module, "predictions_of", lambda run: theory)
    made = write_run(tmp_path, "a", {"loss": LOSS, "train_loss": LOSS})
    with styled():
        figure = loss_figure(made)
        axis = figure.axes[0]
        labels = [text.get_text() for text in axis.get_legend().get_texts()]
        assert "theory: levels (Eq. 5)" in labels and "theory: times (Eq. 38, Eq. 43)" in labels
        assert {f"L_{m}" for m in range(len(LEVELS))} <= {text.get_text() for text in axis.texts}
        assert all(box.x1 <= figure.bbox.x1 for box in boxes(figure, [*axis.texts, axis.get_legend()]))


def test_a_map_of_one_query_is_high_enough_to_be_seen():
    assert _panel(1, 32)[1] == NARROWEST and _panel(16, 16) == (1.45, 1.45)


def test_heads_darken_a_map_on_one_scale():
    even, sharp = np.full((2, 1, 4), 0.25), np.zeros((2, 1, 4))
    sharp[0, 0, 0] = 1.0
    colour = np.array([int(COLOURS[0][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert composite(sharp, 1.0)[0, 0] == pytest.approx(colour) and composite(sharp, 1.0)[0, 1] == pytest.approx(1.0)
    assert composite(even, 1.0).min() > 0.5 > composite(even).min()  # by its own largest it looks sharp


def test_a_text_that_no_figure_has_room_for_is_cut(panel, tmp_path):
    figure, axis = panel
    headline(figure, "x" * 1_000_000)
    axis.set_title("as it is")
    save(figure, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "as it is" in drawn and f">{'x' * (MOST_LETTERS - 1)}…<" in drawn


def test_a_pdf_has_the_texts_in_truetype_and_is_the_same_file_twice(panel, tmp_path):
    figure, axis = panel
    axis.set_title("attention")
    dpi = figure.dpi
    for name in ("one.pdf", "two.pdf"):
        save(figure, tmp_path / name)
    drawn = (tmp_path / "one.pdf").read_bytes()
    assert drawn.startswith(b"%PDF") and b"/CIDFontType2" in drawn and b"/Type3" not in drawn
    assert drawn == (tmp_path / "two.pdf").read_bytes() and figure.dpi == dpi


def test_names_of_near_times_run_into_neither_curves_nor_each_other(panel):
    figure, axis = panel
    axis.plot(STEPS, staircase(STEPS, (200,), (3.0, 0.1)))
    axis.plot(STEPS, staircase(STEPS, (220,), (3.0, 0.15)))
    axis.axhline(0.1)
    times = [(260.0, "T_o"), (265.0, "T_II"), (270.0, "T_I"), (275.0, "T_IV"), (700.0, "T_III")]
    for time, _ in times:
        axis.axvline(time)
    name_times(axis, [*times, (1e5, "far away")])
    figure.canvas.draw()
    assert [text.get_text() for text in axis.texts] == ["T_o, T_II, T_I, T_IV", "T_III"]  # in the order of the lines
    assert not overlapping(figure, axis.texts)
    curves = [line for line in axis.get_lines() if line.get_transform() == axis.transData]
    drawn = [point for line in curves for point in axis.transData.transform(line.get_xydata())]
    for box in boxes(figure, axis.texts):
        assert not any(box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1 for x, y in drawn)


def heads_of_two_layers():
    """[step, layer, head] of a layer with one head and one with two, whose curves differ."""
    values = np.stack([np.stack([LOSS, LOSS * np.nan], 1), np.stack([LOSS + 1, LOSS + 2], 1)], axis=1)
    return values, ("layer", "head")


def test_the_name_of_a_time_is_left_of_its_line_if_the_curve_falls_right_of_it(panel):
    _, axis = panel
    axis.plot([0, 500, 520, 1000], [3.0, 3.0, 0.0, 0.0])
    axis.axvline(490)
    name_times(axis, [(490.0, "end of the plateau")])
    assert axis.texts[0].get_ha() == "right"
    axis.clear()
    axis.plot([0, 500, 520, 1000], [3.0, 3.0, 2.9, 2.9])
    axis.set_ylim(0, 3.2)
    name_times(axis, [(490.0, "end of the plateau")])
    assert axis.texts[0].get_ha() == "left"


def test_the_lines_without_a_colour_of_their_own_come_last_in_the_legend(tmp_path):
    norms = STEPS[:, None] * np.linspace(0, 1, 20)[::-1]  # the first lines change most, the last ones are the others
    parameters = [f"W_{number}" for number in range(20)]
    for order in (slice(None), slice(None, None, -1)):
        series = {"loss": LOSS, "weight_norms/norm": (norms[:, order], ("parameter",), {"parameter": parameters})}
        with styled():
            figure = probes_figure(write_run(tmp_path, f"{order.step}", series))
        entries = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert entries[-1] == "13 others" and len(entries) == 8


def test_a_training_loss_that_is_the_loss_has_no_line_of_its_own(tmp_path):
    for name, training, entries in (("same", LOSS, []), ("other", 1.1 * LOSS, ["evaluation batch", "training batch"])):
        with styled():
            figure = loss_figure(write_run(tmp_path, name, {"loss": LOSS, "train_loss": training}))
        legend = figure.axes[0].get_legend()
        assert ([text.get_text() for text in legend.get_texts()] if legend else []) == entries


def test_small_legends_name_the_heads_that_exist(tmp_path):
    series = {f"p/reading{number}": heads_of_two_layers() for number in range(6)}
    series["p/four"] = (np.stack([LOSS + number for number in range(4)], 1).reshape(-1, 2, 2), ("layer", "head"))
    made = write_run(tmp_path, "a", {"loss": LOSS} | series)
    with styled():
        shown = [axis for axis in probes_figure(made).axes if axis.lines]
    for axis in shown[:6]:
        names = [text.get_text() for text in axis.get_legend().get_texts()]
        assert names == ["layer 0 head 0", "layer 1 head 0", "layer 1 head 1"] and len(axis.lines) == 3
    assert len(shown) == 7 and len(shown[6].get_legend().get_texts()) == 4


def test_every_reading_is_drawn_and_every_line_named(tmp_path):
    many = np.stack([LOSS * (1 + number) for number in range(20)], 1)
    heads = np.stack([LOSS + number for number in range(72)], 1).reshape(-1, 6, 12)
    by_group = np.stack([LOSS + number for number in range(60)], 1).reshape(-1, 3, 4, 5)
    series = {
        "p/parameters": (many, ("parameter",)),
        "p/heads": (heads, ("layer", "head")),
        "p/groups": (by_group, ("layer", "head", "group")),
    }
    with styled():
        parameters, of_heads, groups = probes_figure(write_run(tmp_path, "a", series)).axes
    assert len(parameters.lines) == 20  # the seven that change most are named, and grey is explained
    named = {text.get_text() for text in parameters.get_legend().get_texts()}
    assert named == {*(f"parameter {number}" for number in range(13, 20)), "13 others"}
    assert [text.get_text() for text in of_heads.get_legend().get_texts()] == [f"layer {n}" for n in range(6)]
    assert len(of_heads.lines) == 72
    assert len(groups.lines) == 5 and "(mean over layer, head)" in groups.get_title("left")
    assert groups.lines[0].get_ydata() == pytest.approx(by_group[..., 0].mean((1, 2)))


def test_references_that_coincide_share_a_line_and_an_entry(tmp_path):
    kl = np.stack([LOSS, LOSS / 2, LOSS / 2], 1)
    series = {"loss": LOSS, "kl_to_references/kl": (kl, ("reference",), {"reference": ("a", "b", "c")})}
    with styled():
        axis = loss_figure(write_run(tmp_path, "a", series)).axes[-1]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b\n= c"]


def test_the_largest_lags_are_lines_and_the_others_one_sum(tmp_path):
    mass = np.full((len(STEPS), 1, 2, 20), 0.01)
    mass[..., [3, 5]] = 0.41
    with styled():
        figure = specialization_figure(write_run(tmp_path, "a", {"loss": LOSS, MASS: (mass, ("layer", "head", "lag"))}))
    lines = {line.get_label(): line.get_ydata()[0] for line in figure.axes[0].lines}
    assert {"3", "5", "others"} <= set(lines) and len(lines) == 8
    assert lines["3"] == pytest.approx(0.41) and sum(lines.values()) == pytest.approx(1.0)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)


def test_a_head_that_does_not_exist_has_no_panel(tmp_path):
    masses = np.full((len(STEPS), 2, 2, 2), 0.5)
    for layer, lowest in ((0, 1), (1, 0)):
        masses[:] = 0.5
        masses[:, layer, 1] = np.nan
        made = write_run(tmp_path, f"r{layer}", {"loss": LOSS, MASS: (masses, ("layer", "head", "group"))})
        with styled():
            axes = np.array(specialization_figure(made).axes).reshape(2, 2)
        assert [axis.axison for axis in axes.ravel()] == [(layer, 1) != place for place in np.ndindex(2, 2)]
        assert [axes[1, 0].get_xlabel(), axes[lowest, 1].get_xlabel()] == ["training step"] * 2
        assert not axes[layer, 1].lines and all(text.get_visible() for text in axes[lowest, 1].get_xticklabels())


def test_predicted_levels_are_lines_across_with_one_entry_in_the_legend(panel):
    _, axis = panel
    levels = [Prediction(f"L{n}", "level", level, "Eq. 5") for n, level in enumerate((3.0, 2.0))]
    assert draw_levels(axis, levels) == [(3.0, "L0"), (2.0, "L1")]
    assert [line.get_ydata()[0] for line in axis.get_lines()] == [3.0, 2.0]
    assert axis.get_legend_handles_labels()[1] == ["theory: levels (Eq. 5)"]
    draw_levels(axis, levels, label="")
    draw_levels(axis, levels[:1], label="where it rests")
    assert axis.get_legend_handles_labels()[1] == ["theory: levels (Eq. 5)", "where it rests"]
    assert draw_levels(axis, []) == []


def test_the_levels_of_a_run_are_those_of_its_predictions(tmp_path, monkeypatch):
    run = write_run(tmp_path, "a", {"loss": LOSS})
    level, time = Prediction("L0", "level", 3.0, "Eq. 5"), Prediction("t", "time", 5.0, "Eq. 6")
    monkeypatch.setitem(drawing._drawable, run, [time, level])
    assert levels_of(run) == [level]


@pytest.mark.parametrize("rows", [1, 2])
def test_the_panels_of_a_figure_lie_below_its_headline(rows, tmp_path):
    with styled():
        figure, axes = panels(rows, 3, "Fig. 2: a headline", size=(2.0, 1.5), sharey=True)
        for axis in axes.flat:
            axis.set_title("panel")
            axis.plot([0, 1], [0, 1])
    assert axes.shape == (rows, 3) and figure.get_size_inches().tolist() == [6.0, 1.5 * rows]
    save(figure, tmp_path / "panels.png")
    headline_box, *titles = boxes(figure, [figure._suptitle, *(axis.title for axis in axes[0])])
    assert all(title.y1 < headline_box.y0 for title in titles) and headline_box.x0 < titles[0].x0
