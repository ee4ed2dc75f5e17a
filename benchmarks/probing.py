"""Measures the cost of probing in a run, and the speed of sampling the Markov chain.

A whole run of `markov/minimal` (preset quick) is timed, and within it the time spent in measurements. On the default
schedule they should take less than a tenth of the run. The sampler should make 10,000 paper-size sequences in a second.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from benchmarks.measure import Row, report

import stagelens as sl
from stagelens.base import generator
from stagelens.recording.recorder import Recorder
from stagelens_markov.tasks import MarkovConfig, Minimal


class Stopwatch:
    """Measures the time that recorders spend in measurements."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._own = {name: getattr(Recorder, name) for name in ("observe", "record")}

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed

    def __enter__(self) -> Stopwatch:
        for name, function in self._own.items():
            setattr(Recorder, name, self._timed(function))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._own.items():
            setattr(Recorder, name, function)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        start = time.perf_counter()
        run = sl.run("markov", runs=folder, report=False)
        total = time.perf_counter() - start
        measured = len(run.timeline.steps)

    task = Minimal(MarkovConfig(), 0)
    task.sample(100, generator(0, "warm-up"))
    start = time.perf_counter()
    task.sample(10_000, generator(0, "benchmark"))
    sampling = time.perf_counter() - start
    step = (total - watch.seconds) / run.manifest.steps
    rows = [
        Row("markov/minimal: measuring / the whole run", watch.seconds / total, at_most=0.1),
        Row("markov/minimal: a measurement / a step", watch.seconds / measured / step),
        Row(f"10,000 sequences of {task.process.order} + 20 tokens, d = {task.process.d}", sampling, 1.0, unit="s"),
    ]
    return report(__file__, rows, f"{measured} measurements in {run.manifest.steps:g} steps")


if __name__ == "__main__":
    sys.exit(main())
