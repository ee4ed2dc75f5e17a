"""Figs. 3 to 5 and 11 to 17: transformers.

A figure over a grid takes the finished runs of the grid in any order:

    fig3([sl.load(folder) for folder in folders])

The functions at the end draw each figure from the runs of the claims, for `stagelens figure emergence NAME`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import THEORY, line_style, panels, title_of
from stagelens_emergence.claims import recall, regression
from stagelens_emergence.claims.measures import ANSWERING, LEARNED, LEAVING, Seeds, plateau_of

ONCE = "once"  # instead of B: every sequence has each pair exactly once
FEWEST_TICKS = 3  # on an axis of plateau lengths
FACTORS = (1,), (1, 2, 5), (1, 2, 3, 5, 7)  # of powers of ten: ticks, from coarse to fine


def setting(run: Run, key: str) -> Any:
    """Returns a run's value of a config key; `ONCE` if recall has no B."""
    value = run.manifest.config[key]
    return ONCE if value is None else value


def values_of(runs: Iterable[Run], key: str) -> list[Any]:
    """Returns the different values of a config key, sorted, words first."""
    return sorted({setting(run, key) for run in runs}, key=lambda v: (not isinstance(v, str), v))


def named(key: str, value: Any) -> str:
    """Returns an entry of a legend: `B = 2`, also of a value 2.0; `exactly once` if recall has no B."""
    return "exactly once" if isinstance(value, str) and value == ONCE else f"{key} = {value:g}"


def commonest(runs: Sequence[Run], key: str) -> list[Run]:
    """Returns the runs that have the most common value of `key`."""
    if not runs:
        return []
    value = Counter(setting(run, key) for run in runs).most_common(1)[0][0]
    return [run for run in runs if setting(run, key) == value]


def draw_lengths(axis: Axes, runs: Sequence[Run], x: str, by: str, threshold: float) -> None:
    """Draws plateau lengths over `x`: for each value of `by` a line through the seed means, and a dot for each run.

    If all runs have the same `x`, the two change places, so that there is something to see. A run whose plateau has
    not ended is an open triangle at its last step.
    """
    if len(values_of(runs, x)) == 1 < len(values_of(runs, by)):
        x, by = by, x
    for index, value in enumerate(values_of(runs, by)):
        line = [run for run in runs if setting(run, by) == value]
        style = line_style(index)
        at = np.array([setting(run, x) for run in line], dtype=float)  # [run]
        lengths = np.array([plateau_of(run, threshold) for run in line], dtype=float)  # [run], nan: not ended
        means = np.array([lengths[at == position].mean() for position in np.unique(at)])
        axis.plot(np.unique(at), means, **style)
        axis.plot(at, lengths, "o", ms=3, color=style["color"])
        late = np.isnan(lengths)
        steps = np.array([run.manifest.steps for run in line], dtype=float)
        axis.plot(at[late], steps[late], "^", ms=5, mfc="none", color=style["color"])
        joined = (np.isfinite(means[1:]) & np.isfinite(means[:-1])).any()  # whether a line is seen
        dot: Any = {"marker": "^", "ms": 5, "mfc": "none"} if late.all() else {"marker": "o", "ms": 3}
        axis.plot([], [], label=named(by, value), **dot, **style if joined else style | {"ls": ""})
    ticks = values_of(runs, x)
    axis.set(xscale="log" if all(tick > 0 for tick in ticks) else "linear", yscale="log", xlabel=x)
    axis.set_ylabel("plateau length, steps")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if len(ticks) == 1 and ticks[0] > 0:
        axis.set_xlim(ticks[0] / 2, ticks[0] * 2)
    axis.xaxis.set_minor_locator(NullLocator())
    fit_lengths([axis])
    _legend(axis)


def fit_lengths(axes: Sequence[Axes]) -> None:
    """Gives logarithmic y axes the limits of all their data, and three or more ticks as plain numbers."""
    low, high = np.transpose([axis.dataLim.intervaly for axis in axes])
    low, high = low[np.isfinite(low)].min(initial=np.inf), high[np.isfinite(high)].max(initial=-np.inf)
    if not 0 < low <= high:  # no plateau length
        return
    margin = max(1.15, (high / low) ** 0.08)
    ticks = readable_ticks(low / margin, high * margin)
    for axis in axes:
        axis.set_ylim(low / margin, high * margin)
        axis.yaxis.set_major_locator(FixedLocator(ticks))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def readable_ticks(low: float, high: float) -> list[float]:
    """Returns three or more round numbers from `low` to `high`: powers of ten, or finer ones if few of them fit."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    choices = [[factor * 10.0**power for power in powers for factor in factors] for factors in FACTORS]
    choices.append(list(MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)))
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in choices]
    return next((ticks for ticks in inside if len(ticks) >= FEWEST_TICKS), inside[-1])


def draw_curves(axis: Axes, runs: Sequence[Run], by: str, series: str) -> None:
    """Draws `series` over the steps, one line for each run, in one style for each value of `by`."""
    for index, value in enumerate(values_of(runs, by)):
        for number, run in enumerate(run for run in runs if setting(run, by) == value):
            label = None if number else named(by, value)
            axis.plot(*run.timeline.scalar(series), label=label, **line_style(index) | {"lw": 1.2})
    axis.set(xlabel="step", ylabel=series.rpartition("/")[2].replace("_", " "))
    _legend(axis)


def _legend(axis: Axes) -> None:
    """Draws the legend, or a note if the panel has no runs."""
    if axis.lines:
        axis.legend()
    else:
        axis.text(0.5, 0.5, "no such runs", ha="center", va="center", transform=axis.transAxes, color="0.5")


def fig3(runs: Sequence[Run]) -> Figure:
    """Draws the plateau length over d, for several T, B and p."""
    figure, axes = panels(1, 3, "Fig. 3: plateau length of transformers in T, d, B and p")
    plain = [run for run in runs if setting(run, "p") == 0]
    draw_lengths(axes[0, 0], [run for run in plain if setting(run, "B") == 1], "d", "T", LEARNED)
    at = {setting(run, "T") for run in plain if setting(run, "B") > 1}
    draw_lengths(axes[0, 1], [run for run in plain if setting(run, "T") in at], "d", "B", LEARNED)
    at = {setting(run, "T") for run in runs if setting(run, "p") > 0}
    single = [run for run in runs if setting(run, "B") == 1 and setting(run, "T") in at]
    draw_lengths(axes[0, 2], single, "d", "p", LEAVING)
    return figure


def fig4(runs: Sequence[Run], threshold: float = ANSWERING) -> Figure:
    """Draws loss and accuracy for several numbers of pairs, and the plateau length over the number of tokens."""
    figure, axes = panels(1, 3, "Fig. 4: recall emerges, later with more pairs and more tokens")
    same = commonest(runs, "tokens")
    draw_curves(axes[0, 0], same, "pairs", "loss")
    draw_curves(axes[0, 1], same, "pairs", "accuracy")
    draw_lengths(axes[0, 2], runs, "tokens", "pairs", threshold)
    return figure


def fig5(runs: Sequence[Run]) -> Figure:
    """Draws the test accuracy over the steps, for several B and p."""
    return _repetition(runs, "Fig. 5: repetition accelerates recall; too much of it overfits", "accuracy")


def fig16(runs: Sequence[Run]) -> Figure:
    """Draws the accuracy on the training distribution over the steps, for several B and p."""
    return _repetition(
        runs, "Fig. 16: repetition accelerates recall on the training distribution", "key_value/train_accuracy"
    )


def _repetition(runs: Sequence[Run], title: str, series: str) -> Figure:
    figure, axes = panels(1, 2, title)
    in_context = [run for run in runs if setting(run, "p") == 0]
    cross_sample = [run for run in runs if setting(run, "p") > 0]
    bases = {setting(run, "B") for run in cross_sample}
    cross_sample += [run for run in in_context if setting(run, "B") in bases]
    draw_curves(axes[0, 0], in_context, "B", series)
    draw_curves(axes[0, 1], cross_sample, "p", series)
    return figure


def fig11(runs: Sequence[Run]) -> Figure:
    """Draws the test loss of regressions, and the largest attention of a head to the relevant token."""
    figure, axes = panels(1, 2, "Fig. 11: sharp transitions of transformers")
    for index, run in enumerate(runs):
        label = f"T = {setting(run, 'T')}, d = {setting(run, 'd')}"
        axes[0, 0].plot(*run.timeline.scalar("loss"), label=label, **line_style(index))
        if "relevant_attention/mass" in run.timeline:
            steps, mass = run.timeline.steps, run.timeline.series("relevant_attention/mass")  # [step, layer, head]
            axes[0, 1].plot(steps, mass.max((1, 2)), label=label, **line_style(index))
    axes[0, 0].axhline(LEARNED, zorder=0, label=f"loss {LEARNED:g}: the plateau ends (D.1)", **THEORY)
    axes[0, 0].set(xlabel="step", ylabel="test loss", ylim=(0, 0.65))
    axes[0, 0].legend()
    axes[0, 1].set(xlabel="step", ylabel="attention to the relevant token", ylim=(0, 1.02))
    return figure


def fig12(runs: Sequence[Run]) -> Figure:
    """Draws the loss as trained (top) and without repetition (bottom), one column for each d, for several p."""
    dimensions = values_of(runs, "d")
    figure, axes = panels(2, len(dimensions), "Fig. 12: learning with cross-sample repetition")
    for column, d in enumerate(dimensions):
        here = [run for run in runs if setting(run, "d") == d]
        for row, (series, name) in enumerate((("train_loss", "loss with repetition"), ("loss", "loss without"))):
            draw_curves(axes[row, column], here, "p", series)
            axes[row, column].set(ylabel=name, title=f"T = {setting(here[0], 'T')}, d = {d}")
    return figure


def fig13(runs: Sequence[Run]) -> Figure:
    """Draws the plateau length over d, for several numbers of layers and of heads."""
    figure, axes = panels(1, 2, "Fig. 13: layers and heads")
    draw_lengths(axes[0, 0], commonest(runs, "heads"), "d", "layers", LEARNED)
    draw_lengths(axes[0, 1], commonest(runs, "layers"), "d", "heads", LEARNED)
    return figure


def _split(runs: Sequence[Run], title: str, parts: Sequence[tuple[str, Callable[[Run], bool]]]) -> Figure:
    """Draws the plateau length over d and T, one panel for each (name, condition on a run), on the same y axis."""
    figure, axes = panels(1, len(parts), title)
    for axis, (name, belongs) in zip(axes[0], parts, strict=True):
        draw_lengths(axis, [run for run in runs if belongs(run)], "d", "T", LEARNED)
        axis.set_title(name)
    fit_lengths(axes[0])
    return figure


def fig14(runs: Sequence[Run]) -> Figure:
    """Draws the plateau length over d and T, if the token is found by feature, by either, or by position."""
    return _split(
        runs,
        "Fig. 14: position and feature",
        (
            ("feature, random position", lambda run: setting(run, "position") == "random"),
            ("feature, fixed position", lambda run: setting(run, "position") == "fixed" and setting(run, "feature")),
            ("no feature, fixed position", lambda run: not setting(run, "feature")),
        ),
    )


def fig15(runs: Sequence[Run]) -> Figure:
    """Draws the plateau length over d and T, for SGD and for Adam."""
    kinds = {"sgd": "SGD", "adam": "Adam"}
    parts = [(name, lambda run, k=kind: setting(run, "optimizer") == k) for kind, name in kinds.items()]
    return _split(runs, "Fig. 15: SGD and Adam", parts)


def fig17(run: Run) -> Figure:
    """Draws accuracy, copying and selecting attention of one run of recall: one line per head, one style per layer."""
    figure, axes = panels(1, 3, f"Fig. 17: the induction head emerges; {title_of(run)}")
    timeline = run.timeline
    axes[0, 0].plot(*timeline.scalar("accuracy"), label="no repetition", **line_style(0))
    if "key_value/copying" not in timeline:
        return figure
    axes[0, 0].plot(*timeline.scalar("key_value/train_accuracy"), label="as trained", **line_style(1))
    axes[0, 0].set(xlabel="step", ylabel="accuracy", ylim=(0, 1.02))
    axes[0, 0].legend()
    for axis, name, what in (
        (axes[0, 1], "copying", "copying: value to its key"),
        (axes[0, 2], "selecting", "selecting: query to its answer"),
    ):
        series = timeline.series(f"key_value/{name}")  # [step, layer, head]
        for layer in range(series.shape[1]):
            lines = axis.plot(timeline.steps, series[:, layer], **line_style(layer) | {"lw": 1.0})
            lines[0].set_label(f"layer {layer}")
        axis.set(xlabel="step", ylabel="attention", ylim=(0, 1.02), title=what)
        axis.legend()
    return figure


def runs_of(*groups: Iterable[Seeds]) -> list[Run]:
    """Returns the runs of all seeds of all grid points of all groups."""
    return [run for group in groups for runs in group for run in runs.values()]


def seeded(lab: Lab) -> Lab:
    """Returns the lab with the seeds of S8 and S9, so that figures and claims share their runs."""
    return lab.with_seeds(regression.SEEDS)


def lab_fig3(lab: Lab) -> Figure:
    """Draws Fig. 3 from the runs of S8."""
    lab = seeded(lab)
    return fig3(runs_of(regression.law_runs(lab).values(), *regression.cross_sample_runs(lab)))


def lab_fig4(lab: Lab) -> Figure:
    """Draws Fig. 4 from the runs of S10."""
    return fig4(runs_of(recall.context_runs(lab).values()), recall.grid_of(lab).answering)


def repetition_runs(lab: Lab) -> list[Run]:
    """Returns the runs of S11 but those with B = 1."""
    once = recall.baselines(lab)["exactly once"]
    return runs_of([once], recall.in_context_runs(lab).values(), recall.cross_sample_runs(lab).values())


def lab_fig5(lab: Lab) -> Figure:
    """Draws Fig. 5 from the runs of S11."""
    return fig5(repetition_runs(lab))


def lab_fig16(lab: Lab) -> Figure:
    """Draws Fig. 16 from the runs of S11."""
    return fig16(repetition_runs(lab))


def lab_fig11(lab: Lab) -> Figure:
    """Draws Fig. 11 from the first seed of S8's runs over T."""
    points = regression.grid_of(lab).vary_T
    runs = regression.law_runs(seeded(lab))
    return fig11([next(iter(runs[data].values())) for data in points])


def lab_fig12(lab: Lab) -> Figure:
    """Draws Fig. 12 from S8's runs with and without cross-sample repetition."""
    return fig12(runs_of(*regression.cross_sample_runs(seeded(lab))))


def lab_fig13(lab: Lab) -> Figure:
    """Draws Fig. 13 from the runs of S9 over layers and heads."""
    return fig13(runs_of(regression.size_runs(seeded(lab)).values()))


def lab_fig14(lab: Lab) -> Figure:
    """Draws Fig. 14 from the runs of S9 with random and with fixed positions."""
    lab = seeded(lab)
    plain = regression.regression(lab, regression.grid_of(lab).ablated)
    return fig14(runs_of([plain], regression.fixed_runs(lab).values()))


def lab_fig15(lab: Lab) -> Figure:
    """Draws Fig. 15 from S9's runs of Adam and of SGD."""
    return fig15(runs_of(*regression.optimizer_runs(seeded(lab)).values()))


def lab_fig17(lab: Lab) -> Figure:
    """Draws Fig. 17 from the run of S10 with most pairs, of its first seed."""
    grid = recall.grid_of(lab)
    return fig17(next(iter(recall.recall(lab, grid.vary_pairs[-1]).values())))
