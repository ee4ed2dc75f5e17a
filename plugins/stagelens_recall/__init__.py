"""Incremental learning in in-context associative recall."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, ProbeRef, TaskRef, hookimpl

TASKS = (
    TaskRef(
        "recall/simplified",
        "one head after another learns to match one more token of the query; exact population loss",
        ("quick", "paper"),
        "stagelens_recall.tasks.simplified:Simplified",
        default=True,
    ),
    TaskRef(
        "recall/original",
        "the two-layer disentangled attention-only model on sampled sequences",
        ("quick", "paper"),
        "stagelens_recall.tasks.sequences:Original",
    ),
    TaskRef(
        "recall/transformer",
        "a standard two-layer attention-only transformer on the same sequences",
        ("quick", "paper"),
        "stagelens_recall.tasks.sequences:Standard",
    ),
    TaskRef(
        "recall/flow",
        "the gradient flow of the simplified model, and Theorem 3.1's two equations",
        ("quick", "paper"),
        "stagelens_recall.flow:RecallFlow",
    ),
)
PROBES = (
    ProbeRef(
        "recall_circuit",
        "beta and alpha of each head, or the centred identity in each block of Q^T K",
        ("beta", "alpha", "coefficient"),
        "stagelens_recall.probes:RecallCircuit",
        default=False,
    ),
)
CLAIMS = tuple(
    ClaimRef(id, title, f"stagelens_recall.claims.{where}")
    for id, where, title in (
        ("R1", "trained:StagedPlateaus", "staged plateaus, one head and beta at a time"),
        ("R2", "trained:OrderOfBetas", "the order of learning is the order of the initial betas"),
        ("R3", "flow:DirectionalBias", "from I_1, the first head moves along e_1 and 1 only, towards its own token"),
        ("R4", "flow:FirstJump", "the first jump follows two equations, with Xi as in the proof and not as in Eq. 4"),
        ("R5", "flow:RecallConservation", "f(alpha) - beta^2/4 is conserved, with the proof's sign of the last term"),
        ("R6", "flow:FirstPlateauLength", "the first plateau lasts O(1/epsilon)"),
        ("R7", "flow:LateGrowth", "after the jump alpha grows like log log t, not like log t or a power of t"),
        ("R8", "flow:LaterJumps", "later jumps are first jumps of lower order"),
        (
            "R9",
            "trained:OtherModels",
            "the original model behaves as the simplified one, and cross-entropy as dot-product",
        ),
    )
)
FIGURES = (
    FigureRef(
        "staged_learning",
        "Fig. 1: stages, betas and attention",
        task="recall/simplified",
        paper="The loss falls in three steps with plateaus between them, and one beta rises at each step. Attention at "
        "the times 800, 1750 and 4500 shows one more head on its own token each time.",
        claims=("R1",),
    ),
    FigureRef(
        "fig2",
        "Fig. 2: one sequence of the task",
        "stagelens_recall.figures.task:fig2",
        paper="A drawing of the task of order 2: permutations of 0 and 1 as rectangles, each followed by a response A "
        "or B as a triangle, and a question mark after the query.",
    ),
    FigureRef(
        "fig3",
        "Fig. 3: the second layer of the solution, and of a trained model",
        "stagelens_recall.figures.task:fig3",
        paper="A drawing of the second layer's matrix Q^T K at the constructed solution: blocks above the diagonal.",
        claims=("R9",),
    ),
    FigureRef(
        "fig4",
        "Fig. 4: the same with the betas in the opposite order",
        "stagelens_recall.figures.stages:fig4",
        paper="Heads are learned in the order of their initial betas, whatever that order is.",
        claims=("R2",),
    ),
    FigureRef(
        "first_jump",
        "Theorem 3.1: growth, conservation law and escape time of the first jump",
        task="recall/flow",
        settings={"betas": [0.1, 0.0, 0.0]},
        paper="The paper has no such figure; the panels show what Theorem 3.1 and the text after it state.",
        claims=("R4", "R5", "R6"),
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
