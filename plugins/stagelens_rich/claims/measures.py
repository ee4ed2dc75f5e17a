"""What the claims and the figures read off runs, and the grid of flows about Theorem 4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagelens import Law, Run, Timeline, fit_law
from stagelens.base import UsageError
from stagelens.timelines import LineFit, first_crossing, line_fit
from stagelens_rich import flow, theory
from stagelens_rich.tasks.toy import PARTS, second_layer
from stagelens_rich.theory import PhaseTimes, Setting

Floats = NDArray[np.float64]
Point = Mapping[str, float]  # settings of a flow

PAPER = Setting()  # Fig. 1: L = 40, alpha* = 1, w* = 0.49, sigma = 0.01
POINTS = 400  # recorded times of a flow in a grid; phase times are interpolated


# Trained runs of the toy tasks


def times_of(run: Run) -> PhaseTimes:
    """Returns Theorem 4's times of a run."""
    task: Any = run.experiment
    found: PhaseTimes = task.measured_times(run.timeline)
    return found


def drops(run: Run) -> list[str]:
    """Returns the names of the transitions of the run's metric; `none` if there is none."""
    return [stage.name or "unnamed" for stage in run.stages().transitions] or ["none"]


def stage_two(run: Run) -> tuple[Floats, Floats, Floats]:
    """Returns the flow's time, p and w_KQ of a toy run at each measurement of Stage II, [step] each."""
    task: Any = run.experiment
    inside, times = task.times(run.timeline)
    p, w_Q, w_K = (second_layer(run.timeline, name)[inside] for name in ("p", "W_Q", "W_K"))
    return times, p, np.sqrt(w_Q * w_K)


def half_ways(run: Run) -> list[float | None]:
    """Returns the times at which p and w_KQ are half-way to their values at T_III."""
    times, *parameters = stage_two(run)
    end = times_of(run).T_III
    if end is None:
        return [None, None]
    return [first_crossing(times, x, float(np.interp(end, times, x)) / 2, rising=True) for x in parameters]


def halved(run: Run) -> list[float | None]:
    """Returns the times at which L_G4 is half of its start, and L_IH2 half of what it was at T_o, on the plateau."""
    task: Any = run.experiment
    inside, times = task.times(run.timeline)
    four_gram, induction = (run.timeline.scalar(name)[1][inside] for name in PARTS)
    first = first_crossing(times, four_gram, float(four_gram[0]) / 2, rising=False)
    T_o = times_of(run).T_o
    if T_o is None:
        return [first, None]
    plateau = float(np.interp(T_o, times, induction))
    return [first, first_crossing(times, induction, plateau / 2, rising=False, after=T_o)]


def least_four_gram(run: Run) -> float:
    """Returns the least L_G4 of a toy run over its value at the start of Stage II."""
    task: Any = run.experiment
    inside, _ = task.times(run.timeline)
    four_gram = run.timeline.scalar(PARTS[0])[1][inside]
    return float(four_gram.min() / four_gram[0])


def growth(times: Floats, w: Floats, since: float | None, w_star: float) -> LineFit:
    """Returns the line through log w over time on the plateau: from `since` (None: never) until w is w*/2."""
    start = np.inf if since is None else since
    on = (times >= start) & (np.maximum.accumulate(w) <= w_star / 2)
    return line_fit(times[on], np.log(w[on]))


def first_layer_attention(run: Run) -> float:
    """Returns the first layer's attention to the previous token at the end of Stage I."""
    mass = run.timeline.series("head_specialization/mass")  # [step, layer, head, group]
    end = int(np.searchsorted(run.timeline.steps, run.experiment.config.first_steps))
    return float(mass[end, 0, 0, 0])


# The flows of Theorem 4


class Variable(NamedTuple):
    """A variable of Theorem 4's plateau time: how it follows from a config key, and its exponent."""

    label: str
    of: Callable[[Any], Any]
    exponent: int
    grid: tuple[float, ...]  # values of the config key


VARIABLES: Mapping[str, Variable] = {  # by config key
    "L": Variable("L", lambda L: L, 1, (20, 40, 80, 160, 320)),
    "sigma_init": Variable("log(1/sigma)", lambda sigma: -np.log(sigma), 1, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    "alpha_star": Variable("1+alpha*", lambda alpha: 1 + alpha, 2, (0.5, 1, 2, 4, 8)),
    "w_star": Variable("w*", lambda w: w, -2, (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.49)),
}
BASE = {"L": 40, "sigma_init": 0.01, "alpha_star": 1.0, "w_star": 0.49}


def grid(base: Point, **grids: Iterable[float]) -> list[Point]:
    """Returns copies of `base` with one key at a time changed."""
    return [{**base, key: value} for key, values in grids.items() for value in values]


def theorem_columns(points: Iterable[Point]) -> dict[str, list[float]]:
    """Returns the values of Theorem 4's four variables at each point."""
    points = list(points)
    return {v.label: [float(v.of(point[key])) for point in points] for key, v in VARIABLES.items()}


def law_of(points: list[Point], name: str) -> Law | str:
    """Returns the power-law fit of a phase time over flows, or why there is none. Times not reached are censored."""
    times = [getattr(flow.solved_times(**point, points=POINTS), name) for point in points]
    missing = [time is None for time in times]
    try:
        return fit_law(theorem_columns(points), [np.nan if time is None else time for time in times], censored=missing)
    except UsageError as error:
        return f"none: {error}"


def exponents(law: Law | str) -> list[float | str]:
    """Returns the fitted exponents of Theorem 4's variables; for a fit that failed, its reason for each."""
    return [law if isinstance(law, str) else law.exponents[v.label].value for v in VARIABLES.values()]


def left_at_T_I(L: int) -> tuple[float, float]:
    """Returns (L_IH2(T_I) / L_IH2(0), T_I) of the flow with sequences of length L."""
    timeline = flow.solved(L=L, time=300.0, points=300)
    t, four_gram = timeline.scalar("loss_4gram")
    T_I = first_crossing(t, four_gram, theory.AT_T_I * float(four_gram[0]), rising=False)
    assert T_I is not None  # it is 200 to 206 for every L
    induction = timeline.scalar("loss_induction")[1]
    return float(np.interp(T_I, t, induction) / induction[0]), T_I


def smallest_length() -> int:
    """Returns the smallest L with L_IH2(T_I) >= 0.99 L_IH2(0), by bisection: the fraction grows with L."""
    low, high = 40, 80
    while left_at_T_I(high)[0] < 0.99:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if left_at_T_I(middle)[0] >= 0.99 else (middle, high)
    return high


# Text


def half_time(steps: NDArray[np.number], values: Floats, start: float | None = None) -> float:
    """Returns the step from which on `values` [step] have covered half of the way from `start` to their last value.

    The default `start` is the first value, so it is half of the change; 0 makes it half of the last value. It is nan
    if `start` and the last value are equal.
    """
    origin = values[0] if start is None else start
    way = values[-1] - origin
    if way == 0:
        return float("nan")
    found = first_crossing(steps, (values - origin) / way, 0.5, rising=True, lasting=True)
    return float("nan") if found is None else found


def norms(timeline: Timeline) -> list[Floats]:
    """Returns ||p|| and ||(W_K, W_Q)||, [step] each."""
    return [timeline.scalar(f"position_norms/all_{name}")[1] for name in ("p", "kq")]


def half_times(timeline: Timeline, end: float = np.inf, start: float | None = None) -> list[float]:
    """Returns the `half_time` of both norms over the steps up to `end`."""
    steps = timeline.steps[timeline.steps <= end]
    return [half_time(steps, values[: len(steps)], start) for values in norms(timeline)]


def layer_half_times(timeline: Timeline, layer: int) -> list[float]:
    """Returns the `half_time` of both norms of one layer."""
    heads = [timeline.series(f"position_norms/{name}")[:, layer] for name in ("p", "kq")]  # [step, head] each
    return [half_time(timeline.steps, np.linalg.norm(values, axis=1)) for values in heads]


def norm_growth(timeline: Timeline) -> list[float]:
    """Returns the last value of both norms over the first; nan if that is 0."""
    return [float(values[-1] / values[0]) if values[0] else float("nan") for values in norms(timeline)]


def changes_at_half_loss(timeline: Timeline, level: float) -> list[float]:
    """Returns the fraction of each norm's change that is over when the loss is half-way from `level` to its end."""
    step = half_time(*timeline.scalar("loss"), start=level)
    return [_change_over(timeline.steps, values, step) for values in norms(timeline)]


def _change_over(steps: NDArray[np.number], values: Floats, step: float) -> float:
    """Returns the fraction of the change of `values` [step] that is over at `step`; nan if they do not change."""
    change = values[-1] - values[0]
    return float(np.interp(step, steps.astype(float), values - values[0]) / change) if change else float("nan")


def fall_kept(free: Timeline, frozen: Timeline, level: float) -> float:
    """Returns the fall of the loss below `level` in a run with frozen parts, over that of the free run.

    Both are taken at the last step of the frozen run. The result is nan if the free run is not below `level` there.
    """
    end = float(frozen.steps[-1])
    fall = level - float(np.interp(end, *free.scalar("loss")))
    return (level - float(frozen.scalar("loss")[1][-1])) / fall if fall > 0 else float("nan")


def first_above(timeline: Timeline, name: str, level: float, rising: bool = True) -> float | None:
    """Returns the first step at which the largest element of a series exceeds `level`; or, falling, is below it."""
    values = timeline.series(name)
    values = np.nanmax(values.reshape(len(values), -1), axis=1)
    return first_crossing(timeline.steps, values, level, rising=rising)
