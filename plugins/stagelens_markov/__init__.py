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

# name, what ours shows, what the paper's shows, the claims that judge it
DRAWN = (
    (
        "fig1",
        "KL divergence from Eq. 3's predictors, and attention",
        "The task and its solution by attention. The divergence of the minimal model from each partial predictor falls "
        "and rises in turn. All heads first attend to the same interval.",
        ("M1", "M3"),
    ),
    (
        "fig2",
        "attention of the full model",
        "The heads of the full model are uniform, then all attend to the nearest interval, then one to each interval.",
        ("M3",),
    ),
    (
        "fig3",
        "KL divergence from Eq. 3's predictors and from restricted models",
        "The full model comes near the predictors of one, two and three intervals in turn (left), and near the models "
        "that see 4, 8 and 12 tokens (right).",
        ("M1", "M2"),
    ),
    (
        "fig4",
        "excess loss by initialization scale and by ratio of importance",
        "The smaller the initial scores, the later the stages; with none the loss stays after its first drop. Without "
        "an order of importance there are two drops, with one there are three.",
        ("M4", "M5"),
    ),
    (
        "fig5",
        "stages by dataset size, against models with restricted contexts",
        "The best validation loss falls with the number of sequences, and with fewer sequences fewer of the restricted "
        "models are reached before overfitting.",
        ("M6",),
    ),
    (
        "fig6",
        "attention with fresh data",
        "Attention passes through the same patterns as with 9,000 sequences.",
        ("M7",),
    ),
    ("fig7", "stages with fresh data", "Loss and divergences have the same stages as with 9,000 sequences.", ("M7",)),
    (
        "fig8",
        "attention of the full model with reversed order and unequal intervals",
        "All heads of the full model first attend to the furthest interval, which is the most important one.",
        ("M8",),
    ),
    (
        "fig9",
        "stages of the full model with reversed order and unequal intervals",
        "The divergences have the same order of stages although the order of distance is reversed.",
        ("M8",),
    ),
)
FLOW_SHOWS = (
    "Attention, values and loss of three heads in the gradient flow: all learn the first position, then one leaves for "
    "the second, then one for the third, each much later than the one before."
)
FIGURES = (
    *(
        FigureRef(name, title, f"stagelens_markov.figures.trained:{name}", paper=shows, claims=claims)
        for name, title, shows, claims in DRAWN
    ),
    FigureRef("fig10", "the gradient flow", task="markov/flow", paper=FLOW_SHOWS, claims=("M10",)),
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
