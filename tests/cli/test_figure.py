"""`stagelens figure`: the figures of a paper are listed and drawn, by either way of registering them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

import stagelens as sl
from kit import figures_plugin
from stagelens.base import StagelensError, UsageError
from stagelens.claims import Lab, choose_figures, draw_figure
from stagelens.host import make_host

PLUGIN = Path(figures_plugin.__file__)
NAMES = ["fig1", "fig2", "fig3", "nothing", "nowhere"]


@pytest.fixture
def figure(cli, tmp_path):
    """Calls `stagelens figure` with the plugin of figures and a cache of its own."""
    return lambda *words: cli("--plugin-dir", PLUGIN, "figure", *words, "--cache", tmp_path / "cache")


@pytest.fixture
def host():
    host = make_host(installed=False)
    host.load("halves", "1", lambda: figures_plugin)
    assert host.failed == []
    return host


@pytest.mark.parametrize("plugin", ["halves", "halves/decay", "figures_plugin"])
def test_the_figures_of_a_plugin_are_listed(figure, plugin):
    assert [(row["plugin"], row["name"]) for row in figure(plugin, "--json").json] == [
        ("figures_plugin", name) for name in NAMES
    ]
    shown = figure(plugin)
    assert shown.code == 0 and all(name in shown.out for name in NAMES) and "as its preset draws it" in shown.out


def test_without_a_plugin_the_figures_of_all_are_listed(figure):
    rows = figure("--json").json
    assert {"plugin", "name", "title"} == set(rows[0])
    assert [row["name"] for row in rows if row["plugin"] == "figures_plugin"] == NAMES


def test_figures_are_drawn_into_a_directory(figure, tmp_path):
    answer = figure("halves", "fig1", "fig2", "-o", tmp_path / "drawn", "--json")
    assert answer.code == 0, answer.err
    files = [tmp_path / "drawn" / f"figures_plugin-{name}.png" for name in ("fig1", "fig2")]
    assert [row["file"] for row in answer.json] == [str(file) for file in files]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_a_figure_is_drawn_into_the_file_that_is_given(figure, tmp_path):
    answer = figure("halves", "fig2", "-o", tmp_path / "mine.svg")
    assert answer.code == 0 and answer.out.strip() == str(tmp_path / "mine.svg")
    assert "until 4" in (tmp_path / "mine.svg").read_text(encoding="utf-8")


def test_by_default_a_figure_is_written_here(figure, tmp_path):
    assert figure("halves", "fig1").out.strip() == "figures_plugin-fig1.png"
    assert (tmp_path / "figures_plugin-fig1.png").stat().st_size > 3000


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["halves", "fig22"], "unknown figure 'fig22'"),
        (["halves", "fig22"], "fig1, fig2, fig3, nothing, nowhere"),
        (["nobody"], "unknown plugin 'nobody'"),
        (["probes"], "plugin 'probes' has no figures"),
        (["halves", "fig1", "--budget", "huge"], "unknown budget 'huge'"),
        (["halves", "fig1", "fig2", "-o", "one.png"], "2 figures to the one file"),
        (["halves", "fig1", "-o", "nowhere/one.png"], "is not a directory"),
    ],
)
def test_mistakes_are_one_line(figure, words, complaint):
    answer = figure(*words)
    assert answer.code == 2 and complaint in answer.complaint


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nothing", "has nothing to show"), ("nowhere", "has no 'nowhere'"), ("fig3", "draws fig2, not fig3")],
)
def test_a_figure_that_cannot_be_drawn_is_reported_with_the_reason(figure, name, complaint):
    answer = figure("halves", name)
    assert answer.code == 1 and complaint in answer.complaint


def test_the_budget_decides_the_size_of_the_runs_and_a_preset_overrides_it(host, tmp_path):
    def title(name, budget):
        (chosen,) = choose_figures(host, "halves", [name])
        drawn = draw_figure(chosen.ref, Lab(host, tmp_path, budget))
        assert isinstance(drawn, Figure)
        return drawn.get_suptitle()

    assert [title("fig1", budget) for budget in ("quick", "paper")] == ["until 2", "until 9"]
    assert [title("fig2", budget) for budget in ("quick", "paper")] == ["until 4", "until 4"]


def test_runs_are_shared_between_figures(host, tmp_path):
    for _ in range(2):
        draw_figure(choose_figures(host, "halves", ["fig1"])[0].ref, Lab(host, tmp_path))
    assert len(list((tmp_path / "runs").glob("halves*"))) == 1


@pytest.mark.parametrize("name", ["", "../fig1", "fig 1", "a" * 81, ".hidden", "fig/1"])
def test_a_name_that_cannot_be_a_file_is_refused(name):
    with pytest.raises(UsageError, match="expected a name"):
        sl.FigureRef(name, "x", "module:function")


@pytest.mark.parametrize("given", [{}, {"target": "module:function", "task": "halves/decay"}])
def test_a_figure_is_drawn_one_way(given):
    with pytest.raises(UsageError, match="either target"):
        sl.FigureRef("fig1", "x", **given)


def test_two_figures_of_one_name_are_the_plugins_mistake(host):
    class Twice:
        @sl.hookimpl
        def stagelens_register_figures(self):
            return [sl.FigureRef("fig1", "x", fig) for fig in (len, max)]

    host.load("twice", "1", Twice)
    assert "figure 'twice/fig1' is registered twice" in host.failed[0].error
    assert {one.plugin for one in choose_figures(host)} == {"halves"}


def test_a_figure_of_a_task_that_does_not_draw_it_is_an_error(host, tmp_path):
    with pytest.raises(StagelensError, match="draws fig2, not fig9"):
        draw_figure(sl.FigureRef("fig9", "x", task="halves"), Lab(host, tmp_path))
