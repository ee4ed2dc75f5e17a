"""Measures the time to open the timeline of a run with 10,000 measurements of 50 series, and to show the run.

Both have a bar in seconds. Each time is also reported relative to an unavoidable part, such as reading the file.
"""

from __future__ import annotations

import subprocess  # nosec B404  # to time our own commands
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.measure import Row, in_turns, ratio, report

from stagelens.runs.manifest import Manifest, versions
from stagelens.runs.run import load
from stagelens.runs.store import Store
from stagelens.timelines.timeline import Column, Measurement

MEASUREMENTS, SERIES = 10_000, 50
STAGELENS = str(Path(sys.executable).with_name("stagelens"))


def make_run(folder: Path, measurements: int = MEASUREMENTS) -> Path:
    """Writes a run with a loss that falls in two steps, and series that rise one after the other."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    names = ["loss", *(f"probe{i}/value" for i in range(1, SERIES))]
    layout = tuple(Column(name, (), (), ()) for name in names)
    step = np.arange(measurements)[:, None]
    place = np.linspace(0.1, 0.9, SERIES) * measurements
    values = np.tanh((step - place) / (0.02 * measurements))
    values[:, 0] = 2 - 0.5 * np.tanh((step - place[[5, 30]]) / (0.01 * measurements)).sum(1)
    values += 0.01 * random.normal(size=values.shape)
    store = Store(folder)
    store.add(*(Measurement(number, layout, row) for number, row in enumerate(values)))
    store.close()
    manifest = Manifest("markov/minimal", "markov", "quick", {}, 0, "training", measurements - 1, versions=versions())
    manifest.status, manifest.step = "finished", measurements - 1
    manifest.save(folder)
    manifest.stages = load(folder).found_stages()  # as `stagelens run` does when a run has ended
    manifest.save(folder)
    return folder


def open_timeline(run: Path) -> None:
    timeline = load(run).timeline
    assert len(timeline.steps) == MEASUREMENTS and len(timeline.dataset) == SERIES


def start(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)  # nosec B603  # no shell


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "long")
        opening = in_turns(
            {
                "open": lambda: open_timeline(run),
                "read the file": lambda: (run / "timeline.sqlite").read_bytes(),
            },
            repeats=11,
        )
        showing = in_turns(
            {
                "show": lambda: start([STAGELENS, "show", str(run)]),
                "imports": lambda: start([sys.executable, "-c", "import typer, rich, pydantic"]),
            },
            repeats=7,
            warm_up=1,
        )
    rows = [
        Row("opening the timeline as a dataset", median(opening["open"]), at_most=0.5, unit="s"),
        Row("`stagelens show`", median(showing["show"]), at_most=1.0, unit="s"),
        Row("`stagelens show` / import typer, rich, pydantic", ratio(showing, "show", "imports")),
    ]
    return report(__file__, rows, f"{MEASUREMENTS:,} measurements of {SERIES} series")


if __name__ == "__main__":
    sys.exit(main())
