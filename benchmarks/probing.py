"""What probing costs a run, and how fast the Markov chain is sampled.

A whole run of `markov/minimal` (preset quick) is timed, and within it the time spent in measurements: on the default
schedule they should take less than a tenth of the run. The sampler should make 10,000 paper-size sequences in a second.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import stagelens as sl
from stagelens.recorder import Recorder
from stagelens.seeds import generator
from stagelens_markov.tasks import MarkovConfig, Minimal


class Stopwatch:
    """Counts the time spent in `Recorder.measure`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._measure = Recorder.measure

    def __enter__(self) -> Stopwatch:
        def timed(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return self._measure(recorder, *args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start
                self.calls += 1

        Recorder.measure = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Recorder.measure = self._measure  # type: ignore[method-assign]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        start = time.perf_counter()
        run = sl.run("markov", runs=folder, report=False)
        total = time.perf_counter() - start
        print(f"run of {run.manifest.steps:.0f} steps: {total:.1f} s, {watch.calls} measurements")
        print(f"share of probing: {watch.seconds / total:.1%} (less than 10%)")
        print(
            f"one measurement: {watch.seconds / watch.calls / ((total - watch.seconds) / run.manifest.steps):.2f} steps"
        )

    task = Minimal(MarkovConfig(), 0)
    process = task.process
    task.sample(100, generator(0, "warm-up"))
    start = time.perf_counter()
    task.sample(10_000, generator(0, "benchmark"))
    seconds = time.perf_counter() - start
    print(f"10,000 sequences of {process.order} + 20 tokens, d = {process.d}: {seconds:.2f} s (less than 1)")


if __name__ == "__main__":
    main()
