"""Six seeds trained as one against one seed: the time of a training step, and of whole runs with their probes.

A whole run is that of the preset `quick`, from its name to its manifest: models, steps, every measurement and
checkpoint, stages and theory; pictures and pages aside.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.measure import Row, in_turns, ratio, report

import stagelens as sl
from stagelens.config import make_config
from stagelens.host import make_host
from stagelens.stacking import Stacked, why_not
from stagelens.training import Training

SEEDS = 6
MOST = {"linear-icl/separate": 2.0, "recall/simplified": 2.0, "rich/toy": 4.5, "emergence/toy": 4.5}


def steps(trainer: Any, many: int = 5) -> Any:
    """A function that advances `trainer` by `many` steps, from where it stands."""
    at = 0

    def advance() -> None:
        nonlocal at
        for step in range(at, at + many):
            trainer.advance(step)
        at += many

    return advance


def step_ratio(kind: Any) -> float:
    """The time of a step of six seeds as one, in steps of one seed."""
    config = make_config(kind.Config, kind.presets, "quick", [])
    if reason := why_not([Training(kind(config, seed)) for seed in range(SEEDS)]):
        raise SystemExit(f"{kind.id} cannot be stacked: {reason}")
    stacked = Stacked([Training(kind(config, seed)) for seed in range(SEEDS)])
    times = in_turns({"one": steps(Training(kind(config, 0))), "six": steps(stacked)}, repeats=9)
    return ratio(times, "six", "one")


def run_ratio(task: str) -> float:
    """The time of a whole run of six seeds in runs of one, the report aside."""
    with tempfile.TemporaryDirectory() as folder:
        number = 0

        def run(seeds: int) -> None:
            nonlocal number
            number += 1
            sl.run_ensemble(task, seeds=seeds, runs=Path(folder) / str(number), report=False)

        times = in_turns({"one": lambda: run(1), "six": lambda: run(SEEDS)}, repeats=3, warm_up=0)
    return ratio(times, "six", "one")


def main() -> int:
    torch.set_num_threads(1)
    host = make_host()
    rows = [
        Row(f"{task}: a step of six seeds / of one", step_ratio(host.task(task).load()), at_most=most)
        for task, most in MOST.items()
    ]
    rows += [
        Row(f"{task}: a run of six seeds with its probes / of one", run_ratio(task), at_most=most)
        for task, most in MOST.items()
    ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
