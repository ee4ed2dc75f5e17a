"""The paper's figures by name: `python -m stagelens_markov.figures fig4 -o fig4.png`.

What a figure needs is trained or, where `stagelens verify` or another figure has trained it, taken from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from stagelens.base import UsageError, unknown
from stagelens.figures import (
    LEVEL,
    TIME,
    grid,
    headline,
    legend_beside,
    legend_row,
    line_style,
    make_room,
    name_beside,
    predictions_of,
    save,
    styled,
    theory_label,
    title_of,
)
from stagelens_markov.command import Parser, answer, lab_of
from stagelens_markov.panels import KL, AttentionRow, draw_divergence, draw_excess, references_of
from stagelens_markov.spare_figures import spare_heads

if TYPE_CHECKING:
    from stagelens import Run
    from stagelens.claims import Lab

SCALES = (1.0, 0.1, 0.01, 0.0)  # u of Fig. 4
RATIOS = (1.0, 1.3, 1.5, 1.7)  # m of Fig. 4
PAIR: Any = {"panel": (3.0, 2.2), "gap": (0.75, 0.0)}  # two panels side by side
BELOW = 0.38  # inches below a row of maps, for its legend


def attention_figure(run: Run, title: str) -> Figure:
    row = AttentionRow(run)
    width, height = row.size
    figure = Figure(figsize=(width + 0.5, height + 0.65 + BELOW))
    figure.set_layout_engine("none")
    row.draw(figure, 0.35, BELOW)
    headline(figure, f"{title}; {title_of(run)}")
    return figure


def curves_figure(run: Run, title: str) -> Figure:
    """Excess validation loss and KL from the references."""
    figure, axes = grid((1, 2), margin=(0.65, 0.15, 0.45, 0.5), **PAIR)
    _draw_curves(figure, axes[0], run)
    headline(figure, f"{title}; {title_of(run)}")
    return figure


def _draw_curves(figure: Figure, axes: Any, run: Run) -> None:
    draw_excess(axes[0], {"": run})
    draw_divergence(axes[1], run)
    make_room(figure, legend_beside(axes[1], title=references_of(run), alignment="left", title_fontsize=8))


def stages_figure(run: Run) -> Figure | None:
    """Fig. 1 of any trained run: KL from the references, and attention at the stages' ends."""
    if KL not in run.timeline or not run.checkpoints or len(run.timeline.steps) < 3:
        return None
    row = AttentionRow(run)
    foot = row.size[1] + BELOW
    figure, axes = grid((1, 2), margin=(0.65, 0.15, 0.45, 0.9 + foot), **PAIR)
    _draw_curves(figure, axes[0], run)
    row.draw(figure, 0.65, BELOW)
    headline(figure, f"Fig. 1: heads compete for I(1), then cooperate; {title_of(run)}")
    return figure


def flow_figure(run: Run) -> Figure:
    """Fig. 10: attention and values of each head, and the loss by (feature, position)."""
    timeline = run.timeline
    times, attention, value = timeline.steps[1:], timeline.series("attention")[1:], timeline.series("value")[1:]
    heads, h = value.shape[1:]
    foot = 2.4  # inches, for the loss
    panel, margin = (max(2.2, 7.3 / heads - 0.35), 1.45), (0.7, 0.75, 0.85, 0.5 + foot)
    figure, axes = grid((2, heads), panel, (0.35, 0.2), margin, sharex=True, sharey="row")
    for head in range(heads):
        for j in range(h):
            axes[0, head].plot(
                times, attention[:, head, j], label=f"position {j + 1}, feature {j + 1}", **line_style(j)
            )
            axes[1, head].plot(times, value[:, head, j], **line_style(j))
        axes[0, head].set_title(f"head {head + 1}")
        axes[1, head].set(xlabel="time t of Eq. 5")
    axes[0, 0].set(xscale="log", ylabel="attention s_k", xlim=(times[0], times[-1]))
    axes[1, 0].set_ylabel("value V_k")
    legend_row(figure, axes[0, 0])
    first, last = axes[1, 0].get_position(), axes[1, -1].get_position()
    height = figure.get_figheight()
    loss = figure.add_axes((first.x0, 0.5 / height, last.x1 - first.x0, (foot - 0.65) / height))
    _draw_parts(loss, run)
    figure.align_ylabels([*axes[:, 0], loss])
    headline(figure, f"Fig. 10: in the gradient flow heads compete for position 1, then part; {title_of(run)}")
    return figure


def _draw_parts(axis: Any, run: Run) -> None:
    """The loss, what each (feature, position) adds to it, and the levels of theory."""
    timeline = run.timeline
    times, parts = timeline.steps[1:], timeline.series("loss_parts")[1:]  # [time], [time, feature, position]
    own = np.einsum("tjj->tj", parts[:, :, : parts.shape[1]])  # [time, feature], at its own position
    axis.plot(times, timeline.series("loss")[1:], color="0.7", lw=3.5, label="loss")
    for j, part in enumerate(own.T):
        axis.plot(times, part, label=f"its part of (feature {j + 1}, position {j + 1})", **line_style(j))
    axis.plot(times, parts.sum((1, 2)) - own.sum(1), label="all other parts", color="black", ls=":")
    levels = [prediction for prediction in predictions_of(run) if prediction.kind == "level"]
    for level in levels:
        label = theory_label(levels).replace("\n", " ") if level is levels[0] else None
        axis.axhline(level.expected, label=label, zorder=0.5, **LEVEL)
    axis.set(xscale="log", xlabel="time t of Eq. 5", ylabel="loss", xlim=(times[0], times[-1]))
    name_beside(axis, [(float(level.expected), level.name) for level in levels if not callable(level.expected)])
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.98))


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
    figure, ((left, right),) = grid((1, 2), (3.0, 2.2), (2.2, 0.0), margin=(0.65, 0.15, 0.45, 0.5))
    room = 0.0
    for axis, run in ((left, full(lab)), (right, full(lab, compare="contexts"))):
        draw_divergence(axis, run)
        room = legend_beside(axis, title=references_of(run), alignment="left", title_fontsize=8)
    make_room(figure, room)
    headline(figure, "Fig. 3: the model comes near those that know I(1), then I(1) and I(2), then all; markov/full")
    return figure


def fig4(lab: Lab) -> Figure:
    from stagelens_markov.claims import ImportanceRatio

    longer = ImportanceRatio.longer[lab.budget]
    figure, ((left, right),) = grid((1, 2), (3.3, 2.3), (0.3, 0.0), margin=(0.65, 0.15, 0.7, 0.5), sharey=True)
    draw_excess(left, {f"u = {u:g}": minimal(lab, init_scale=u) for u in SCALES})
    draw_excess(right, {f"m = {m:g}": minimal(lab, m=m, **longer.get(m, {})) for m in RATIOS})
    left.autoscale(axis="y")  # over both panels; the first has set the limit for itself
    left.set_ylim(bottom=0)
    right.set_ylabel("")
    for axis, title in ((left, "initialization scale u"), (right, "ratio of importance m")):
        axis.legend()
        axis.set_title(title)
    headline(figure, "Fig. 4: heads that start alike (u = 0) learn one pattern; a larger m parts the stages")
    return figure


def fig5(lab: Lab) -> Figure:
    from stagelens_markov.claims import DatasetSize

    runs = {n: minimal(lab, train_size=n, **changes) for n, changes in DatasetSize.sizes[lab.budget].items()}
    figure, ((best, *curves),) = grid((1, 1 + len(runs)), (2.0, 2.1), (0.65, 0.0), margin=(0.65, 0.15, 0.95, 0.5))
    losses = [float(run.timeline.scalar("excess")[1].min()) for run in runs.values()]
    best.plot(list(runs), losses, marker="o", **line_style(0))
    best.set(xscale="log", xlabel="training sequences", ylabel="best excess loss (nats)", ylim=(0, None))
    best.set_xticks(list(runs), [str(n) for n in runs])
    best.minorticks_off()
    for axis, (n, run) in zip(curves, runs.items(), strict=True):
        draw_divergence(axis, run)
        steps, loss = run.timeline.scalar("loss")
        axis.axvline(steps[int(np.argmin(loss))], label="best validation loss", **TIME)
        axis.set_title(f"{n} sequences")
    top = max(axis.get_ylim()[1] for axis in curves)
    for axis in curves:
        axis.set_ylim(0, top)
    legend_row(figure, curves[0])
    headline(figure, "Fig. 5: the fewer sequences, the fewer of Eq. 3's predictors are reached; dots: nearest")
    return figure


FIGURES: Mapping[str, Callable[[Any], Figure | None]] = {
    "fig1": fig1,
    "fig2": lambda lab: attention_figure(full(lab), "Fig. 2: attention of the full model"),
    "fig3": fig3,
    "fig4": fig4,
    "fig5": fig5,
    "fig6": lambda lab: attention_figure(minimal(lab, train_size=0), "Fig. 6: attention, fresh data at every step"),
    "fig7": lambda lab: curves_figure(minimal(lab, train_size=0), "Fig. 7: the same stages with fresh data"),
    "fig8": lambda lab: attention_figure(reversed_order(lab), "Fig. 8: attention where the furthest lag matters most"),
    "fig9": lambda lab: curves_figure(reversed_order(lab), "Fig. 9: reversed order, unequal intervals"),
    "fig10": lambda lab: flow_figure(lab.run("markov/flow")),
    "spare-heads": spare_heads,
}


def draw(words: list[str]) -> None:
    """Writes the figure that `words` name."""
    parser = Parser("python -m stagelens_markov.figures", __doc__)
    parser.add_argument("name", help=f"the paper's figure: {', '.join(FIGURES)}")
    parser.add_argument("-o", "--output", type=Path, help="a png or svg file; default: NAME.png")
    given = parser.parse_args(words)
    if given.name not in FIGURES:
        raise unknown("figure", given.name, FIGURES)
    output = given.output or Path(f"{given.name}.png")
    if output.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"cannot write {str(output)!r}: expected a name that ends in .png or .svg")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"cannot write {str(output)!r}: there is no folder {str(output.parent)!r}; make it first")
    with styled():
        figure = FIGURES[given.name](lab_of(given))
    if figure is None:
        raise UsageError(f"{given.name} has nothing to show")
    save(figure, output)


def main() -> None:
    answer(draw)


if __name__ == "__main__":
    main()
