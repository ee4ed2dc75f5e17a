"""Incremental learning in in-context associative recall."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "recall/simplified",
    "tasks.simplified:Simplified",
    "one head after another learns to match one more token of the query; exact population loss",
)
plugin.task(
    "recall/original",
    "tasks.sequences:Original",
    "the two-layer disentangled attention-only model on sampled sequences",
)
plugin.task(
    "recall/transformer",
    "tasks.sequences:Standard",
    "a standard two-layer attention-only transformer on the same sequences",
)
plugin.task(
    "recall/flow", "flow:RecallFlow", "the gradient flow of the simplified model, and Theorem 3.1's two equations"
)

plugin.probe(
    "recall_circuit",
    "probes:RecallCircuit",
    "beta and alpha of each head, or the centred identity in each block of Q^T K",
    ("beta", "alpha", "coefficient"),
    default=False,
)

plugin.claim("R1", "claims.trained:StagedPlateaus", "staged plateaus, one head and beta at a time")
plugin.claim("R2", "claims.trained:OrderOfBetas", "the order of learning is the order of the initial betas")
plugin.claim(
    "R3", "claims.flow:DirectionalBias", "from I_1, the first head moves along e_1 and 1 only, towards its own token"
)
plugin.claim(
    "R4", "claims.flow:FirstJump", "the first jump follows two equations, with Xi as in the proof and not as in Eq. 4"
)
plugin.claim(
    "R5", "claims.flow:RecallConservation", "f(alpha) - beta^2/4 is conserved, with the proof's sign of the last term"
)
plugin.claim("R6", "claims.flow:FirstPlateauLength", "the first plateau lasts O(1/epsilon)")
plugin.claim(
    "R7", "claims.flow:LateGrowth", "after the jump alpha grows like log log t, not like log t or a power of t"
)
plugin.claim("R8", "claims.flow:LaterJumps", "later jumps are first jumps of lower order")
plugin.claim(
    "R9",
    "claims.trained:OtherModels",
    "the original model behaves as the simplified one, and cross-entropy as dot-product",
)

plugin.figure(
    "staged_learning",
    "recall/simplified",
    "Fig. 1: stages, betas and attention",
    "The loss falls in three steps with plateaus between them, and one beta rises at each step. Attention at the "
    "times 800, 1750 and 4500 shows one more head on its own token each time.",
    ("R1",),
)
plugin.figure(
    "fig2",
    "figures.task:fig2",
    "Fig. 2: one sequence of the task",
    "A drawing of the task of order 2: permutations of 0 and 1 as rectangles, each followed by a response A or B "
    "as a triangle, and a question mark after the query.",
)
plugin.figure(
    "fig3",
    "figures.task:fig3",
    "Fig. 3: the second layer of the solution, and of a trained model",
    "A drawing of the second layer's matrix Q^T K at the constructed solution: blocks above the diagonal.",
    ("R9",),
)
plugin.figure(
    "fig4",
    "figures.stages:fig4",
    "Fig. 4: the same with the betas in the opposite order",
    "Heads are learned in the order of their initial betas, whatever that order is.",
    ("R2",),
)
plugin.figure(
    "first_jump",
    "recall/flow",
    "Theorem 3.1: growth, conservation law and escape time of the first jump",
    "The paper has no such figure; the panels show what Theorem 3.1 and the text after it state.",
    ("R4", "R5", "R6"),
    settings={"betas": [0.1, 0.0, 0.0]},
)
