"""The emergence of sparse attention: plateaus are power laws of the data, and repetition shortens them."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "emergence/toy",
    "tasks.toy:EmergenceToy",
    "one attention vector and one weight matrix learn to read a single token; exact expected loss",
    ("quick", "paper", "fig9"),
)
plugin.task(
    "emergence/flow",
    "flow:ReducedFlow",
    "the toy model's gradient flow in two or three variables",
    ("quick", "paper", "fig1", "fig2", "fig6", "fig7", "fig8", "fig10"),
)
plugin.task(
    "emergence/regression",
    "tasks.regression:Regression",
    "single-location regression by a transformer on continuous tokens",
)
plugin.task(
    "emergence/recall",
    "tasks.recall:KeyValueRecall",
    "key-value recall: an induction head emerges, and repetition accelerates it",
)

plugin.probe(
    "single_location",
    "probes:SingleLocation",
    "W along the target, and the attention to the relevant token",
    ("w", "w_repeated", "w_rest", "alpha", "relevant"),
    default=False,
)
plugin.probe(
    "plateau_length",
    "probes:PlateauSteps",
    "steps until the loss has fallen to a fifth of its start",
    ("steps",),
    default=False,
)
plugin.probe(
    "relevant_attention",
    "probes:RelevantAttention",
    "attention from the last token to the relevant one, per layer and head",
    ("mass",),
    default=False,
)
plugin.probe(
    "key_value",
    "probes:KeyValue",
    "copying and selecting attention per layer and head; accuracy on the training distribution",
    ("copying", "selecting", "train_loss", "train_accuracy"),
    passes="1",
    default=False,
)

plugin.claim("S1", "claims.toy:WeightsFirst", "weights first, attention second, then both")
plugin.claim("S2", "claims.toy:Reduction", "the reduced dynamics match SGD on the whole toy model")
plugin.claim(
    "S3", "claims.toy:PowerLaw", "the plateau's length is a power law of T and d (T = 128 to 2048, d = 16 to 256)"
)
plugin.claim("S4", "claims.toy:InContext", "in-context repetition divides T")
plugin.claim(
    "S5",
    "claims.toy:CrossSample",
    "cross-sample repetition shortens the plateau as linearized (T = 4096, d = 16 to 256, p up to 0.5)",
)
plugin.claim("S6", "claims.toy:Linearization", "w = sinh and Delta a = cosh - 1 early on, and the escape time")
plugin.claim("S7", "claims.toy:LatePhase", "late, w is at its equilibrium and the Hessian splits")
plugin.claim("S8", "claims.regression:Laws", "transformers: T and d delay emergence, B and p accelerate it")
plugin.claim("S9", "claims.regression:Ablations", "optimizer, position, feature, heads and layers")
plugin.claim("S10", "claims.recall:Emergence", "recall emerges; more pairs and more tokens delay it")
plugin.claim("S11", "claims.recall:Repetition", "repetition accelerates recall; too much of it overfits")
plugin.claim("S12", "claims.recall:Circuit", "copying and selecting attention rise together with accuracy")

plugin.figure(
    "fig1",
    "emergence/flow",
    "sparse attention emerges; the plateau's length is a power law of T and d",
    "A sketch of the task; test losses that stay flat and then drop, later for larger d; w and the attention of "
    "one run; plateau lengths over T and d, close to a power law (R2 0.999).",
    ("S1", "S3"),
)
plugin.figure(
    "fig2",
    "emergence/flow",
    "repetition shortens the plateau",
    "Plateau lengths over d, left for several B with a law in T/B and d, right for several p with the law that "
    "the linearization predicts.",
    ("S4", "S5"),
)
plugin.figure(
    "fig3",
    "figures.transformers:lab_fig3",
    "plateau length of transformers in T, d, B and p",
    "Plateau lengths of a two-layer transformer over d: for several T and several B on the lines of one power law"
    " (d^1.29 T^0.80 B^-0.80), and for several p without a law.",
    ("S8",),
)
plugin.figure(
    "fig4",
    "figures.transformers:lab_fig4",
    "recall emerges, later with more pairs and more tokens",
    "Loss and accuracy of recall with one sharp transition, later for more pairs; emergence times over the number"
    " of tokens on the lines of a power law (tokens^0.79 pairs^2.25).",
    ("S10",),
)
plugin.figure(
    "fig5",
    "figures.transformers:lab_fig5",
    "repetition accelerates recall; too much of it overfits",
    "Test accuracies for several B and several p: moderate repetition brings emergence forward, by a factor of up"
    " to 4 and 2; with too much the test accuracy stays low or rises late.",
    ("S11",),
)
plugin.figure(
    "fig6",
    "emergence/flow",
    "the loss over w and Delta a, and the flow on it",
    "The loss as a landscape over Delta a and w at T = 256, d = 64, with the flow from the origin as a white line.",
    ("S1", "S7"),
)
plugin.figure(
    "fig7",
    "emergence/flow",
    "early dynamics and their linearization",
    "w and Delta a at early times for several T, with sinh and cosh - 1 of the linearized flow.",
    ("S6",),
)
plugin.figure(
    "fig8",
    "emergence/flow",
    "w follows its equilibrium after the drop",
    "The equilibrium of w over alpha; w and its equilibrium along the flow; the two eigenvalues of the Hessian, "
    "which are largest at the transition.",
    ("S7",),
)
plugin.figure(
    "fig9",
    "figures.toy:lab_fig9",
    "SGD on the toy model and the reduced flow",
    "Loss, attention and w of five seeds of SGD at T = d = 256, close to one curve each of the reduced flow.",
    ("S1", "S2"),
)
plugin.figure(
    "fig10",
    "emergence/flow",
    "cross-sample repetition",
    "Test loss, the two parts of w and attention of the flow for several p: the repeated column is learned first.",
    ("S5",),
)
plugin.figure(
    "fig11",
    "figures.transformers:lab_fig11",
    "sharp transitions of transformers",
    "Test losses of transformers on the regression task: a plateau at 0.5 and a sharp drop, later for longer "
    "sequences.",
    ("S8",),
)
plugin.figure(
    "fig12",
    "figures.transformers:lab_fig12",
    "learning with cross-sample repetition",
    "Losses over training for several p at T = 256, above on data with repetition, below without: with repetition"
    " the drop comes earlier, and the loss without repetition falls more slowly after it.",
    ("S8",),
)
plugin.figure(
    "fig13",
    "figures.transformers:lab_fig13",
    "layers and heads",
    "Plateau lengths over d for several numbers of layers and of heads: heads delay emergence more (exponents "
    "0.06, 0.16).",
    ("S9",),
)
plugin.figure(
    "fig14",
    "figures.transformers:lab_fig14",
    "position and feature",
    "Plateau lengths over d and T if the token is found by a feature, by either, or by its position: positions "
    "are faster.",
    ("S9",),
)
plugin.figure(
    "fig15",
    "figures.transformers:lab_fig15",
    "SGD and Adam",
    "Plateau lengths over d and T of one-layer transformers: Adam is faster by up to two orders of magnitude and "
    "depends less on T and d.",
    ("S9",),
)
plugin.figure(
    "fig16",
    "figures.transformers:lab_fig16",
    "repetition accelerates recall on the training distribution",
    "The runs of Fig. 5 on data with repetition: more repetition is always faster.",
    ("S11",),
)
plugin.figure(
    "fig17",
    "figures.transformers:lab_fig17",
    "the induction head emerges",
    "Accuracy, attention from the value to its key and attention from the query to its answer rise together, in "
    "all heads of one layer each.",
    ("S12",),
)
