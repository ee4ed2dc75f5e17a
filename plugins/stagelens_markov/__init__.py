"""Incremental learning of sparse attention patterns on a high-order Markov chain."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "markov/minimal",
    "tasks:Minimal",
    "attention heads compete, then share out the positions of a high-order Markov chain",
)
plugin.task("markov/full", "tasks:Full", "a standard one-block transformer on the same chain")
plugin.task(
    "markov/flow",
    "flow:RegressionFlow",
    "the gradient flow of the regression variant: heads compete for one position, then separate",
)

plugin.claim("M1", "claims.trained:FollowImportance", "stages follow importance")
plugin.claim(
    "M2", "claims.trained:RestrictedContexts", "stages follow models that see one interval, then two, then all"
)
plugin.claim(
    "M3", "claims.trained:CompeteThenCooperate", "heads compete for the most important pattern, then cooperate"
)
plugin.claim(
    "M4",
    "claims.trained:InitializationScale",
    "identical heads learn one pattern; a larger initialization separates them sooner",
)
plugin.claim(
    "M5",
    "claims.trained:ImportanceRatio",
    "without an order of importance the loss falls in two drops, with one in three",
)
plugin.claim("M6", "claims.trained:DatasetSize", "fewer sequences, fewer stages before overfitting")
plugin.claim("M7", "claims.trained:FreshData", "fresh data at every step: the same stages")
plugin.claim(
    "M8", "claims.trained:ReversedOrder", "importance decides, not distance: the furthest interval can be first"
)
plugin.claim("M9", "claims.trained:WeightDecay", "weight decay makes almost no difference")
plugin.claim(
    "M10", "claims.flow:FeaturesInOrder", "the flow learns features in the order of their norms, far apart in time"
)
plugin.claim("M11", "claims.flow:SymmetricEnd", "identical heads end at the most important position")
plugin.claim(
    "M12",
    "claims.flow:Deviations",
    "small differences between heads grow at most exponentially until the heads separate",
)
plugin.claim("M13", "claims.flow:TensorForm", "the gradient flow is that of a tensor factorization")

plugin.figure(
    "fig1",
    "figures.trained:fig1",
    "KL divergence from Eq. 3's predictors, and attention",
    "The task and its solution by attention. The divergence of the minimal model from each partial predictor "
    "falls and rises in turn. All heads first attend to the same interval.",
    ("M1", "M3"),
)
plugin.figure(
    "fig2",
    "figures.trained:fig2",
    "attention of the full model",
    "The heads of the full model are uniform, then all attend to the nearest interval, then one to each interval.",
    ("M3",),
)
plugin.figure(
    "fig3",
    "figures.trained:fig3",
    "KL divergence from Eq. 3's predictors and from restricted models",
    "The full model comes near the predictors of one, two and three intervals in turn (left), and near the models"
    " that see 4, 8 and 12 tokens (right).",
    ("M1", "M2"),
)
plugin.figure(
    "fig4",
    "figures.trained:fig4",
    "excess loss by initialization scale and by ratio of importance",
    "The smaller the initial scores, the later the stages; with none the loss stays after its first drop. Without"
    " an order of importance there are two drops, with one there are three.",
    ("M4", "M5"),
)
plugin.figure(
    "fig5",
    "figures.trained:fig5",
    "stages by dataset size, against models with restricted contexts",
    "The best validation loss falls with the number of sequences, and with fewer sequences fewer of the "
    "restricted models are reached before overfitting.",
    ("M6",),
)
plugin.figure(
    "fig6",
    "figures.trained:fig6",
    "attention with fresh data",
    "Attention passes through the same patterns as with 9,000 sequences.",
    ("M7",),
)
plugin.figure(
    "fig7",
    "figures.trained:fig7",
    "stages with fresh data",
    "Loss and divergences have the same stages as with 9,000 sequences.",
    ("M7",),
)
plugin.figure(
    "fig8",
    "figures.trained:fig8",
    "attention of the full model with reversed order and unequal intervals",
    "All heads of the full model first attend to the furthest interval, which is the most important one.",
    ("M8",),
)
plugin.figure(
    "fig9",
    "figures.trained:fig9",
    "stages of the full model with reversed order and unequal intervals",
    "The divergences have the same order of stages although the order of distance is reversed.",
    ("M8",),
)
plugin.figure(
    "fig10",
    "markov/flow",
    "the gradient flow",
    "Attention, values and loss of three heads in the gradient flow: all learn the first position, then one "
    "leaves for the second, then one for the third, each much later than the one before.",
    ("M10",),
)
plugin.figure("spare-heads", "figures.spare:spare_heads", "more heads than features: not in the paper")
