"""Compares six vectorized seeds with one seed: the time of a training step, and of whole runs with their probes.

A whole run has the preset `quick`. It includes models, steps, every measurement and checkpoint, stages and predictions,
but no figures and no report.

`python -m benchmarks.ensembles rich run` measures only the rows whose names contain these words, and stores nothing.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.measure import Row, in_turns, ratio, report

import stagelens as sl
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens.host.host import make_host
from stagelens.training.stackable import why_not
from stagelens.training.stacking import Stacked

SEEDS = 6
MOST = {"linear-icl/separate": 2.0, "recall/simplified": 2.0, "rich/toy": 4.5, "emergence/toy": 4.5}


def steps(trainer: Any, many: int = 5) -> Any:
    """Returns a function that advances `trainer` by `many` steps, from its current step."""
    at = 0

    def advance() -> None:
        nonlocal at
        for step in range(at, at + many):
            trainer.advance(step)
        at += many

    return advance


def step_ratio(task: str) -> float:
    """Returns the time of a step of six vectorized seeds, divided by that of a step of one seed."""
    kind: Any = make_host().task(task).load()
    config = make_config(kind.Config, kind.presets, "quick", [])
    if reason := why_not([Training(kind(config, seed)) for seed in range(SEEDS)]):
        raise SystemExit(f"{kind.id} cannot be stacked: {reason}")
    stacked = Stacked([Training(kind(config, seed)) for seed in range(SEEDS)])
    times = in_turns({"one": steps(Training(kind(config, 0))), "six": steps(stacked)}, repeats=9)
    return ratio(times, "six", "one")


def run_ratio(task: str) -> float:
    """Returns the time of a whole run of six seeds, divided by that of a run of one seed. Reports are not included."""
    with tempfile.TemporaryDirectory() as folder:
        number = 0

        def run(seeds: int) -> None:
            nonlocal number
            number += 1
            sl.run_ensemble(task, seeds=seeds, runs=Path(folder) / str(number), report=False)

        times = in_turns({"one": lambda: run(1), "six": lambda: run(SEEDS)}, repeats=3, warm_up=0)
    return ratio(times, "six", "one")


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    cases = {f"{task}: a step of six seeds / of one": (partial(step_ratio, task), most) for task, most in MOST.items()}
    cases |= {
        f"{task}: a run of six seeds with its probes / of one": (partial(run_ratio, task), most)
        for task, most in MOST.items()
    }
    chosen = {name: case for name, case in cases.items() if all(word in name for word in words)}
    if not chosen:
        raise SystemExit(f"no row has {' '.join(words)} in its name: {'; '.join(cases)}")
    rows = [Row(name, measure(), at_most=most) for name, (measure, most) in chosen.items()]
    return report(__file__, rows, keep=not words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
