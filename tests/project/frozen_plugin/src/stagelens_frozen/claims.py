# frozen: do not edit. Written against the import paths of stagelens 0.1.0, which later versions must keep.
"""Two claims, with every maker of checks."""

from __future__ import annotations

from collections.abc import Iterator

from stagelens import Check, Claim, Run
from stagelens.claims import at_least, at_most, close, equal, in_every_seed, ordered, reported
from stagelens.lab import Lab


class Leaves(Claim):
    id, title, reference = "FROZEN1", "the pitchfork leaves its unstable point", "exact"

    def checks(self, lab: Lab) -> Iterator[Check]:
        run = lab.run("frozen/flow")
        half = {one["name"]: one["expected"] for one in run.predictions}["half"]
        yield close("x = 1/2", run.manifest.events["half"], half, 1e-4, "exact")
        yield equal("status", run.status, "finished", "exact")
        yield ordered("x grows", run.timeline.series("frozen/x")[::10, 0].tolist(), "exact")
        yield reported("last loss", last(run), "exact")


class Falls(Claim):
    id, title, reference, seeds = "FROZEN2", "the loss of the copy falls", "Fig. 1", 2

    def checks(self, lab: Lab) -> Iterator[Check]:
        runs = lab.each_seed("frozen/copy", {"steps": 30, "lr": 0.03})
        losses = {seed: run.timeline.scalar("loss")[1] for seed, run in runs.items()}
        yield in_every_seed({s: at_most("last loss / first", v[-1] / v[0], 1.0, "Fig. 1") for s, v in losses.items()})
        yield at_least("seeds", len(runs), 2, "Fig. 1")


def last(run: Run) -> float:
    return float(run.timeline["loss"].values[-1])
