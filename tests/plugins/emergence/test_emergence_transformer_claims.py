"""S8 to S12 on runs with known curves: they hold if the curves follow the paper's power laws, and differ if not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stagelens import Reading
from stagelens.claims.lab import Lab
from stagelens.experiments.config import make_config
from stagelens.host.host import make_host
from stagelens.runs import Run
from stagelens.runs.manifest import Manifest
from stagelens.runs.store import Store
from stagelens.timelines.timeline import pack
from stagelens_emergence import plugin
from stagelens_emergence.claims import measures, recall, regression
from stagelens_emergence.claims.measures import plateau_of
from stagelens_emergence.claims.regression import Data, label
from stagelens_emergence.figures import transformers as figures
from stagelens_emergence.tasks.recall import KeyValueRecall
from stagelens_emergence.tasks.regression import Regression

KINDS = {"emergence/regression": Regression, "emergence/recall": KeyValueRecall}
NEVER, POINTS = 1e9, 80
CLAIMS = [regression.Laws, regression.Ablations, recall.Emergence, recall.Repetition, recall.Circuit]


def step_up(steps, at, width):
    return 1 / (1 + np.exp(np.clip((at - steps) / width, -50, 50)))


def regression_length(c, seed):
    """Steps to a test loss of 0.1: Fig. 3's law, Fig. 13's, and factors for the rest."""
    length = 3 * c.d**1.29 * (c.T / c.B) ** 0.8 * c.layers**0.06 * c.heads**0.16
    length /= np.sqrt(c.p**2 * c.d + (1 - c.p) ** 2)
    length *= 0.5 if c.position == "fixed" else 1.0
    length *= 6 * c.T**0.3 if c.optimizer == "sgd" else 1.0
    return length * (1 + 0.02 * seed)


def recall_lengths(c, seed):
    """Steps until half of the answers are right without repetition, and as trained."""
    length = c.tokens**0.79 * c.pairs**2.25 * (1 + 0.02 * seed)
    train = length / (c.B or 1.0) / (1 + c.p)
    too_much = (c.B or 0) >= 4 or c.p >= 0.5
    return NEVER if too_much else train, train


@dataclass(frozen=True)
class Shelf(Lab):
    """A lab whose runs are written to disk with known curves instead of being trained."""

    regression: object = regression_length
    recall: object = recall_lengths
    late: float = 1.0  # how much later than the accuracy the copying attention rises

    def run(self, task, settings=None, seed=0, *, preset=None, probes=None):
        kind = KINDS[task]
        given = [f"{key}={value}" for key, value in (settings or {}).items()]
        config = make_config(kind.Config, kind.presets, preset or self._preset(task), given)
        name = f"{task.replace('/', '-')}-{abs(hash((config, seed)))}"
        if (self.cache / name).exists():
            return Run(self.cache / name)
        series, steps = self._regression(config, seed) if kind is Regression else self._recall(config, seed)
        return write(self.cache / name, task, config, seed, series, steps)

    def _regression(self, config, seed):
        length = self.regression(config, seed)
        steps = np.linspace(0, 2 * length if length < NEVER else 1000, POINTS)
        loss = 0.5 * (1 - step_up(steps, length, length / 100))
        mass = np.repeat(1 - 2 * loss, 8).reshape(POINTS, 2, 4)
        return {"loss": loss, "train_loss": loss, "relevant_attention/mass": mass}, steps

    def _recall(self, config, seed):
        test, train = self.recall(config, seed)
        steps = np.linspace(0, 2 * min(test, train), POINTS)
        rise = step_up(steps, test, train / 50)
        heads = np.zeros((POINTS, 2, 4))
        copying, selecting = heads.copy(), heads.copy()
        copying[:, 0, 1], selecting[:, 1, 2] = step_up(steps, self.late * test, train / 50), rise
        return {
            "loss": 2.8 * (1 - rise),
            "accuracy": 0.01 + 0.99 * rise,
            "key_value/train_accuracy": 0.01 + 0.99 * step_up(steps, train, train / 50),
            "key_value/copying": copying,
            "key_value/selecting": selecting,
        }, steps


def write(folder: Path, task, config, seed, series, steps) -> Run:
    folder.mkdir(parents=True)
    Manifest(
        task=task,
        plugin="emergence",
        preset="quick",
        config=config.model_dump(mode="json"),
        seed=seed,
        kind="training",
        steps=float(steps[-1]),
        status="finished",
        versions={},
    ).save(folder)
    store = Store(folder)
    dims = {1: (), 3: ("layer", "head")}
    store.add(
        *(
            pack(float(step), [Reading(name, values[i], dims[values.ndim]) for name, values in series.items()])
            for i, step in enumerate(steps)
        )
    )
    store.close()
    return Run(folder)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return Shelf(make_host(), tmp_path_factory.mktemp("shelf"), seeds=(0, 1, 2))


def differing(claim, lab):
    return [check.what for check in claim().checks(lab) if check.verdict == "differs"]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_holds_if_the_runs_obey_the_paper_s_laws(claim, shelf):
    assert differing(claim, shelf) == []


@pytest.mark.parametrize("budget", ["long", "paper"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_the_grids_of_the_other_budgets_are_runnable(claim, budget, tmp_path):
    assert differing(claim, Shelf(make_host(), tmp_path, budget=budget, seeds=(0, 1, 2))) == []


def test_the_settings_of_a_comparison_name_the_varied_one_last():
    assert label([Data(8, d=4), Data(16, d=4)]) == "d = 4, T = 8, 16"
    assert label([Data(32, 8, 4), Data(32, 8, 1)]) == "T = 32, d = 8, B = 4, 1"
    assert label([Data(16, 8)]) == "T = 16, d = 8"


def test_the_law_s_exponents_are_those_of_the_runs(shelf):
    checks = list(regression.Laws().checks(shelf))
    law = next(check.measured for check in checks if check.what.startswith("the power law ("))
    assert "T^0.800" in law
    assert "d^1.290" in law
    assert "B^-0.800" in law


def test_without_an_effect_of_b_s8_differs_there_alone(tmp_path):
    def blind(c, seed):
        return regression_length(c.model_copy(update={"B": 1}), seed) * (1 + 0.001 * c.B)

    found = differing(regression.Laws, Shelf(make_host(), tmp_path, seeds=(0, 1), regression=blind))
    assert found == [
        "plateaus at T = 32, d = 16, B = 4, 2, 1",
        "exponent of B is negative",
        "exponent of B against the paper's",
    ]


@pytest.mark.parametrize(("low", "high"), [(105, 107), (90, 130), (300, 1000), (120, 9000), (3, 3e6), (1.2, 1.3)])
def test_an_axis_of_lengths_has_ticks_to_read_it_by(low, high):
    ticks = figures.readable_ticks(low, high)
    assert 3 <= len(ticks) <= 8 and all(low <= tick <= high for tick in ticks)
    assert all(float(f"{tick:g}") == pytest.approx(tick, rel=1e-9) and len(f"{tick:g}") <= 6 for tick in ticks)


def test_an_entry_of_a_legend_looks_like_what_is_drawn(tmp_path):
    """A line joins several positions; one position has dots alone, and plateaus without an end have triangles."""
    lab = Shelf(make_host(), tmp_path, seeds=(0,), regression=lambda c, seed: NEVER if c.d == 16 else 50.0)
    runs = [
        *grid(lab, "emergence/regression", T=(8, 16), d=(4,)),
        *grid(lab, "emergence/regression", T=(8,), d=(8, 16)),
    ]
    _, axes = figures.panels(1, 1, "")
    figures.draw_lengths(axes[0, 0], runs, "T", "d", figures.LEARNED)
    legend = axes[0, 0].get_legend()
    entries = zip(legend.get_texts(), legend.get_lines(), strict=True)
    looks = {text.get_text(): (line.get_linestyle() != "None", line.get_marker()) for text, line in entries}
    assert looks == {"d = 4": (True, "o"), "d = 8": (False, "o"), "d = 16": (False, "^")}


def test_the_values_in_a_legend_have_one_format():
    assert [figures.named("B", value) for value in (2, 2.0, 0.5, figures.ONCE)] == [
        *("B = 2", "B = 2", "B = 0.5"),
        "exactly once",
    ]


def test_a_plateau_without_an_end_is_in_words_and_in_no_order(tmp_path):
    def stuck(c, seed):
        return NEVER if (c.T, c.d, c.B) == (32, 16, 1) else regression_length(c, seed)

    checks = list(regression.Laws().checks(Shelf(make_host(), tmp_path, seeds=(0, 1), regression=stuck)))
    in_T = next(check for check in checks if check.what.startswith("plateaus at d = 16"))
    assert in_T.measured[0][-1] == "not reached by 1000"
    assert not in_T.holds
    assert any("2 censored" in check.what for check in checks)


def test_if_no_plateau_ends_there_is_no_law_and_s10_differs(tmp_path):
    lab = Shelf(make_host(), tmp_path, seeds=(0, 1), recall=lambda c, seed: (NEVER, 100.0))
    checks = {check.what: check for check in recall.Emergence().checks(lab)}
    assert not checks["power law in pairs, tokens"].holds
    assert "10 more are censored" in checks["power law in pairs, tokens"].measured


def test_copying_that_lags_behind_differs(tmp_path):
    found = differing(recall.Circuit, Shelf(make_host(), tmp_path, seeds=(0,), late=1.3))
    assert found == ["steps of half of the rise of accuracy, copying and selecting: (last - first) / mean"]


def test_a_model_that_does_not_overfit_differs(tmp_path):
    def perfect(c, seed):
        _, train = recall_lengths(c, seed)
        return train, train

    found = differing(recall.Repetition, Shelf(make_host(), tmp_path, seeds=(0,), recall=perfect))
    assert found == [f"last training accuracy minus test accuracy at {name}" for name in ("p = 0.5", "B = 4")]


def test_the_fastest_learning_rate_counts(tmp_path):
    """D.3: the paper tunes it by the shortest mean plateau; here 3e-4 is twice as fast, and 1e-4 does not end."""

    def by_rate(c, seed):
        return regression_length(c, seed) / (2 if c.lr == 3e-4 else 1) if c.p else regression_length(c, seed)

    lab = Shelf(make_host(), tmp_path, budget="paper", seeds=(0,), regression=by_rate)
    with_p, without = regression.cross_sample_runs(lab)
    assert {run.manifest.config["lr"] for runs in with_p for run in runs.values()} == {3e-4}
    stuck = {1e-4: {0: without[0][0]}, 3e-4: {0: with_p[0][0]}}
    assert measures.faster(stuck, lambda run: None if run is without[0][0] else 5.0) is stuck[3e-4]


def test_sizes_without_an_effect_are_undecided(tmp_path):
    """Layers and heads have no effect, and seeds scatter by 20%: the confidence interval covers both signs."""

    def flat(c, seed):
        noise = np.random.default_rng([seed, c.layers, c.heads]).normal()
        return 100 * (1 + 0.2 * noise) * (6 * c.T**0.3 if c.optimizer == "sgd" else c.T**0.1)

    lab = Shelf(make_host(), tmp_path, seeds=(0, 1, 2), regression=flat)
    verdicts = {check.what: check.verdict for check in regression.Ablations().checks(lab)}
    assert verdicts["exponent of layers (paper: 0.06)"] == "needs budget"
    assert verdicts["exponent of heads minus that of layers"] == "needs budget"


# --- plateau lengths and figures ---


def test_a_plateau_ends_where_d1_says(shelf):
    run = shelf.run("emergence/regression", {"T": 16, "d": 8})
    steps, loss = run.timeline.scalar("loss")
    assert np.interp(plateau_of(run), steps, loss) == pytest.approx(0.1)
    assert np.interp(plateau_of(run, 0.4), steps, loss) == pytest.approx(0.4)
    run = shelf.run("emergence/recall", {"pairs": 4})
    assert np.interp(plateau_of(run, 0.5), *run.timeline.scalar("accuracy")) == pytest.approx(0.5)


def lines(figure):
    return [
        len([line for line in axis.lines if len(line.get_xdata()) and line.get_ls() != "None"]) for axis in figure.axes
    ]


def grid(lab, task, **keys):
    """Runs over the product of the values."""
    points = [{}]
    for key, values in keys.items():
        points = [{**point, key: value} for point in points for value in values]
    return [run for point in points for run in lab.each_seed(task, point).values()]


def test_figures_have_a_line_for_each_value(tmp_path):
    lab = Shelf(make_host(), tmp_path, seeds=(0,))
    regressions, recalls = (partial(grid, lab, task) for task in KINDS)
    plain = regressions(T=(8, 16, 32), d=(4, 8))
    repeated = regressions(T=(16,), d=(4, 8), B=(2, 4)) + regressions(T=(16,), d=(4, 8), p=(0.2,))
    assert lines(figures.fig3(plain + repeated)) == [3, 3, 2]
    assert lines(figures.fig11(plain[:1])) == [2, 1]
    assert lines(figures.fig13(regressions(T=(8,), d=(4, 8), heads=(2, 4), layers=(1, 2)))) == [2, 2]
    fixed = regressions(T=(8, 16), d=(4, 8), position=("fixed",), feature=("true", "false"))
    assert lines(figures.fig14(plain + fixed)) == [3, 2, 2]
    assert lines(figures.fig15(regressions(T=(8,), d=(4, 8), optimizer=("adam", "sgd")))) == [1, 1]
    harder = recalls(pairs=(3, 4), tokens=(16,)) + recalls(pairs=(4,), tokens=(32,))
    assert lines(figures.fig4(harder, 0.5)) == [2, 2, 2]
    repeated = recalls(pairs=(4,), B=(1, 2)) + recalls(pairs=(4,), p=(0, 0.5))
    assert lines(figures.fig5(repeated)) == lines(figures.fig16(repeated)) == [3, 2]
    assert lines(figures.fig17(harder[0])) == [2, 8, 8]


@pytest.mark.parametrize(
    "ref", [ref for ref in plugin.figures if "transformers:" in str(ref.target)], ids=lambda ref: ref.name
)
def test_a_registered_figure_is_drawn_from_the_runs_of_the_claims(ref, shelf):
    figure = ref.load()(shelf)
    assert f"{ref.name[3:]}" in re.findall(r"\d+", figure.get_suptitle())
    assert all(lines(figure)) and not any(axis.texts for axis in figure.axes)  # no panel is without runs


def test_a_plateau_without_an_end_is_an_open_triangle(tmp_path):
    lab = Shelf(make_host(), tmp_path, seeds=(0,), regression=lambda c, seed: NEVER if c.d == 8 else 50.0)
    figure = figures.fig3(grid(lab, "emergence/regression", T=(8,), d=(4, 8)))
    open_ones = [line for line in figure.axes[0].lines if line.get_marker() == "^"]
    assert [list(line.get_xdata()) for line in open_ones] == [[8.0]]
