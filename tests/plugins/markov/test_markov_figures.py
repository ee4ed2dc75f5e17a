"""The paper's figures by name, drawn from runs of a few steps: every one is there and shows what was measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from stagelens.claims.lab import Lab
from stagelens.experiments.batches import eval_batch
from stagelens.host.host import make_host
from stagelens_markov import claims, figures, panels, spare_figures

TINY = {"d": 4, "T": 3, "steps": 12, "batch_size": 8, "train_size": 16, "eval_size": 8}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(make_host(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(claims, "SIZES", {"quick": TINY})
    monkeypatch.setattr(claims.ImportanceRatio, "longer", {"quick": {}})
    monkeypatch.setattr(claims.DatasetSize, "sizes", {"quick": {8: {}, 16: {}}})
    whole = figures.full
    monkeypatch.setattr(figures, "full", lambda lab, **changes: whole(lab, **TINY, d_model=12, **changes))


@pytest.mark.parametrize("name", [f"fig{number}" for number in range(1, 11)] + ["spare-heads"])
def test_each_figure_shows_something(lab, name, monkeypatch):
    if name in ("fig10", "spare-heads"):
        whole, small = Lab.run, {"T": 4, "time": 20.0, "points": 30}
        monkeypatch.setattr(
            Lab, "run", lambda self, task, given=(), seed=0: whole(self, task, dict(given) | small, seed)
        )
    figure = figures.FIGURES[name](lab)
    assert figure.get_suptitle()
    panels = [axis for axis in figure.get_axes() if axis.get_visible()]
    assert panels and all(axis.lines or axis.images or axis.collections for axis in panels)


def test_the_divergences_drawn_are_those_measured(lab):
    run = figures.minimal(lab)
    left, right = figures.curves_figure(run, "").get_axes()
    assert [line.get_label() for line in right.lines[::2]] == ["A*_1:1", "A*_1:2", "A*_1:3"]
    assert right.lines[0].get_ydata() == pytest.approx(run.timeline.series(figures.KL)[1:, 0])
    assert left.lines[0].get_ydata() == pytest.approx(run.timeline.scalar("excess")[1][1:])


def test_the_table_of_spare_heads_says_where_each_went_and_what_it_is_worth(lab, monkeypatch):
    monkeypatch.setattr(spare_figures, "TRAINED", (4,))
    titles, *rows = spare_figures.trained_rows(lab)
    assert [row[:2] for row in rows] == [["4", "0"], ["4", "1"], ["4", "2"]]
    run = spare_figures.trained(lab, 4, 0)
    mass = run.timeline.series("head_specialization/mass")[-1, 0]  # [head, group]
    counts = [int((mass.argmax(-1) == group).sum()) for group in range(3)]
    assert rows[0][2] == ", ".join(map(str, counts))
    assert rows[0][4] == f"{run.timeline.scalar('excess')[1][-1]:.3f}"
    assert all(len(row) == len(titles) for row in rows)

    task, model = run.experiment, run.model_at()
    batch = eval_batch(task)
    with torch.no_grad():
        whole = task.loss(model, batch)
        model.blocks[0].attn.V[2] = 0.0  # what the head adds is gone
        alone = task.loss(model, batch) - whole
    assert spare_figures.losses_added(run)[2] == pytest.approx(alone.item(), abs=1e-5)


def test_the_command_writes_a_file(tmp_path, monkeypatch):
    output = tmp_path / "one.png"
    monkeypatch.setattr(sys, "argv", ["figures", "fig9", "-o", str(output), "--cache", str(tmp_path / "cache")])
    figures.main()
    assert output.stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fig11"], "unknown figure 'fig11' (did you mean 'fig1'?); known: fig1, fig10, fig2"),
        ([], "the following arguments are required: name"),
        (["fig1", "-o", "one.jpg"], "cannot write 'one.jpg': expected a name that ends in .png or .svg"),
        (["fig1", "-o", "nowhere/one.png"], "there is no folder 'nowhere'"),
        (["fig1", "--budget", "huge"], "invalid choice: 'huge'"),
    ],
)
def test_a_mistake_is_one_line(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["figures", *words])
    with pytest.raises(SystemExit) as ended:
        figures.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and message in said and said.count("\n") == 1


def test_the_readme_has_a_command_for_each_figure():
    text = (Path(figures.__file__).parent / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:stagelens_markov\.figures|\.\.\.) ([\w-]+)`", text)
    assert set(named) == {name for name in figures.FIGURES if name.startswith("fig")}


def test_heads_are_named_by_where_they_end(lab):
    run = figures.minimal(lab)
    row = panels.AttentionRow(run)
    last = run.timeline.series("head_specialization/mass")[-1, 0].argmax(-1)  # [head]
    names = [*run.timeline.column("head_specialization/mass").coordinate("group")]
    assert row.heads == [f"head {head}, ends at {names[group]}" for head, group in enumerate(last)]
    width, height = row.size
    assert width == pytest.approx(5 * panels.MAP + 4 * panels.BETWEEN) and height >= panels.FLATTEST
