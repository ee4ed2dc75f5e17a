"""Comparisons of seeds with different schedules and lengths, computed again with xarray and numpy."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from kit.written_runs import staircase, write_run

NAMES = ("loss", "p/h", "p/h[layer=1,head=0]", "mean(p/h[layer=1])", "p/kl[reference=bi]", "mean(p/kl)")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Writes four seeds with different steps, transitions and lengths; heads are measured at some steps only."""
    folder, random = tmp_path_factory.mktemp("runs"), np.random.default_rng(3)
    made = []
    for seed in range(4):
        end = 900 + 200 * seed
        steps = np.unique(np.r_[0, random.integers(0, end, 120), end])
        loss = staircase(steps, (200 + 60 * seed, 500 + 80 * seed), (3.0, 2.0, 1.0))
        heads = random.normal(size=(len(steps), 2, 3)).cumsum(0)
        heads[:, 1, 2] = heads[::3] = np.nan  # a head that does not exist, and steps without a measurement
        series = {
            "loss": loss + 0.002 * random.normal(size=len(steps)),
            "p/h": (heads, ("layer", "head")),
            "p/kl": (random.random((len(steps), 2)), ("reference",), {"reference": ["uni", "bi"]}),
        }
        made.append(write_run(folder, f"s{seed}", series, steps, seed=seed))
    return made


def by_hand(run, name):
    """Returns (steps, values) of one of NAMES."""
    data = run.timeline.dataset
    array = {
        "loss": lambda: data["loss"],
        "p/h": lambda: data["p/h"].mean(["layer", "head"]),
        "p/h[layer=1,head=0]": lambda: data["p/h"].sel(layer=1, head=0),
        "mean(p/h[layer=1])": lambda: data["p/h"].sel(layer=1).mean("head"),
        "p/kl[reference=bi]": lambda: data["p/kl"].sel(reference="bi"),
        "mean(p/kl)": lambda: data["p/kl"].mean("reference"),
    }[name]().dropna("step")
    return array.step.values.astype(float), array.values


def placed(run, steps, align):
    """Returns the positions of `steps` on an axis that docs/compare.md defines."""
    own, loss = run.timeline.scalar("loss")
    if align == "loss":
        lowest = np.minimum.accumulate(loss)
        return np.interp(steps, own, (lowest[0] - lowest) / (lowest[0] - lowest[-1]))
    if align == "stage":
        knots = [own[0], *(stage.at for stage in run.stages().transitions), own[-1]]
        return np.interp(steps, knots, range(len(knots)))
    return steps / own[-1] if align == "fraction" else steps


def line(positions, x, values):
    """Returns the line through (x, values) at `positions`; points that share a position count as their mean."""
    at = {place: values[x == place].mean() for place in x}
    return np.array([at.get(place, np.interp(place, x, values)) for place in positions])


def moved_together(runs, align, positions):
    """Returns `positions` for each run after stretching all runs so that their transitions are at the medians."""
    ends = (positions[0], positions[-1])
    times = [placed(run, np.array([stage.at for stage in run.stages().transitions]), align) for run in runs]
    middle = np.median(times, axis=0)
    return [np.interp(positions, [ends[0], *middle, ends[1]], [ends[0], *own, ends[1]]) for own in times]


@pytest.mark.parametrize("align", ["step", "fraction", "loss", "stage"])
def test_curves_are_the_medians_of_the_aligned_seeds(runs, align):
    curves = sl.compare(runs, list(NAMES), align=align).curves
    assert [curve.series.name for curve in curves] == list(NAMES)
    for curve, name in zip(curves, NAMES, strict=True):
        lines, aligned = [], []
        for run, own, (x, values) in zip(runs, moved_together(runs, align, curve.x), curve.seeds, strict=True):
            steps, expected = by_hand(run, name)
            np.testing.assert_allclose(x, placed(run, steps, align), atol=1e-12)
            np.testing.assert_allclose(values, expected, atol=1e-12)
            lines.append(line(curve.x, x, values))
            aligned.append(line(own, x, values))
        middle = np.clip(np.median(aligned, axis=0), curve.low, curve.high)
        np.testing.assert_allclose(curve.middle, middle, atol=1e-9)
        assert (curve.low <= np.min(lines, axis=0) + 1e-12).all()
        assert (curve.high >= np.max(lines, axis=0) - 1e-12).all()
        assert (curve.x[0], curve.x[-1]) == (max(x[0] for x, _ in curve.seeds), min(x[-1] for x, _ in curve.seeds))


def test_rows_are_the_means_of_the_seeds_at_the_ends_of_their_stages(runs):
    comparison = sl.compare(runs, list(NAMES))
    assert [row["kind"] for row in comparison.table] == ["plateau", "transition"] * 2 + ["plateau"]
    for row in comparison.table:
        stages = [run.stages()[row["stage"] - 1] for run in runs]
        for key in ("start", "end", "level"):
            own = [getattr(stage, key) for stage in stages]
            assert row[key] == pytest.approx(np.mean(own), abs=1e-12)
            assert row["spread"][key] == [min(own), max(own)]
        for name, series in zip(NAMES, comparison.series, strict=True):
            curves = [by_hand(run, name) for run in runs]
            ends = [
                np.interp(stage.end, *curve)
                for stage, curve in zip(stages, curves, strict=True)
                if curve[0][0] <= stage.end <= curve[0][-1]
            ]
            assert ends or row[series.label] is None
            assert not ends or row[series.label] == pytest.approx(np.mean(ends), abs=1e-12)
