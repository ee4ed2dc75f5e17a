"""The paper's figures, drawn from runs of a few steps: each one exists and shows what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import stagelens_markov
from kit.pictures import empty_panels
from stagelens.claims import choose_figures, draw_figure
from stagelens.claims.lab import Lab
from stagelens.experiments.batches import eval_batch
from stagelens.host.host import make_host
from stagelens_markov.claims import trained as claims
from stagelens_markov.figures import panels, spare, trained as figures

TINY = {"d": 4, "T": 3, "steps": 12, "batch_size": 8, "train_size": 16, "eval_size": 8}
NAMES = [f"fig{number}" for number in range(1, 11)] + ["spare-heads"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(make_host(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    full = TINY | {"d_model": 12}
    monkeypatch.setattr(claims, "SIZES", {claims.MINIMAL: {"quick": TINY}, claims.FULL: {"quick": full}})
    monkeypatch.setattr(figures, "LONGER", {})
    monkeypatch.setattr(claims.DatasetSize, "sizes", {"quick": {8: {}, 16: {}}})
    monkeypatch.setattr(
        claims.ReversedOrder, "changes", {claims.FULL: {"quick": claims.ReversedOrder.small}}
    )  # and no more steps


def test_every_figure_is_registered():
    assert [chosen.ref.name for chosen in choose_figures(make_host(), "markov")] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_shows_something(lab, name, monkeypatch):
    if name in ("fig10", "spare-heads"):
        whole, small = Lab.run, {"T": 4, "time": 20.0, "points": 30}
        monkeypatch.setattr(
            Lab, "run", lambda self, task, given=(), seed=0, preset=None: whole(self, task, dict(given) | small, seed)
        )
    (chosen,) = choose_figures(lab.host, "markov", [name])
    figure = draw_figure(chosen.ref, lab)
    assert figure.get_suptitle()
    assert figure.axes and not empty_panels(figure)


def test_the_divergences_drawn_are_those_measured(lab):
    run = figures.minimal(lab)
    left, right = figures.curves_figure(run, "").get_axes()
    assert [line.get_label() for line in right.lines[::2]] == ["A*_1:1", "A*_1:2", "A*_1:3"]
    assert right.lines[0].get_ydata() == pytest.approx(run.timeline.series(figures.KL)[1:, 0])
    assert left.lines[0].get_ydata() == pytest.approx(run.timeline.scalar("excess")[1][1:])


def test_the_table_of_spare_heads_says_where_each_went_and_what_it_is_worth(lab, monkeypatch):
    monkeypatch.setattr(spare, "TRAINED", (4,))
    titles, *rows = spare.trained_rows(lab)
    assert [row[:2] for row in rows] == [["4", "0"], ["4", "1"], ["4", "2"]]
    run = spare.trained(lab, 4, 0)
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
    assert spare.losses_added(run)[2] == pytest.approx(alone.item(), abs=1e-5)


def test_the_readme_has_a_command_for_each_figure():
    text = (Path(stagelens_markov.__file__).parent / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:stagelens figure markov|\.\.\.) ([\w-]+)`", text)
    assert named == NAMES


def test_heads_are_named_by_where_they_end(lab):
    run = figures.minimal(lab)
    row = panels.AttentionRow(run)
    last = run.timeline.series("head_specialization/mass")[-1, 0].argmax(-1)  # [head]
    names = [*run.timeline.column("head_specialization/mass").coordinate("group")]
    assert row.heads == [f"head {head}, ends at {names[group]}" for head, group in enumerate(last)]
    width, height = row.size
    assert width == pytest.approx(5 * panels.MAP + 4 * panels.BETWEEN) and height >= panels.MIN_HEIGHT
