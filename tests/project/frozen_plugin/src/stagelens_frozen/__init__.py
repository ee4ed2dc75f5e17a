# frozen: do not edit. Written against the import paths of stagelens 0.1.0, which later versions must keep.
"""What the plugin registers, and an observer of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagelens import ClaimRef, ProbeRef, Reading, Run, TaskRef, hookimpl


@hookimpl
def stagelens_register_tasks() -> list[Any]:
    from stagelens_frozen.tasks import Regression  # a class works as a reference does

    copy = TaskRef("frozen/copy", "repeat the first half", ("quick", "paper"), "stagelens_frozen.tasks:Copy", True)
    return [copy, TaskRef("frozen/flow", "a pitchfork", ("quick",), "stagelens_frozen.flow:Pitchfork"), Regression]


@hookimpl
def stagelens_register_probes() -> list[ProbeRef]:
    growth = ("ratio", "change")
    return [
        ProbeRef(
            "frozen_source", "attention to the source", ("attention",), "stagelens_frozen.probes:Source", "0", False
        ),
        ProbeRef("frozen_growth", "growth of the stream", growth, "stagelens_frozen.probes:Growth", default=False),
        ProbeRef("first_key", "", ("value",), "stagelens_frozen.probes:first_key", default=False),
    ]


@hookimpl
def stagelens_register_claims() -> list[ClaimRef]:
    return [
        ClaimRef("FROZEN1", "the pitchfork leaves its unstable point", "stagelens_frozen.claims:Leaves"),
        ClaimRef("FROZEN2", "the loss of the copy falls", "stagelens_frozen.claims:Falls"),
    ]


def _log(run: Run, line: str) -> None:
    with (run.folder / "observed.txt").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@hookimpl
def stagelens_run_started(run: Run) -> None:
    _log(run, f"started {run.manifest.task} {run.manifest.seed}")


@hookimpl
def stagelens_reading_recorded(run: Run, step: float, readings: Sequence[Reading]) -> None:
    _log(run, f"step {step:g}: {sum(reading.array().size for reading in readings)} numbers")


@hookimpl
def stagelens_run_finished(run: Run) -> None:
    _log(run, run.status)
