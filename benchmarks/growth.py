"""Measures how costs grow: time with batch size and steps, the size of the store with the number of measurements.

Each row is the cost at four times the size, divided by the cost at the size. A cost that grows linearly has 4, and one
that grows quadratically has 16. A cost with a fixed part has less than 4.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Row, in_turns, ratio, report
from benchmarks.reading import make_run

from stagelens.experiments.training import Training
from stagelens.host.host import make_host

TASK = "emergence/recall"
LINEAR = 4.6  # of 4: caches fill up


def training(batch_size: int) -> Callable[[int], None]:
    """Trains `steps` steps."""
    kind = make_host().task(TASK).load()
    made = Training(kind(kind.Config(**{**kind.presets["quick"], "batch_size": batch_size})))

    def advance(steps: int) -> None:
        for step in range(steps):
            made.advance(step)

    return advance


def store_size(measurements: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return (make_run(Path(folder) / "run", measurements) / "timeline.sqlite").stat().st_size


def main() -> int:
    small, large = training(64), training(256)
    times = in_turns(
        {
            "10 steps": lambda: small(10),
            "40 steps": lambda: small(40),
            "10 steps of batch 256": lambda: large(10),
        },
        repeats=15,
    )
    rows = [
        Row("time: 40 steps / 10 steps", ratio(times, "40 steps", "10 steps"), at_most=LINEAR),
        Row("time: batch 256 / batch 64", ratio(times, "10 steps of batch 256", "10 steps"), at_most=LINEAR),
        Row("store: 4,000 / 1,000 measurements", store_size(4000) / store_size(1000), at_most=LINEAR),
    ]
    return report(__file__, rows, f"{TASK} at quick size")


if __name__ == "__main__":
    sys.exit(main())
