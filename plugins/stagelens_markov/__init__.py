"""Incremental learning of sparse attention patterns on a high-order Markov chain."""

from __future__ import annotations

from stagelens import hookimpl
from stagelens.lazy import ClaimRef, TaskRef

TASKS = (
    TaskRef(
        "markov/minimal",
        "attention heads compete, then share out the positions of a high-order Markov chain",
        ("quick", "paper"),
        "stagelens_markov.tasks:Minimal",
        default=True,
    ),
)

CLAIMS = (
    ClaimRef("M1", "stages follow importance", "stagelens_markov.claims:FollowImportance"),
    ClaimRef(
        "M3",
        "heads compete for the most important pattern, then cooperate",
        "stagelens_markov.claims:CompeteThenCooperate",
    ),
    ClaimRef(
        "M4",
        "identical heads learn one pattern; a larger initialization parts them sooner",
        "stagelens_markov.claims:InitializationScale",
    ),
    ClaimRef(
        "M5",
        "without an order of importance the loss falls in two drops, with one in three",
        "stagelens_markov.claims:ImportanceRatio",
    ),
    ClaimRef("M7", "fresh data at every step: the same stages", "stagelens_markov.claims:FreshData"),
    ClaimRef("M9", "weight decay makes almost no difference", "stagelens_markov.claims:WeightDecay"),
)


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_claims() -> tuple[ClaimRef, ...]:
    return CLAIMS
