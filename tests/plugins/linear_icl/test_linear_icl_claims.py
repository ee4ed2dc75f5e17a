"""What the claims measure, on curves whose answer is known; the figures; and the registration."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import stagelens as sl
from stagelens.claims import choose_figures, draw_figure
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.figures import styled
from stagelens.host.host import make_host
from stagelens_linear_icl import theory
from stagelens_linear_icl.claims.measures import (
    accelerations,
    duration_ratios,
    dwells,
    exponent,
    found_fixed_points,
    long_plateaus,
    matching_levels,
    plateau_time,
    regression_error,
    sampling_errors,
    slowest_losses,
    stages,
    value_errors,
)
from stagelens_linear_icl.claims.paths import population_path, separate, training_descents
from stagelens_linear_icl.claims.variations import Softmax
from stagelens_linear_icl.figures import main, variations
from stagelens_linear_icl.flow import WeightPath, descend, flow_path
from stagelens_linear_icl.losses import loss_of
from stagelens_linear_icl.model import HeadWeights, product, stack
from stagelens_linear_icl.tasks import Separate

LEVELS = np.array([1, 0.64057971, 0.37737216, 0.2098046, 0.13599507])


def staircase(times, drops, width):
    """A loss that falls from each level to the next at `drops`, in about `width`."""
    steps = 1 / (1 + np.exp(-(times[:, None] - drops) / width))
    return LEVELS[0] - steps @ -np.diff(LEVELS)


@pytest.fixture(scope="module")
def stairs():
    times = np.linspace(0, 1e4, 20_001)
    return WeightPath(separate(w_init=0.1), times, staircase(times, np.array([1000, 3000, 5000, 8000]), 20), None)


def test_drops_and_stays_of_a_staircase(stairs):
    np.testing.assert_allclose(stairs.problem.plateaus, LEVELS, atol=1e-7)
    np.testing.assert_allclose(stairs.drops, [1000, 3000, 5000, 8000], atol=1)
    np.testing.assert_allclose(dwells(stairs), [1000, 2000, 2000, 3000], atol=1)
    assert len(stages(stairs).transitions) == 4
    np.testing.assert_allclose(slowest_losses(stairs), LEVELS[:-1], rtol=1e-3)
    assert 7500 < plateau_time(stairs) < 8000


def test_a_plateau_counts_where_the_loss_speeds_up_again(stairs):
    assert accelerations(stairs) == 4
    decay = WeightPath(stairs.problem, stairs.times, LEVELS[-1] + np.exp(-stairs.times / 500), None)
    assert accelerations(decay) == 0


def doublings(log_speed):
    """Returns how often a curve rises by log 2 above its lowest value since it last fell by log 2, in one pass."""
    count, slowing, extreme = 0, True, np.inf
    for now in log_speed:
        extreme = min(extreme, now) if slowing else max(extreme, now)
        if slowing and now > extreme + np.log(2):
            count, slowing, extreme = count + 1, False, now
        elif not slowing and now < extreme - np.log(2):
            slowing, extreme = True, now
    return count


@pytest.mark.parametrize("seed", range(20))
def test_accelerations_are_the_doublings_of_the_speed(seed):
    """Of losses that fall at a random speed, from fast changes (few steps in a doubling) to slow ones."""
    log_speed = np.cumsum(np.random.default_rng(seed).normal(size=300)) * 0.05 * (1 + seed)
    speed = np.exp(log_speed - log_speed.max()) * 1e-3 + 1e-5
    loss = 1.0 - np.append(0.0, np.cumsum(speed))
    path = WeightPath(separate(), np.arange(302.0), np.append(1.0, loss), None)
    assert accelerations(path) == doublings(np.log(speed))


def test_long_plateaus_are_those_that_last(stairs):
    """log(sqrt(HRD) / w_init) / lambda^2 is 23, 41, 92 and 369: 1.5 times it is what a stay must exceed."""
    times = np.linspace(0, 1e4, 20_001)
    assert long_plateaus(stairs) == [0, 1, 2, 3]
    brief = WeightPath(stairs.problem, times, staircase(times, np.array([1000, 1050, 2000, 2400]), 5), None)
    assert long_plateaus(brief) == [0, 2]
    late = staircase(times, np.array([1000, 1050, 2000, 3400]), 5)
    for end, found in ((2300, [0, 2]), (3000, [0, 2, 3])):  # the third drop was 300 ago, which is not long, or 1,000
        part = times < end
        assert long_plateaus(WeightPath(stairs.problem, times[part], late[part], None)) == found


def test_an_exponent_is_the_slope_in_log_log():
    assert exponent([1, 2, 4], [8, 2, 0.5]) == pytest.approx(-2)


def test_every_claim_is_registered_with_its_own_title():
    host = make_host()
    refs = {chosen.ref.id: chosen.ref for chosen in choose(host, ["linear-icl"])}
    assert list(refs) == [f"L{number}" for number in range(1, 14)]
    for id, ref in refs.items():
        kind = ref.load()
        assert (kind.id, kind.title) == (id, ref.title) and kind.reference
        assert min(kind.seeds.values() if isinstance(kind.seeds, dict) else [kind.seeds]) >= 3


def test_every_figure_is_registered_with_a_preset_that_there_is():
    host = make_host()
    refs = [chosen.ref for chosen in choose_figures(host, "linear-icl")]
    assert sorted(ref.name for ref in refs) == sorted(["fig1a", "fig1b", "fig1c", *(f"fig{n}" for n in "23456789")])
    assert all((ref.preset or "quick") in host.task(ref.task).load().presets for ref in refs if ref.task)
    assert [ref.name for ref in refs if ref.target] == ["fig3", "fig6"] and all(
        ref.paper and ref.claims for ref in refs
    )


def test_fixed_points_hold_through_the_engine(tmp_path):
    host = make_host()
    (chosen,) = choose(host, ["linear-icl"], ["L4"])
    result = verify_claim(chosen, Lab(host, tmp_path))
    assert result.verdict == "holds", result.error


def test_scalar_equation_is_measured_from_the_plateau():
    """A head that starts aligned follows Eq. 7, and one at a wrong rate does not."""
    problem = separate(w_init=0.01, H=4)
    times = np.append(0.0, np.geomspace(100, 1e5, 20_000))
    path = flow_path(problem, problem.start(0), times)
    assert max(value_errors(path)) < 0.05
    late = WeightPath(problem, times * 1.5, path.loss, path.weights)
    assert min(value_errors(late)) > 0.05


def aligned_path():
    """One head per eigenvector, aligned from the start: Eq. 7 and Eq. 43 describe it exactly and nearly."""
    problem = separate(w_init=0.01)
    v = np.array([4e-2, 2e-2, 1.5e-2, 1.2e-2])
    k = v[:, None, None] * problem.covariance.eigenvectors[:, None, :]
    times = np.append(0.0, np.geomspace(10, 1e5, 20_000))
    return flow_path(problem, HeadWeights(v, k, k.copy()), times, rtol=1e-10)


def test_an_aligned_head_follows_equation_7_from_the_middle_of_its_plateau():
    path = aligned_path()
    assert max(value_errors(path, on_plateau=True)) < 1e-3
    misaligned = HeadWeights(path.weights.v, path.weights.k, path.weights.q)
    slower = WeightPath(path.problem, path.times * 1.2, path.loss, misaligned)
    assert min(value_errors(slower, on_plateau=True)) > 0.05


def test_plateaus_of_aligned_heads_last_as_equation_43_says():
    assert duration_ratios(aligned_path()) == pytest.approx([1, 1, 1], abs=0.15)


def test_descents_on_training_sets_are_those_of_each_seed_alone():
    settings = {"P": 50, "steps": 300, "w_init": 0.5, "lr": 0.2}
    together = training_descents(settings, (3, 4))
    for seed, path in together.items():
        task = Separate(Separate.Config.model_validate(settings), seed)
        alone = descend(stack([task.start()]), task.moments, 0.2, 300, [0, 300])
        assert path.loss[-1] == pytest.approx(alone.loss[-1, 0], rel=1e-9)
        assert population_path(path).loss[-1] == pytest.approx(
            float(loss_of(product(alone.weights.at(-1).at(0)), task.population))
        )


def test_the_sampling_error_of_a_level_is_how_it_scatters_over_training_sets():
    made = [Separate(Separate.Config.model_validate({"P": 500}), seed) for seed in range(200)]
    levels = np.stack([loss_of(task.fixed_points, task.moments) for task in made])  # [set, level]
    said = np.mean([sampling_errors(task) for task in made], axis=0)
    np.testing.assert_allclose(levels.std(0), said, rtol=0.15)
    assert np.abs(levels.mean(0) - made[0].plateaus).max() < 4 * said.max() / 200**0.5


def test_the_root_finder_reaches_fixed_points_and_knows_others(monkeypatch):
    task = separate()
    found = found_fixed_points(task, 0, 10)
    assert len(found) > 5
    for M in found:
        nearest = [
            np.abs(theory.fixed_point(task.covariance, learned, task.inverse_length) - M).max()
            for m in range(5)
            for learned in combinations(range(4), m)
        ]
        assert min(nearest) < 1e-6


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("Fig. 1c", main.keys_figure),
        ("Fig. 2", lambda task: variations.ranks_figure(task, (1, 2), "Fig. 2")),
        ("Fig. 4", variations.scales_figure),
        ("Fig. 7", lambda task: variations.values_by_rank_figure(task, (2, 3))),
    ],
)
def test_figures_say_which_they_are(name, draw):
    with styled():
        figure = draw(separate(lr=1.0, steps=300, w_init=0.5))
    title = figure.get_suptitle() or figure.axes[0].get_title("left")
    assert title.startswith(name)
    assert all(axis.lines or axis.images or axis.collections for axis in figure.axes)
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]
    said = [text.get_text() for legend in legends for text in legend.get_texts()]
    assert ("theory: Eq. 5" in said) is (name != "Fig. 1c")  # what is dashed is explained


def test_a_run_draws_the_figures_of_its_preset(tmp_path):
    quick = sl.run(
        "linear-icl",
        settings={"steps": 40, "w_init": 0.5},
        runs=tmp_path,
        probes=["principal_components"],
        report=False,
    )
    softmax = sl.run(
        "linear-icl/sequences", preset="fig3", settings={"steps": 20, "P": 20}, runs=tmp_path, report=False
    )
    with styled():
        assert set(quick.experiment.figures(quick)) == {"fig1a", "fig1b", "fig1c"}
        assert set(softmax.experiment.figures(softmax)) == {"fig3"}


def test_the_readme_has_a_command_for_each_figure():
    text = (Path(theory.__file__).parent / "README.md").read_text(encoding="utf-8")
    commands = dict(re.findall(r"^\| (\d[\w, ]*) \| `stagelens run (.*)` \|$", text, flags=re.M))
    assert list(commands) == ["1a, 1b, 1c", "2", "4", "5", "7", "8", "9"]
    assert "| 3 | `stagelens figure linear-icl fig3` |" in text
    host = make_host()
    for command in commands.values():
        task, _, preset = command.partition(" --preset ")
        assert (preset or "quick") in host.task(task).load().presets


def test_fixed_points_that_are_all_the_same_are_noticed(tmp_path, monkeypatch):
    every = theory.fixed_point_weights
    monkeypatch.setattr(theory, "fixed_point_weights", lambda cov, _, *rest: every(cov, (0,), *rest))
    host = make_host()
    (chosen,) = choose(host, ["linear-icl"], ["L4"])
    missed = [check.what for check in verify_claim(chosen, Lab(host, tmp_path)).checks if not check.holds]
    assert any(what.startswith("smallest distance") for what in missed)


def test_levels_that_are_not_reached_are_strings(stairs):
    """A descent that ends on its second plateau: later levels have no plateau, and the one there is counts once."""
    part = stairs.times < 2500
    short = WeightPath(stairs.problem, stairs.times[part], stairs.loss[part], None)
    found = matching_levels(LEVELS, stages(short))
    assert found[:2] == pytest.approx(LEVELS[:2], rel=1e-3) and found[2:] == ["not reached"] * 3
    assert slowest_losses(short)[1:] == ["not reached"] * 3 and accelerations(short) == 1
    assert np.isnan(regression_error(short, 2)) and np.isnan(exponent([1, 2], [1, np.nan]))


def test_figure_3_shows_the_training_loss_of_six_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(Softmax, "settings", {"quick": {"P": 20, "batch_size": 20, "steps": 20, "eval_size": 20}})
    host = make_host()
    (chosen,) = choose_figures(host, "linear-icl", ["fig3"])
    figure = draw_figure(chosen.ref, Lab(host, tmp_path))
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == [f"seed {seed}" for seed in range(10, 16)]
    assert figure.get_suptitle().startswith("Fig. 3") and "P = 20" in figure.get_suptitle()
