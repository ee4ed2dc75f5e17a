"""A plugin with a task of a few steps and a claim for every verdict. Tests load it as users load theirs."""

from __future__ import annotations

import torch
from transformer_lens import HookedRootModule

from stagelens import Check, Claim, ClaimRef, Task, hookimpl
from stagelens.claims import at_most, equal, in_every_seed, on_average


class Line(HookedRootModule):
    """y = w x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.setup()

    def forward(self, x):
        return self.w * x


class Fit(Task):
    id = "lines/fit"
    title = "a line through the origin"
    presets = {"quick": {"steps": 12, "lr": 0.1, "batch_size": 8}, "paper": {"steps": 20, "lr": 0.1, "batch_size": 8}}

    def build_model(self):
        return Line()

    def sample(self, n, generator):
        return torch.randn(n, generator=generator)

    def loss(self, model, batch):
        return (model(batch) - 2 * batch).square().mean()


class Falls(Claim):
    id, title, reference = "T1", "the loss falls", "Fig. 1"

    def checks(self, lab):
        runs = {seed: lab.run("lines", seed=seed) for seed in lab.seeds}
        losses = {seed: run.timeline.scalar("loss")[1] for seed, run in runs.items()}
        yield in_every_seed({s: at_most("last loss / first", v[-1] / v[0], 0.9, "Fig. 1") for s, v in losses.items()})


class FallsToZero(Claim):
    id, title, seeds = "T2", "the loss reaches zero at once", 2

    def checks(self, lab):
        for seed in lab.seeds:
            yield equal("last loss", lab.run(Fit, {}, seed).final["loss"], 0.0, "Fig. 2")


class Large(Claim):
    id, title, budget, seeds = "T3", "the same at full size", "paper", 1

    def checks(self, lab):
        yield equal("steps", lab.run("lines").manifest.steps, 20, "Table 1")


class Raises(Claim):
    id, title = "T4", "a claim with a mistake"

    def checks(self, lab):
        yield equal("one", 1, 1, "")
        raise ZeroDivisionError("two lines\nof text")


class Unmeasured(Claim):
    id, title = "T5", "a claim whose number never came"

    def checks(self, lab):
        yield Check("time", float("nan"), 1.0, 0.1, "Fig. 3", True)


class Empty(Claim):
    id, title = "T6", "a claim that looks at nothing"

    def checks(self, lab):
        return []


class Wide(Claim):
    """The mean of 1 and 3 has an interval of +-12.7, that of 1, 3, 1, 3 of +-1.8."""

    id, title, seeds = "T8", "a mean that two seeds do not decide", {"quick": 2, "long": 4}

    def checks(self, lab):
        yield on_average(at_most, "mean", {seed: 1 + 2 * (seed % 2) for seed in lab.seeds}, 9.0, "Fig. 4")


class Identity(Claim):
    id, title, reason = "T9", "an identity that fails", "reading: two is not three"

    def checks(self, lab):
        yield equal("evidence", 1, 1, "Fig. 5")
        yield equal("identity", 2, 3, "Eq. 1", sanity=True)


class QuickReason(Claim):
    id, title, reason = "T10", "a reason that is true of quick only", {"quick": "size: two is too few"}

    def checks(self, lab):
        yield equal("evidence", 2, 3, "Fig. 6")


@hookimpl
def stagelens_register_tasks():
    return [Fit]


@hookimpl
def stagelens_register_claims():
    claims = (Falls, FallsToZero, Large, Raises, Unmeasured, Empty, Wide, Identity, QuickReason)
    written = [ClaimRef.of(claim) for claim in claims]
    return [*written, ClaimRef("T7", "a claim that is not where it should be", "claims_plugin:Nowhere")]
