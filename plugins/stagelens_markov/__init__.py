"""Incremental learning of sparse attention patterns on a high-order Markov chain."""

from __future__ import annotations

from stagelens import ClaimRef, TaskRef, hookimpl

TASKS = (
    TaskRef(
        "markov/minimal",
        "attention heads compete, then share out the positions of a high-order Markov chain",
        ("quick", "paper"),
        "stagelens_markov.tasks:Minimal",
        default=True,
    ),
    TaskRef(
        "markov/full",
        "a standard one-block transformer on the same chain",
        ("quick", "paper"),
        "stagelens_markov.tasks:Full",
    ),
    TaskRef(
        "markov/flow",
        "the gradient flow of the regression variant: heads compete for one position, then separate",
        ("quick", "paper"),
        "stagelens_markov.flow:RegressionFlow",
    ),
)

CLAIMS = tuple(
    ClaimRef(id, title, f"stagelens_markov.claims.{where}")
    for id, where, title in (
        ("M1", "trained:FollowImportance", "stages follow importance"),
        ("M2", "trained:RestrictedContexts", "stages follow models that see one interval, then two, then all"),
        ("M3", "trained:CompeteThenCooperate", "heads compete for the most important pattern, then cooperate"),
        (
            "M4",
            "trained:InitializationScale",
            "identical heads learn one pattern; a larger initialization separates them sooner",
        ),
        (
            "M5",
            "trained:ImportanceRatio",
            "without an order of importance the loss falls in two drops, with one in three",
        ),
        ("M6", "trained:DatasetSize", "fewer sequences, fewer stages before overfitting"),
        ("M7", "trained:FreshData", "fresh data at every step: the same stages"),
        ("M8", "trained:ReversedOrder", "importance decides, not distance: the furthest interval can be first"),
        ("M9", "trained:WeightDecay", "weight decay makes almost no difference"),
        ("M10", "flow:FeaturesInOrder", "the flow learns features in the order of their norms, far apart in time"),
        ("M11", "flow:SymmetricEnd", "identical heads end at the most important position"),
        (
            "M12",
            "flow:Deviations",
            "small differences between heads grow at most exponentially until the heads separate",
        ),
        ("M13", "flow:TensorForm", "the gradient flow is that of a tensor factorization"),
    )
)


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_claims() -> tuple[ClaimRef, ...]:
    return CLAIMS
