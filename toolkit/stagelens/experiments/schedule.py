"""Schedules: the steps at which a run is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """`log` steps evenly spaced in log time, `even` steps evenly spaced, and more of them while the loss changes.

    If the loss is expected to change by more than `sensitivity` of its range before the next planned step, the gap is
    divided into `refine` parts. The rule uses measured losses only, so a resumed run measures at the same steps.
    """

    log: int = 20
    even: int = 40
    refine: int = 3
    sensitivity: float = 0.02

    def planned(self, steps: int) -> tuple[int, ...]:
        """Returns the planned steps of a run of `steps`, sorted; 0 and the last step are always included."""
        return _planned(self.log, self.even, steps)

    def next_after(self, step: int, steps: int, measured: Sequence[tuple[float, float]]) -> int | None:
        """Returns the next step to measure after `step`, given the pairs (step, loss) so far; None if there is none."""
        plan = self.planned(steps)
        index = int(np.searchsorted(plan, step, side="right"))
        if index == len(plan):
            return None
        gap = plan[index] - step
        if self.refine > 1 and gap > 1 and len(measured) > 1:
            losses = [loss for _, loss in measured]
            (step0, loss0), (step1, loss1) = measured[-2:]
            coming = abs(loss1 - loss0) / max(step1 - step0, 1) * gap
            if coming > self.sensitivity * (max(losses) - min(losses)):
                planned_gap = plan[index] - plan[index - 1]
                return step + min(gap, max(1, planned_gap // self.refine))
        return plan[index]


@lru_cache(maxsize=64)
def _planned(log: int, even: int, steps: int) -> tuple[int, ...]:
    spaced = np.concatenate([[0, steps], np.geomspace(1, steps, max(log, 1)), np.linspace(0, steps, even + 1)])
    return tuple(int(step) for step in np.unique(np.rint(spaced)))


CHECKPOINTS = Schedule(log=8, even=10, refine=1)
