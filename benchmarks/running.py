"""Compares `stagelens run` of about a minute with a bare training loop of the same steps: time and peak memory.

Each is a separate process, and they are started in turns. The bare loop imports torch and TransformerLens, builds the
task's model, and trains it on the task's batches. The run also measures, stores, draws and writes its report.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, report

TASK = "emergence/recall"
SECONDS = 60.0
STAGELENS = str(Path(sys.executable).with_name("stagelens"))
BARE = """
import sys
from stagelens.host import make_host
from stagelens.base import generator
kind = make_host().task(sys.argv[1]).load()
task = kind(kind.Config(**{**kind.presets["quick"], "steps": int(sys.argv[2])}))
model = task.build_model()
optimizer, batches = task.optimizer(model), task.batches("cpu")
for step in range(task.config.steps):
    loss = task.loss(model, batches(step))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def child(command: list[str]) -> tuple[float, float]:
    """Returns the seconds that a process takes, and its peak of resident memory in MB."""
    start = time.perf_counter()
    pid = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command[:3])} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def steps_of_a_run() -> int:
    """Returns how many steps the bare loop takes in about a minute, its start-up included."""
    (short, _), (long, _) = (child([sys.executable, "-c", BARE, TASK, str(steps)]) for steps in (20, 320))
    return round(max(SECONDS - short, 10.0) * 300 / (long - short) / 100) * 100


def main(repeats: int = 1) -> int:
    steps = steps_of_a_run()
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "run": []}
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "bare": [sys.executable, "-c", BARE, TASK, str(steps)],
            "run": [STAGELENS, "run", TASK, "--set", f"steps={steps}", "--runs", folder],
        }
        for repeat in range(repeats):
            for name in commands if repeat % 2 else reversed(commands):
                times[name].append(child(commands[name]))
    pairs = list(zip(times["run"], times["bare"], strict=True))
    rows = [
        Row("time: a run / a bare loop", median(run[0] / bare[0] for run, bare in pairs), at_most=1.3),
        Row("peak memory: a run / a bare loop", median(run[1] / bare[1] for run, bare in pairs), at_most=1.3),
    ]
    return report(__file__, rows, f"{TASK}, {steps:,} steps; the bare loop took {times['bare'][0][0]:.0f} s")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
