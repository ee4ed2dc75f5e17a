"""The overview: a panel for each main reading, one line style per head, strips of roles, and no overlapping text."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from kit.pictures import FEW, GROUPS, flaws, run_of_heads
from kit.tiny import reported_run, task_ids
from kit.written_runs import STEPS, staircase, write_run
from stagelens.figures import overview_figure, save, styled
from stagelens.figures.heads import looks
from stagelens.figures.palette import COLOURS, FILLS, NO_ROLE
from stagelens.figures.strips import PALEST, edges

LOSS = staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))


def drawn(run):
    with styled():
        return overview_figure(run)


def titles(figure):
    return {text.get_text() for axis in figure.axes for text in axis.texts}


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 2), (1, 8), (1, 12), (2, 4), (3, 3), (6, 1), (6, 12)])
def test_no_text_overlaps_another_or_leaves_the_canvas(layers, heads, tmp_path):
    for groups in (GROUPS[:1], GROUPS):
        run, _ = run_of_heads(tmp_path, layers, heads, groups, stage_names=["the first is learned", "and the second"])
        assert not flaws(drawn(run))


@pytest.mark.parametrize("task", task_ids())
def test_every_task_has_an_overview_without_flaw(task):
    run = reported_run(task)
    assert (run.folder / "figures" / "overview.png").stat().st_size > 1000
    assert not flaws(drawn(run))


def test_each_headline_has_a_panel_with_a_line_per_head_an_error_band_and_chance(tmp_path):
    run, series = run_of_heads(tmp_path, 2, 3)
    figure = drawn(run)
    assert len(figure.axes) == 1 + 4 + 2  # the loss, the probes, phases and roles
    panels = {axis.get_gid(): axis for axis in figure.axes}
    for name in ("attention_sparsity/sparsity", "induction/prefix_matching", "qk_alignment/score_top"):
        values = series[name][0].reshape(len(FEW), -1)
        lines = [line for line in panels[name].lines if line.get_color() in COLOURS]
        found = np.array([line.get_ydata() for line in lines]).T
        assert found == pytest.approx(values)
    matching = panels["induction/prefix_matching"]
    assert [line.get_ydata()[0] for line in matching.lines if line.get_linestyle() == ":" and line.get_lw() == 0.8]
    error = series["induction/prefix_matching_error"][0].reshape(len(FEW), -1)
    values = series["induction/prefix_matching"][0].reshape(len(FEW), -1)
    for number, band in enumerate(matching.collections[:6]):
        y = band.get_paths()[0].vertices[:, 1]
        assert y.max() == pytest.approx((values + error)[:, number].max(), abs=1e-9)


def test_the_strip_shows_the_leader_in_its_colour_and_its_mass_as_strength(tmp_path):
    run, series = run_of_heads(tmp_path, 1, 2)
    figure = drawn(run)
    image = np.asarray(figure.axes[-1].collections[0].get_array())  # [head, step, 3]
    leader, mass = series["head_specialization/leader"][0][:, 0], series["head_specialization/mass"][0][:, 0]
    used = sorted({int(code) for code in leader.ravel()} - {3})
    for head in range(2):
        for step in (0, len(FEW) - 1):
            code = int(leader[step, head])
            colour = NO_ROLE if code == 3 else FILLS[used.index(code)]
            strength = 1 if code == 3 else PALEST + (1 - PALEST) * mass[step, head, code]
            expected = 1 - strength * (1 - np.array(matplotlib.colors.to_rgb(colour)))
            assert image[head, step] == pytest.approx(expected)


def test_what_a_run_lacks_is_named_with_its_reason(tmp_path):
    run = write_run(
        tmp_path,
        "a",
        {"loss": LOSS, "attention_sparsity/sparsity": ((LOSS / 3)[:, None, None], ("layer", "head"))},
        probes=["attention_sparsity", "induction"],
        skipped={"induction": "the tokens are continuous"},
    )
    figure = drawn(run)
    assert len(figure.axes) == 2
    note = " ".join(text.get_text() for text in reversed(figure.texts[:-1]))
    assert note.startswith("not recorded: ") and "induction (the tokens are continuous)" in note
    assert "head specialization, key-query alignment (not among the run's probes)" in note


def test_reasons_are_never_cut(tmp_path):
    reason = "each head has one matrix of scores, without keys and queries of its own, " * 3 + "and this is its end"
    series = {"loss": LOSS, "attention_sparsity/sparsity": ((LOSS / 3)[:, None, None], ("layer", "head"))}
    run = write_run(tmp_path, "a", series, probes=["qk_alignment"], skipped={"qk_alignment": reason})
    figure = drawn(run)
    save(figure, tmp_path / "a.png")  # which shortens long texts
    assert "and this is its end" in " ".join(text.get_text() for text in reversed(figure.texts))
    assert not flaws(drawn(run))


def test_a_head_has_the_same_style_in_all_panels_also_if_one_layer_is_measured(tmp_path):
    rise = (LOSS / 3)[:, None, None] * np.array([[0.3, 0.6], [0.5, 0.9]])
    series = {
        "loss": LOSS,
        "attention_sparsity/sparsity": (rise, ("layer", "head")),
        "induction/prefix_matching": (rise[:, 1:], ("layer", "head"), {"layer": (1,)}),
    }
    figure = drawn(write_run(tmp_path, "a", series))
    panels = {axis.get_gid(): axis for axis in figure.axes}
    colours = {name: [line.get_color() for line in panels[name].lines if len(line.get_xdata()) > 2] for name in panels}
    assert colours["induction/prefix_matching"] == colours["attention_sparsity/sparsity"][2:]
    entries = [text.get_text() for text in panels["attention_sparsity/sparsity"].get_legend().get_texts()]
    assert entries == [f"layer {layer} head {head}" for layer in (0, 1) for head in (0, 1)]


def test_strips_show_labels_that_last(tmp_path):
    phase = (STEPS > 300)[:, None] * 1.0
    phase[5] = phase[-40] = 2.0  # two labels that do not last
    names = ("diffuse", "competitive", "cooperative")
    figure = drawn(write_run(tmp_path, "a", {"loss": LOSS, "head_specialization/phase": (phase, ("layer",), names)}))
    entries = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert entries == ["diffuse", "competitive"]


def test_the_loss_is_drawn_if_the_metric_is_another_series(tmp_path):
    figure = drawn(write_run(tmp_path, "a", {"loss": LOSS, "known": STEPS * 1.0}, metric="known"))
    assert figure.axes[0].get_ylabel() == "loss"
    figure = drawn(write_run(tmp_path, "b", {"known": STEPS * 1.0}, metric="known"))
    assert figure.axes[0].get_ylabel() == "known"


def test_a_run_without_loss_or_probes_has_no_overview(tmp_path):
    assert drawn(write_run(tmp_path, "a", {"other/reading": STEPS * 1.0})) is None
    assert drawn(write_run(tmp_path, "b", {}, steps=[])) is None


def test_up_to_eight_heads_have_their_own_colour_and_more_a_scale_by_layer():
    eight = looks(("layer", "head"), (2, 4), [f"{n}" for n in range(8)])
    assert len({look.style["color"] for look in eight}) == 8
    many = looks(("layer", "head"), (3, 12), [f"{n}" for n in range(36)])
    assert [look.entry for look in many] == [f"layer {n}" for n in range(3) for _ in range(12)]
    assert len({look.style["color"] for look in many}) == 3
    one_layer = looks(("layer", "head"), (1, 12), [f"head {n}" for n in range(12)])
    assert len({look.style["color"] for look in one_layer}) == 12


def test_edges_lie_between_the_measurements():
    assert edges([0, 2, 10]).tolist() == [0, 1, 6, 10] and len(edges([5])) == 2


# Machado, Oliveira and Fernandes (2009), severity 1: how a colour appears to people with each deficiency.
DEFICIENT = {
    "none": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """Returns CIE L*a*b* of a colour as seen with a colour vision deficiency."""
    srgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.clip(seen @ np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", DEFICIENT)
def test_the_colours_of_eight_heads_can_be_distinguished(seen):
    """A distance of 2.3 in CIE L*a*b* is just noticeable; thin lines need several times that."""
    found = np.array([lab(colour, DEFICIENT[seen]) for colour in (*COLOURS, "#FFFFFF")])
    distance = np.linalg.norm(found[:, None] - found[None], axis=-1) + 1e9 * np.eye(len(found))
    assert len(COLOURS) == 8 and distance.min() > 15
