"""Incremental learning of sparse attention patterns on a high-order Markov chain."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, TaskRef, hookimpl

PRESETS = ("quick", "paper")
MINIMAL = "attention heads compete, then share out the positions of a high-order Markov chain"
FLOW = "the gradient flow of the regression variant: heads compete for one position, then separate"
TASKS = (
    TaskRef("markov/minimal", MINIMAL, PRESETS, "stagelens_markov.tasks:Minimal", default=True),
    TaskRef(
        "markov/full", "a standard one-block transformer on the same chain", PRESETS, "stagelens_markov.tasks:Full"
    ),
    TaskRef("markov/flow", FLOW, PRESETS, "stagelens_markov.flow:RegressionFlow"),
)

TRAINED = (
    ("M1", "FollowImportance", "stages follow importance"),
    ("M2", "RestrictedContexts", "stages follow models that see one interval, then two, then all"),
    ("M3", "CompeteThenCooperate", "heads compete for the most important pattern, then cooperate"),
    ("M4", "InitializationScale", "identical heads learn one pattern; a larger initialization separates them sooner"),
    ("M5", "ImportanceRatio", "without an order of importance the loss falls in two drops, with one in three"),
    ("M6", "DatasetSize", "fewer sequences, fewer stages before overfitting"),
    ("M7", "FreshData", "fresh data at every step: the same stages"),
    ("M8", "ReversedOrder", "importance decides, not distance: the furthest interval can be first"),
    ("M9", "WeightDecay", "weight decay makes almost no difference"),
)
THEOREMS = (
    ("M10", "FeaturesInOrder", "the flow learns features in the order of their norms, far apart in time"),
    ("M11", "SymmetricEnd", "identical heads end at the most important position"),
    ("M12", "Deviations", "small differences between heads grow at most exponentially until the heads separate"),
    ("M13", "TensorForm", "the gradient flow is that of a tensor factorization"),
)
CLAIMS = (
    *(ClaimRef(id, title, f"stagelens_markov.claims.trained:{name}") for id, name, title in TRAINED),
    *(ClaimRef(id, title, f"stagelens_markov.claims.flow:{name}") for id, name, title in THEOREMS),
)

DRAWN = (
    ("fig1", "KL divergence from Eq. 3's predictors, and attention"),
    ("fig2", "attention of the full model"),
    ("fig3", "KL divergence from Eq. 3's predictors and from restricted models"),
    ("fig4", "excess loss by initialization scale and by ratio of importance"),
    ("fig5", "stages by dataset size"),
    ("fig6", "attention with fresh data"),
    ("fig7", "stages with fresh data"),
    ("fig8", "attention with reversed order and unequal intervals"),
    ("fig9", "stages with reversed order and unequal intervals"),
)
FIGURES = (
    *(FigureRef(name, title, f"stagelens_markov.figures.trained:{name}") for name, title in DRAWN),
    FigureRef("fig10", "the gradient flow", task="markov/flow"),
    FigureRef(
        "spare-heads", "more heads than features: not in the paper", "stagelens_markov.figures.spare:spare_heads"
    ),
)


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_claims() -> tuple[ClaimRef, ...]:
    return CLAIMS


@hookimpl
def stagelens_register_figures() -> tuple[FigureRef, ...]:
    return FIGURES
