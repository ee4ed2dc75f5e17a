"""The paper's figures by name: `python -m stagelens_markov.figures fig4 -o fig4.png`.

What a figure needs is trained or, where `stagelens verify` or another figure has trained it, taken from the cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stagelens.figures.attention import attention_maps, chosen_steps, composite
from stagelens.figures.drawing import title_of
from stagelens.figures.style import line_style, save, styled
from stagelens_markov.spare_figures import spare_heads

if TYPE_CHECKING:
    from stagelens.lab import Lab
    from stagelens.runs import Run

KL = "kl_to_references/kl"
MOMENTS = 5  # at which attention is shown
SCALES = (1.0, 0.1, 0.01, 0.0)  # u of Fig. 4
RATIOS = (1.0, 1.3, 1.5, 1.7)  # m of Fig. 4


def draw_excess(axis: Axes, runs: Mapping[str, Run]) -> None:
    for index, (label, run) in enumerate(runs.items()):
        steps, excess = run.timeline.scalar("excess")
        axis.plot(steps[1:], excess[1:], label=label, **line_style(index))
    axis.set(xscale="log", xlabel="training step", ylabel="excess loss (nats)", ylim=(0, None))
    if len(runs) > 1:
        axis.legend()


def draw_divergence(axis: Axes, run: Run) -> None:
    """KL from each reference to the model, with a mark at its least."""
    names, steps = run.timeline.column(KL).coordinate("reference"), run.timeline.steps
    for index, (name, values) in enumerate(zip(names, run.timeline.series(KL).T, strict=True)):
        look = line_style(index)
        axis.plot(steps[1:], values[1:], label=name, **look)
        least = max(int(values.argmin()), 1)
        axis.plot(steps[least], values[least], marker="o", ms=4, color=look["color"])
    axis.set(xscale="log", xlabel="training step", ylabel="KL to the model (nats)", ylim=(0, None))
    axis.legend()


def draw_attention(axes: Any, run: Run) -> None:
    """Mean attention at a few moments, of the queries that predict, heads added up in their colours."""
    task: Any = run.experiment
    steps, predicting = list(chosen_steps(run, MOMENTS)), task.queries()
    for axis, step in zip(axes, steps, strict=False):
        maps = attention_maps(run, step)[0][:, predicting]  # [head, query, key]
        axis.imshow(composite(maps), interpolation="nearest")
        axis.set_title(f"step {step}", fontsize=8)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.set_visible(bool(axis.images))


def attention_figure(run: Run, title: str) -> Figure:
    figure = Figure(figsize=(8.0, 2.1))
    draw_attention(figure.subplots(1, MOMENTS), run)
    figure.suptitle(f"{title}: attention (query down, key across), heads in colours", x=0.01, ha="left")
    return figure


def curves_figure(run: Run, title: str) -> Figure:
    """Excess validation loss and KL from the references."""
    figure = Figure(figsize=(8.0, 2.9))
    left, right = figure.subplots(1, 2)
    draw_excess(left, {"": run})
    draw_divergence(right, run)
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def stages_figure(run: Run) -> Figure | None:
    """Fig. 1 of any trained run: KL from the references, and attention at the stages' ends."""
    if KL not in run.timeline or not run.checkpoints or len(run.timeline.steps) < 3:
        return None
    figure = Figure(figsize=(8.0, 4.6))
    rows: Any = figure.subfigures(2, 1, height_ratios=(1.5, 1))
    top, bottom = rows
    left, right = top.subplots(1, 2)
    draw_excess(left, {"": run})
    draw_divergence(right, run)
    draw_attention(bottom.subplots(1, MOMENTS), run)
    figure.suptitle(f"{title_of(run)}: stages (Fig. 1)", x=0.01, ha="left")
    return figure


def flow_figure(run: Run) -> Figure:
    """Fig. 10: attention and values of each head, and the loss by (feature, position)."""
    timeline = run.timeline
    times, attention, value = timeline.steps[1:], timeline.series("attention")[1:], timeline.series("value")[1:]
    parts, h = timeline.series("loss_parts")[1:], value.shape[2]
    heads = value.shape[1]
    figure = Figure(figsize=(max(8.0, 2.2 * heads), 6.4))
    rows: Any = figure.subfigures(2, 1, height_ratios=(1.9, 1))
    above, below = rows
    axes = above.subplots(2, heads, sharex=True, sharey="row", squeeze=False)
    for head in range(heads):
        for j in range(h):
            axes[0, head].plot(times, attention[:, head, j], label=f"position {j + 1}", **line_style(j))
            axes[1, head].plot(times, value[:, head, j], label=f"feature {j + 1}", **line_style(j))
        axes[0, head].set_title(f"head {head + 1}")
    axes[0, 0].set(xscale="log", ylabel="attention s_k")
    axes[1, 0].set(ylabel="value V_k")
    axes[0, 0].legend(loc="center right")
    axes[1, 0].legend(loc="upper left")
    loss = below.subplots(1, 1)
    loss.plot(times, timeline.series("loss")[1:], color="0.6", lw=3, label="loss")
    for j in range(h):
        loss.plot(times, parts[:, j, j], label=f"(feature {j + 1}, position {j + 1})", **line_style(j))
    loss.plot(times, parts.sum((1, 2)) - parts[:, range(h), range(h)].sum(1), label="all others", color="black", ls=":")
    loss.set(xscale="log", xlabel="time", ylabel="loss")
    loss.legend(ncols=2)
    figure.suptitle(f"{title_of(run)}: the gradient flow (Fig. 10)", x=0.01, ha="left")
    return figure


def minimal(lab: Lab, **changes: Any) -> Run:
    """The run of seed 0 that the claims use too."""
    from stagelens_markov.claims import PROBES, SIZES, TASK

    return lab.run(TASK, {**SIZES[lab.budget], **changes}, 0, probes=PROBES)


def full(lab: Lab, **changes: Any) -> Run:
    from stagelens_markov.claims import PROBES

    return lab.run("markov/full", changes, 0, probes=PROBES)


def reversed_order(lab: Lab) -> Run:
    from stagelens_markov.claims import ReversedOrder

    return minimal(lab, **ReversedOrder.changes[lab.budget])


def fig1(lab: Lab) -> Figure | None:
    return stages_figure(minimal(lab))


def fig3(lab: Lab) -> Figure:
    figure = Figure(figsize=(8.0, 2.9))
    left, right = figure.subplots(1, 2)
    draw_divergence(left, full(lab))
    draw_divergence(right, full(lab, compare="contexts"))
    figure.suptitle("Fig. 3: KL from Eq. 3's predictors, and from models of restricted context", x=0.01, ha="left")
    return figure


def fig4(lab: Lab) -> Figure:
    from stagelens_markov.claims import ImportanceRatio

    longer = ImportanceRatio.longer[lab.budget]
    figure = Figure(figsize=(8.0, 3.0))
    left, right = figure.subplots(1, 2, sharey=True)
    draw_excess(left, {f"u = {u:g}": minimal(lab, init_scale=u) for u in SCALES})
    draw_excess(right, {f"m = {m:g}": minimal(lab, m=m, **longer.get(m, {})) for m in RATIOS})
    left.autoscale(axis="y")  # over both panels; the first has set the limit for itself
    left.set_ylim(bottom=0)
    figure.suptitle("Fig. 4: initialization scale u, and ratio of importance m", x=0.01, ha="left")
    return figure


def fig5(lab: Lab) -> Figure:
    from stagelens_markov.claims import DatasetSize

    runs = {n: minimal(lab, train_size=n, **changes) for n, changes in DatasetSize.sizes[lab.budget].items()}
    figure = Figure(figsize=(10.0, 2.9))
    best, *curves = figure.subplots(1, 1 + len(runs))
    losses = [float(run.timeline.scalar("excess")[1].min()) for run in runs.values()]
    best.plot(list(runs), losses, marker="o", **line_style(0))
    best.set(xscale="log", xlabel="training sequences", ylabel="best excess loss (nats)", ylim=(0, None))
    best.set_xticks(list(runs), [str(n) for n in runs])
    best.minorticks_off()
    for axis, (n, run) in zip(curves, runs.items(), strict=True):
        draw_divergence(axis, run)
        steps, loss = run.timeline.scalar("loss")
        axis.axvline(steps[int(np.argmin(loss))], color="0.4", ls="--", lw=1)
        axis.set_title(f"{n} sequences")
    figure.suptitle("Fig. 5: dataset size; dashed: best validation loss", x=0.01, ha="left")
    return figure


FIGURES: Mapping[str, Callable[[Any], Figure | None]] = {
    "fig1": fig1,
    "fig2": lambda lab: attention_figure(full(lab), "Fig. 2, markov/full"),
    "fig3": fig3,
    "fig4": fig4,
    "fig5": fig5,
    "fig6": lambda lab: attention_figure(minimal(lab, train_size=0), "Fig. 6, fresh data"),
    "fig7": lambda lab: curves_figure(minimal(lab, train_size=0), "Fig. 7: fresh data at every step"),
    "fig8": lambda lab: attention_figure(reversed_order(lab), "Fig. 8, reversed order"),
    "fig9": lambda lab: curves_figure(reversed_order(lab), "Fig. 9: reversed order, unequal intervals"),
    "fig10": lambda lab: flow_figure(lab.run("markov/flow")),
    "spare-heads": spare_heads,
}


def main() -> None:
    from stagelens.host import make_host
    from stagelens.lab import Lab, cache_folder

    parser = argparse.ArgumentParser(prog="python -m stagelens_markov.figures", description=__doc__)
    parser.add_argument("name", choices=list(FIGURES), help="the paper's figure")
    parser.add_argument("-o", "--output", type=Path, help="a png or svg file; default: NAME.png")
    parser.add_argument("--budget", choices=("quick", "paper"), default="quick")
    parser.add_argument("--cache", help="folder of kept runs")
    given = parser.parse_args()
    lab = Lab(make_host(), cache_folder(given.cache), given.budget)
    with styled():
        figure = FIGURES[given.name](lab)
    if figure is None:
        parser.error(f"{given.name} has nothing to show")
    save(figure, given.output or Path(f"{given.name}.png"))


if __name__ == "__main__":
    main()
