"""Charts: the data of the interactive figures in an HTML report. `templates/chart.js` draws them.

A chart is a plain dict:

    alignments  [{name, label, problem}]   the axes to choose from; `problem` says why one is impossible
    axes        {key: {alignment: [x]}}    positions of the points, shared by all traces with that key
    series      [{name, title, labels, traces, levels}]
    log         True if steps are drawn on a log axis
    marks       {alignment: [{start, end, at, name}]}   transitions, drawn behind everything
    times       {alignment: [{at, name, series}]}       predicted times; after the end of the run only on unbounded axes
    events      {alignment: [{at, what, series}]}       the probes' events
    transitions {alignment: [{at: [x], colour, dash}]}  of each group of a comparison, as thin vertical lines

A trace is `{name, axis, y, colour, dash, step, low, high, faint, theory}`; `y`, `low`, `high` are lists, or dicts of
lists by alignment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelens.base import UsageError
from stagelens.comparing import ALIGNMENTS, UNBOUNDED, Member
from stagelens.figures import COLOURS, DASHES, theory_curve
from stagelens.timelines import chance_levels, is_companion, lines_of, probe_events

if TYPE_CHECKING:
    from stagelens.comparing import AlignedRuns, Curve, RunGroup
    from stagelens.experiments import Prediction
    from stagelens.runs import Run

PLOTLY_DASHES = dict(zip(DASHES, ("solid", "dash", "dashdot", "dot"), strict=True))
MOST_TRACES = 64  # a series of more is averaged over layers, heads and positions
Chart = dict[str, Any]


def run_chart(run: Run, predictions: Sequence[Prediction] = ()) -> Chart | None:
    """Returns every series of `run` with stages, events and predictions; None if nothing was measured yet."""
    if not len(run.timeline.steps):
        return None
    member = Member.of(run, None, 1)
    label = "time" if member.is_flow else ALIGNMENTS["step"]
    axes, alignments = _axes([member], {"step": label})
    series = [_run_series(run, name, predictions) for name in _ordered(run)]
    marks = [(float(s.start), float(s.end), float(s.at), s.name) for s in member.found if s.kind == "transition"]
    times = [p for p in predictions if p.kind == "time" and not callable(p.expected)]
    events = probe_events(run.timeline)
    chart: Chart = {"alignments": alignments, "axes": {"run": axes[0]}, "series": series}
    chart["log"] = member.is_log
    for key in ("marks", "times", "events"):
        chart[key] = {}
    for one in (a["name"] for a in alignments if not a["problem"]):

        def at(steps: Sequence[Any], one: str = one) -> list[float | None]:
            return _rounded(member.place(np.array(steps, dtype=np.float64), one))

        columns = [at([mark[i] for mark in marks]) for i in range(3)]
        chart["marks"][one] = [
            {"start": s, "end": e, "at": a, "name": mark[3]} for s, e, a, mark in zip(*columns, marks, strict=True)
        ]
        drawn = [p for p in times if one in UNBOUNDED or member.steps[0] <= p.expected <= member.steps[-1]]
        chart["times"][one] = [
            {"at": a, "name": p.name, "series": p.series_in(run.timeline)}
            for a, p in zip(at([p.expected for p in drawn]), drawn, strict=True)
        ]
        chart["events"][one] = [
            {"at": a, "what": e["what"], "series": e["series"]}
            for a, e in zip(at([e["step"] for e in events]), events, strict=True)
        ]
    return chart


def comparison_chart(comparison: AlignedRuns) -> Chart:
    """Returns the curves of `comparison` on every axis that is possible for all of its runs."""
    members = [member for group in comparison.groups for member in group.members]
    _, alignments = _axes(members, {name: comparison.x_label_by(name) for name in ALIGNMENTS})
    possible = [a["name"] for a in alignments if not a["problem"]]
    curves = {name: comparison.curves_by(name) for name in possible}
    axes: dict[str, Any] = {}
    series = []
    for number, one in enumerate(comparison.series):
        traces = []
        for index, group in enumerate(comparison.groups):
            place = number * len(comparison.groups) + index
            drawn = {name: curves[name][place] for name in possible}
            axis = _axis(axes, {name: curve.x for name, curve in drawn.items()})
            look = _look(index) | {"name": group.name, "axis": axis, "step": bool(one.labels)}
            traces.append(look | _by_alignment(drawn))
            if len(group.members) > 1:
                traces += _seed_traces(drawn, axes, look, group.members)
        scale = ", 0..1 of each curve's range" if comparison.relative and not one.labels else ""
        series.append({"name": one.name, "title": one.label + scale, "labels": list(one.labels), "traces": traces})
    first = [a for a in alignments if a["name"] == comparison.align]
    ordered = first + [a for a in alignments if a not in first]
    transitions = {name: _transitions(comparison.groups, name) for name in possible}
    return {
        "alignments": ordered,
        "axes": axes,
        "series": series,
        "log": comparison.is_log,
        "transitions": transitions,
    }


def _transitions(groups: Sequence[RunGroup], align: str) -> list[dict[str, Any]]:
    """Returns the positions of the transitions of each group; aligned by stage all groups share the integers."""
    if align == "stage":
        last = max(len(member.transitions) for group in groups for member in group.members)
        return [{"at": list(range(1, last + 1)), "colour": "#999999", "dash": "solid"}]
    found = []
    for index, group in enumerate(groups):
        places = [member.place(np.array(member.transitions), align) for member in group.members]
        found.append(_look(index) | {"at": _rounded(np.concatenate(places))})
    return found


def _axes(members: Sequence[Member], labels: dict[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Returns the steps of each member on every axis, and the axes; `problem` is the reason if one is impossible."""
    axes: list[dict[str, Any]] = [{} for _ in members]
    alignments = []
    for name, label in ALIGNMENTS.items():
        problem = ""
        try:
            for member, axis in zip(members, axes, strict=True):
                axis[name] = _rounded(member.place(member.steps, name))
        except UsageError as error:
            problem = str(error)
        alignments.append({"name": name, "label": labels.get(name, label), "problem": problem})
    return axes, alignments


def _run_series(run: Run, name: str, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Returns one series of a run: a trace for each of its numbers, and what theory predicts."""
    lines = lines_of(run.timeline, name, MOST_TRACES)
    traces = [
        _look(index) | {"name": label or name, "axis": "run", "y": _rounded(values), "step": bool(lines.column.labels)}
        for index, (label, values) in enumerate(zip(lines.labels, lines.values.T, strict=True))
    ]
    traces += _chance_traces(run, name)
    about = [p for p in predictions if p.series_in(run.timeline) == name]
    traces += [_theory_trace(p, run) for p in about if callable(p.expected)]
    levels = [{"y": float(p.expected), "name": p.name} for p in about if p.kind == "level" and not callable(p.expected)]
    return {
        "name": name,
        "title": f"{name} ({lines.rule})" if lines.rule else name,
        "labels": list(lines.column.labels),
        "traces": traces,
        "levels": levels,
    }


def _chance_traces(run: Run, name: str) -> list[dict[str, Any]]:
    """Returns a thin line at each chance level of `name`; layers may differ in theirs."""
    look = {"colour": "#777777", "dash": "dot", "faint": True, "axis": "run", "step": False, "name": "chance"}
    return [look | {"y": _rounded(level)} for level in chance_levels(run.timeline, name).T]


def _theory_trace(prediction: Prediction, run: Run) -> dict[str, Any]:
    curve = theory_curve(prediction, run.timeline.steps)
    look = {"colour": "#000000", "dash": "dash", "theory": True}
    return look | {"name": f"theory: {prediction.name}", "axis": "run", "y": _rounded(curve), "step": False}


def _by_alignment(drawn: dict[str, Curve]) -> dict[str, Any]:
    """Returns the mean of each curve by alignment and, with more than one seed, its spread."""
    found: dict[str, Any] = {"y": _once({name: _rounded(curve.middle) for name, curve in drawn.items()})}
    if any(len(curve.seeds) > 1 and not curve.series.labels for curve in drawn.values()):
        found["low"] = _once({name: _rounded(curve.low) for name, curve in drawn.items()})
        found["high"] = _once({name: _rounded(curve.high) for name, curve in drawn.items()})
    return found


def _axis(axes: dict[str, Any], places: dict[str, Any]) -> str:
    """Returns the key of `places` (by alignment) in `axes`. Most curves of a comparison share one."""
    rounded = {name: _rounded(x) for name, x in places.items()}
    known = next((key for key, axis in axes.items() if axis == rounded), str(len(axes)))
    axes.setdefault(known, rounded)
    return known


def _once(values: dict[str, list[float | None]]) -> Any:
    """Returns `values` by alignment, or one list if they are the same on every axis."""
    first, *others = values.values()
    return first if all(other == first for other in others) else values


def _seed_traces(
    drawn: dict[str, Curve], axes: dict[str, Any], look: dict[str, Any], members: Sequence[Member]
) -> list[dict[str, Any]]:
    traces = []
    for number, member in enumerate(members):
        key = _axis(axes, {name: curve.seeds[number][0] for name, curve in drawn.items()})
        y = _once({name: _rounded(curve.seeds[number][1]) for name, curve in drawn.items()})
        traces.append(look | {"name": f"seed {member.seed}", "axis": key, "y": y, "faint": True})
    return traces


def _look(index: int) -> dict[str, Any]:
    return {"colour": COLOURS[index % len(COLOURS)], "dash": PLOTLY_DASHES[DASHES[index % len(DASHES)]]}


def _ordered(run: Run) -> list[str]:
    """Returns the series of the run, its metric first."""
    metric = run.manifest.metric
    names = [name for name in run.timeline if not is_companion(name, run.timeline)]
    return sorted(names, key=lambda name: name != metric)


def _rounded(values: Any) -> list[float | None]:
    """Returns `values` with six digits, which keeps the file small; None for nan and infinity."""
    numbers: list[float] = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in numbers]
