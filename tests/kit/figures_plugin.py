"""A plugin with figures of both kinds, and with mistakes. Tests load it as users load theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stagelens import FigureRef, Flow, FlowConfig, Reading, hookimpl


class Halving(Flow):
    """dx/dt = -x."""

    id = "halves/decay"
    title = "an exponential decay"
    Config = FlowConfig
    presets: Mapping[str, Mapping[str, Any]] = {"quick": {"time": 2.0}, "paper": {"time": 9.0}, "fig2": {"time": 4.0}}

    def initial(self):
        return {"x": np.ones(1)}

    def derivative(self, time, state):
        return {"x": -state["x"]}

    def observables(self, time, state):
        yield Reading("loss", float(state["x"][0]))

    def figures(self, run):
        return {"fig2": drawn(run)}


def drawn(run):
    figure = Figure()
    axis = figure.subplots()
    axis.plot(*run.timeline.scalar("loss"))
    figure.suptitle(f"until {run.timeline.steps[-1]:g}")
    return figure


def fig1(lab):
    return drawn(lab.run("halves/decay"))


@hookimpl
def stagelens_register_tasks():
    return [Halving]


@hookimpl
def stagelens_register_figures():
    return [
        FigureRef("fig1", "the decay, at the budget's time", fig1),
        FigureRef("fig2", "the decay, as its preset draws it", task="halves/decay", preset="fig2"),
        FigureRef("fig3", "the same, with a setting", task="halves/decay", settings={"points": 30}),
        FigureRef("nothing", "a figure that has nothing to show", lambda lab: None),
        FigureRef("nowhere", "a figure that is not where it should be", "kit.figures_plugin:nowhere"),
    ]
