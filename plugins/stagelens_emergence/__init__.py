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
        ("S3", "toy:PowerLaw", "the plateau's length is a power law of T and d"),
        ("S4", "toy:InContext", "in-context repetition divides T"),
        ("S5", "toy:CrossSample", "cross-sample repetition shortens the plateau as the linearization predicts"),
        ("S6", "toy:Linearization", "w = sinh and Delta a = cosh - 1 early on, and the escape time"),
        ("S7", "toy:LatePhase", "late, w is at its equilibrium and the Hessian splits"),
        ("S8", "regression:Laws", "transformers: T and d delay emergence, B and p accelerate it"),
        ("S9", "regression:Ablations", "optimizer, position, feature, heads and layers"),
        ("S10", "recall:Emergence", "recall emerges; more pairs and more tokens delay it"),
        ("S11", "recall:Repetition", "repetition accelerates recall; too much of it overfits"),
        ("S12", "recall:Circuit", "copying and selecting attention rise together with accuracy"),
    )
)
FIGURES = (
    *(
        FigureRef(name, title, task=task, preset=name)
        for name, task, title in (
            ("fig1", "emergence/flow", "sparse attention emerges; the plateau's length is a power law of T and d"),
            ("fig2", "emergence/flow", "repetition shortens the plateau"),
            ("fig6", "emergence/flow", "the loss over w and Delta a, and the flow on it"),
            ("fig7", "emergence/flow", "early dynamics and their linearization"),
            ("fig8", "emergence/flow", "w follows its equilibrium after the drop"),
            ("fig9", "emergence/toy", "SGD on the toy model and the reduced flow"),
            ("fig10", "emergence/flow", "cross-sample repetition"),
        )
    ),
    FigureRef("fig11", "sharp transitions of transformers", task="emergence/regression"),
    FigureRef("fig17", "the induction head emerges", task="emergence/recall"),
    *(
        FigureRef(name, title, f"stagelens_emergence.figures.transformers:lab_{name}")
        for name, title in (
            ("fig3", "plateau length of transformers in T, d, B and p"),
            ("fig4", "recall emerges, later with more pairs and more tokens"),
            ("fig5", "repetition accelerates recall; too much of it overfits (with Fig. 16)"),
            ("fig13", "layers and heads"),
            ("fig14", "position and feature"),
            ("fig15", "SGD and Adam"),
        )
    ),
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
