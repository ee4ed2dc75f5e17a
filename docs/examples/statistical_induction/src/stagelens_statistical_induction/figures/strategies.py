"""Fig. 2: the distance of the model from each strategy."""

from __future__ import annotations

from matplotlib.figure import Figure
from stagelens import Run
from stagelens.claims import Lab
from stagelens.figures import draw_levels, levels_of, line_style, panels


def strategies(run: Run) -> Figure:
    """Returns the loss with the loss of each strategy, next to the KL divergence from each strategy."""
    figure, ((left, right),) = panels(1, 2, "Fig. 2: unigram statistics first, bigram statistics later")
    left.plot(*run.timeline.scalar("loss"), label="loss", **line_style(0))
    draw_levels(left, levels_of(run))
    left.set(xlabel="training step", ylabel="loss (nats)")
    distance = run.timeline["kl_to_references/kl"]  # [step, reference]
    for index, name in enumerate(distance.reference.values):
        values = distance.sel(reference=name)
        right.plot(distance.step, values, label=str(name), **line_style(index))
    right.set(xlabel="training step", ylabel="KL divergence (nats)")
    right.legend()
    return figure


def fig1(lab: Lab) -> Figure:
    """Returns `strategies` of a run of the budget's preset."""
    return strategies(lab.run("statistical-induction/chains"))
