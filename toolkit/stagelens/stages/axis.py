"""The axis on which a curve is measured: the step, or its logarithm."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stagelens.base import UsageError
from stagelens.stages.pieces import Array

AxisName = Literal["auto", "linear", "log"]
EARLY = 0.25  # of the steps: if half of the points lie before it, `auto` takes the logarithm


class Axis:
    """Steps as positions u in [0, 1], and back."""

    def __init__(self, t: Array, axis: AxisName) -> None:
        if axis not in ("auto", "linear", "log"):
            raise UsageError(f"axis is {axis!r}; it must be 'auto', 'linear' or 'log'")
        if axis == "log" and t[0] < 0:
            raise UsageError(f"the first step is {t[0]:g}; a log axis needs steps of 0 or more, so take axis='linear'")
        early = np.median(t) - t[0] < EARLY * (t[-1] - t[0])
        self.name: Literal["linear", "log"] = (
            "log" if axis == "log" or (axis == "auto" and early and t[0] >= 0) else "linear"
        )
        self._t, self._place = t, t
        if self.name == "log" and len(t) > 2:
            log = np.log(t[t > 0])
            # Step 0 has no logarithm: its position is one spacing before the first step that has one.
            self._place = log if t[0] > 0 else np.concatenate([[2 * log[0] - log[1]], log])
        self.u = (self._place - self._place[0]) / (self._place[-1] - self._place[0])

    def step(self, u: float) -> float:
        i = int(np.clip(np.searchsorted(self.u, u) - 1, 0, len(self.u) - 2))
        share = (u - self.u[i]) / (self.u[i + 1] - self.u[i])
        if self.name == "log" and self._t[i] > 0:
            return float(self._t[i] * (self._t[i + 1] / self._t[i]) ** share)
        return float(self._t[i] + (self._t[i + 1] - self._t[i]) * share)
