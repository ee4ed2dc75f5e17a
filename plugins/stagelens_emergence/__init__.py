"""The emergence of sparse attention: plateaus are power laws of the data, and repetition shortens them."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, ProbeRef, TaskRef, hookimpl

TASKS = (
    TaskRef(
        "emergence/toy",
        "one attention vector and one weight matrix learn to read a single token; exact expected loss",
        ("quick", "paper", "fig9"),
        "stagelens_emergence.tasks.toy:EmergenceToy",
        default=True,
    ),
    TaskRef(
        "emergence/flow",
        "the toy model's gradient flow in two or three variables",
        ("quick", "paper", "fig1", "fig2", "fig6", "fig7", "fig8", "fig10"),
        "stagelens_emergence.flow:ReducedFlow",
    ),
    TaskRef(
        "emergence/regression",
        "single-location regression by a transformer on continuous tokens",
        ("quick", "paper"),
        "stagelens_emergence.tasks.regression:Regression",
    ),
    TaskRef(
        "emergence/recall",
        "key-value recall: an induction head emerges, and repetition accelerates it",
        ("quick", "paper"),
        "stagelens_emergence.tasks.recall:KeyValueRecall",
    ),
)
PROBES = (
    ProbeRef(
        "single_location",
        "W along the target, and the attention to the relevant token",
        ("w", "w_repeated", "w_rest", "alpha", "relevant"),
        "stagelens_emergence.probes:SingleLocation",
        default=False,
    ),
    ProbeRef(
        "plateau_length",
        "steps until the loss has fallen to a fifth of its start",
        ("steps",),
        "stagelens_emergence.probes:PlateauSteps",
        default=False,
    ),
    ProbeRef(
        "relevant_attention",
        "attention from the last token to the relevant one, per layer and head",
        ("mass",),
        "stagelens_emergence.probes:RelevantAttention",
        default=False,
    ),
    ProbeRef(
        "key_value",
        "copying and selecting attention per layer and head; accuracy on the training distribution",
        ("copying", "selecting", "train_loss", "train_accuracy"),
        "stagelens_emergence.probes:KeyValue",
        passes="1",
        default=False,
    ),
)
CLAIMS = tuple(
    ClaimRef(id, title, f"stagelens_emergence.claims.{where}")
    for id, where, title in (
        ("S1", "toy:WeightsFirst", "weights first, attention second, then both"),
        ("S2", "toy:Reduction", "the reduced dynamics match SGD on the whole toy model"),
        ("S3", "toy:PowerLaw", "the plateau's length is a power law of T and d (T = 128 to 2048, d = 16 to 256)"),
        ("S4", "toy:InContext", "in-context repetition divides T"),
        (
            "S5",
            "toy:CrossSample",
            "cross-sample repetition shortens the plateau as linearized (T = 4096, d = 16 to 256, p up to 0.5)",
        ),
        ("S6", "toy:Linearization", "w = sinh and Delta a = cosh - 1 early on, and the escape time"),
        ("S7", "toy:LatePhase", "late, w is at its equilibrium and the Hessian splits"),
        ("S8", "regression:Laws", "transformers: T and d delay emergence, B and p accelerate it"),
        ("S9", "regression:Ablations", "optimizer, position, feature, heads and layers"),
        ("S10", "recall:Emergence", "recall emerges; more pairs and more tokens delay it"),
        ("S11", "recall:Repetition", "repetition accelerates recall; too much of it overfits"),
        ("S12", "recall:Circuit", "copying and selecting attention rise together with accuracy"),
    )
)
# Name, task or function, title, what the paper's figure shows, and the claims that judge it.
DRAWN = (
    (
        "fig1",
        "emergence/flow",
        "sparse attention emerges; the plateau's length is a power law of T and d",
        "A sketch of the task; test losses that stay flat and then drop, later for larger d; w and the attention "
        "of one run; plateau lengths over T and d, close to a power law (R2 0.999).",
        ("S1", "S3"),
    ),
    (
        "fig2",
        "emergence/flow",
        "repetition shortens the plateau",
        "Plateau lengths over d, left for several B with a law in T/B and d, right for several p with the law "
        "that the linearization predicts.",
        ("S4", "S5"),
    ),
    (
        "fig3",
        "transformers:lab_fig3",
        "plateau length of transformers in T, d, B and p",
        "Plateau lengths of a two-layer transformer over d: for several T and several B on the lines of one power"
        " law (d^1.29 T^0.80 B^-0.80), and for several p without a law.",
        ("S8",),
    ),
    (
        "fig4",
        "transformers:lab_fig4",
        "recall emerges, later with more pairs and more tokens",
        "Loss and accuracy of recall with one sharp transition, later for more pairs; emergence times over the "
        "number of tokens on the lines of a power law (tokens^0.79 pairs^2.25).",
        ("S10",),
    ),
    (
        "fig5",
        "transformers:lab_fig5",
        "repetition accelerates recall; too much of it overfits",
        "Test accuracies for several B and several p: moderate repetition brings emergence forward, by a factor "
        "of up to 4 and 2; with too much the test accuracy stays low or rises late.",
        ("S11",),
    ),
    (
        "fig6",
        "emergence/flow",
        "the loss over w and Delta a, and the flow on it",
        "The loss as a landscape over Delta a and w at T = 256, d = 64, with the flow from the origin as a white line.",
        ("S1", "S7"),
    ),
    (
        "fig7",
        "emergence/flow",
        "early dynamics and their linearization",
        "w and Delta a at early times for several T, with sinh and cosh - 1 of the linearized flow.",
        ("S6",),
    ),
    (
        "fig8",
        "emergence/flow",
        "w follows its equilibrium after the drop",
        "The equilibrium of w over alpha; w and its equilibrium along the flow; the two eigenvalues of the "
        "Hessian, which are largest at the transition.",
        ("S7",),
    ),
    (
        "fig9",
        "toy:lab_fig9",
        "SGD on the toy model and the reduced flow",
        "Loss, attention and w of five seeds of SGD at T = d = 256, close to one curve each of the reduced flow.",
        ("S1", "S2"),
    ),
    (
        "fig10",
        "emergence/flow",
        "cross-sample repetition",
        "Test loss, the two parts of w and attention of the flow for several p: the repeated column is learned first.",
        ("S5",),
    ),
    (
        "fig11",
        "transformers:lab_fig11",
        "sharp transitions of transformers",
        "Test losses of transformers on the regression task: a plateau at 0.5 and a sharp drop, later for longer "
        "sequences.",
        ("S8",),
    ),
    (
        "fig12",
        "transformers:lab_fig12",
        "learning with cross-sample repetition",
        "Losses over training for several p at T = 256, above on data with repetition, below without: with "
        "repetition the drop comes earlier, and the loss without repetition falls more slowly after it.",
        ("S8",),
    ),
    (
        "fig13",
        "transformers:lab_fig13",
        "layers and heads",
        "Plateau lengths over d for several numbers of layers and of heads: heads delay emergence more (exponents"
        " 0.06, 0.16).",
        ("S9",),
    ),
    (
        "fig14",
        "transformers:lab_fig14",
        "position and feature",
        "Plateau lengths over d and T if the token is found by a feature, by either, or by its position: "
        "positions are faster.",
        ("S9",),
    ),
    (
        "fig15",
        "transformers:lab_fig15",
        "SGD and Adam",
        "Plateau lengths over d and T of one-layer transformers: Adam is faster by up to two orders of magnitude "
        "and depends less on T and d.",
        ("S9",),
    ),
    (
        "fig16",
        "transformers:lab_fig16",
        "repetition accelerates recall on the training distribution",
        "The runs of Fig. 5 on data with repetition: more repetition is always faster.",
        ("S11",),
    ),
    (
        "fig17",
        "transformers:lab_fig17",
        "the induction head emerges",
        "Accuracy, attention from the value to its key and attention from the query to its answer rise together, "
        "in all heads of one layer each.",
        ("S12",),
    ),
)
FIGURES = tuple(
    FigureRef(
        name,
        title,
        target=f"stagelens_emergence.figures.{where}" if ":" in where else "",
        task="" if ":" in where else where,
        preset="" if ":" in where else name,
        paper=paper,
        claims=claims,
    )
    for name, where, title, paper, claims in DRAWN
)


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_probes() -> tuple[ProbeRef, ...]:
    return PROBES


@hookimpl
def stagelens_register_claims() -> tuple[ClaimRef, ...]:
    return CLAIMS


@hookimpl
def stagelens_register_figures() -> tuple[FigureRef, ...]:
    return FIGURES
