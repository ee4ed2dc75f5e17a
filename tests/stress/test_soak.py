"""Two hundred runs in one process and one directory: memory, open files and the time of the catalogue do not grow."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import stagelens as sl
from kit.tasks import Decay, Regression, Repeats
from stagelens.host.host import make_host
from stagelens.recording.guard import resident
from stagelens.runs import catalogue
from stress.table import record

COMMAND = "pytest tests/stress/test_soak.py"
RUNS, SETTLED = 200, 60  # of which the first are warm-up: libraries, caches, fonts
KINDS = (Regression, Repeats, Decay)


def best(function, repeats: int = 5) -> float:
    """The least time that `function` takes, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def listed(runs: Path) -> None:
    code = "from stagelens.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, "runs", "--runs", str(runs)], check=True, capture_output=True)


def test_memory_and_open_files_stay_flat(tmp_path):
    host = make_host()
    for kind in KINDS:
        host.load_class(kind)
    memory, files, looks, names = [], [], {}, set()
    for number in range(RUNS):
        done = sl.run(KINDS[number % len(KINDS)], runs=tmp_path, seed=number, device="cpu", host=host)
        assert done.status == "finished" and len(done.summary()["final"]) > 0
        names.add(done.name)
        gc.collect()
        memory.append(resident())
        files.append(len(list(Path("/proc/self/fd").iterdir())))
        if number + 1 in (RUNS // 4, RUNS):
            looks[number + 1] = best(lambda: catalogue(tmp_path, host))
    lost = RUNS - len({run.name for run in catalogue(tmp_path)} & names)
    slope = float(np.polyfit(np.arange(SETTLED, RUNS), memory[SETTLED:], 1)[0])
    opened = files[-1] - files[SETTLED]
    per_run = {count: seconds / count * 1e3 for count, seconds in looks.items()}
    listing, nothing = best(lambda: listed(tmp_path)), best(lambda: listed(tmp_path / "nowhere"))
    note = f"memory {1024 * slope:+.1f} KiB a run, open files {opened:+d}; `stagelens runs` {listing:.2f} s, "
    note += f"{nothing:.2f} s without runs"
    flat = slope < 0.1 and opened == 0
    quick = per_run[RUNS] < 2 * per_run[RUNS // 4] and listing < nothing + 1.0
    record(f"{RUNS} runs in one process and one directory", RUNS, lost, int(not flat) + int(not quick), COMMAND, note)
    assert lost == 0 and flat and quick, (note, memory[::20], per_run)
