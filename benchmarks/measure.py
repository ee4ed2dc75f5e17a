"""The shared parts of the benchmarks: times taken in turns, their ratios, bars, and stored results.

A benchmark measures everything that it compares in one process and in turns, so that other load on the machine slows
all of it equally. It reports ratios:

    times = in_turns({"plain": plain.step, "ours": ours.step})
    return report(__file__, [Row("our step / a plain one", ratio(times, "ours", "plain"), at_most=1.15)])

`report` prints the table and stores it in `benchmarks/results/<name>.json`. `python -m benchmarks.page` generates
`docs/speed.md` from the stored results.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformer-lens", "numpy", "xarray", "typer", "rich", "pydantic", "matplotlib")

Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Row:
    """One number of a benchmark, with its bar if there is one."""

    what: str
    found: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "times"

    @property
    def holds(self) -> bool:
        return (self.at_most is None or self.found <= self.at_most) and (
            self.at_least is None or self.found >= self.at_least
        )

    @property
    def bar(self) -> str:
        if self.at_most is not None and self.at_least is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"


def in_turns(
    functions: Mapping[str, Callable[[], object]],
    repeats: int = 41,
    warm_up: int = 3,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Returns the times of each function, called in turns and in alternating order after `warm_up` calls."""
    names = list(functions)
    for name in names:
        for _ in range(warm_up):
            functions[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        gc.collect()
        for name in names if repeat % 2 else reversed(names):
            start = clock()
            functions[name]()
            times[name].append(clock() - start)
    return times


def ratio(times: Times, one: str, other: str) -> float:
    """Returns the median over the turns of the time of `one` divided by the time of `other` in the same turn."""
    return median(a / b for a, b in zip(times[one], times[other], strict=True))


def report(script: str | Path, rows: Sequence[Row], note: str = "", keep: bool = True) -> int:
    """Prints the rows, stores them under the script's name if `keep` is set, and returns 1 if a bar is missed."""
    name, machine = Path(script).stem, this_machine()
    width = max(len(row.what) for row in rows)
    for row in rows:
        verdict = "" if not row.bar else "holds" if row.holds else "MISSED"
        print(f"{row.what:{width}}  {_number(row.found):>9} {row.unit:12} {row.bar:14} {verdict}".rstrip())
    print(f"({machine['cores']} cores, {machine['threads']} threads, torch {machine['versions']['torch']})")
    if note:
        print(note)
    missed = int(any(not row.holds for row in rows))
    if not keep:
        return missed
    kept = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "about": (sys.modules["__main__"].__doc__ or "").strip().partition("\n")[0],
        "note": note,
        "machine": machine,
        "rows": [asdict(row) | {"bar": row.bar, "holds": row.holds} for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return missed


def this_machine() -> dict[str, object]:
    """Returns the facts on which a measured time depends: versions, cores, threads."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if "torch" in sys.modules:
        import torch

        threads = str(torch.get_num_threads())
    return {
        "cores": os.cpu_count(),
        "threads": int(threads or os.cpu_count() or 1),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
