"""Training dynamics of in-context learning in linear attention."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, ProbeRef, TaskRef, hookimpl

SEPARATE = "linear attention learns regression in context one principal component at a time, by exact descent"
SEQUENCES = "linear or softmax attention over the raw sequences, every block trained"
FLOW = "the gradient flow of linear attention on the population loss"
PRESETS = ("quick", "paper", "fig2", "fig4", "fig5", "fig7", "fig8", "fig9")
TASKS = (
    TaskRef("linear-icl/separate", SEPARATE, PRESETS, "stagelens_linear_icl.tasks:Separate", default=True),
    TaskRef("linear-icl/sequences", SEQUENCES, ("quick", "paper", "fig3"), "stagelens_linear_icl.tasks:RawSequences"),
    TaskRef("linear-icl/flow", FLOW, ("quick", "paper"), "stagelens_linear_icl.flow:LinearFlow"),
)

PROBES = (
    ProbeRef(
        "principal_components",
        "how many principal components linear attention uses in context",
        ("count", "distance", "learned", "value", "key", "query"),
        "stagelens_linear_icl.probes:PrincipalComponents",
        default=False,
    ),
)

CLAIMS = tuple(
    ClaimRef(id, title, f"stagelens_linear_icl.claims.{target}")
    for id, target, title in (
        ("L1", "main:Drops", "the loss falls in D drops, with plateaus at the levels of Eq. 5"),
        ("L2", "main:ScalarEquation", "the value of a head follows the scalar equation through its drop"),
        ("L3", "main:Alignment", "after each drop a head's key and query point along the next eigenvector"),
        ("L4", "main:FixedPoints", "each set of eigenvectors is a fixed point, with the loss of Eq. 29"),
        ("L5", "main:ComponentRegression", "on a plateau the model is principal component regression in context"),
        ("L6", "variations:Ranks", "with rank R the long plateaus are those at m divisible by R"),
        ("L7", "variations:Softmax", "softmax attention falls in several drops too"),
        ("L8", "variations:Lazy", "larger initial weights make shorter plateaus, and the largest none"),
        ("L9", "variations:VaryingLength", "with contexts of varying length the plateaus are those of Eq. 12"),
        ("L10", "variations:RepeatedEigenvalues", "repeated eigenvalues: plateaus of any length, at the same levels"),
        ("L11", "main:LinearConservation", "training conserves k.k - q.q and k.k - v^2 in each head"),
        ("L12", "main:Durations", "the first plateau lasts tau / (lambda_1^2 v(0))"),
        ("L13", "variations:ZeroBlocks", "the blocks that start at zero stay near zero, the nearer the more sequences"),
    )
)

DRAWN = (
    ("fig1a", "the loss drops from level to level"),
    ("fig1b", "the value of one head after the other grows"),
    ("fig1c", "at each plateau one more key lies along an eigenvector"),
    ("fig2", "with rank R the plateaus at multiples of R are long"),
    ("fig4", "the larger the initial weights, the shorter the plateaus"),
    ("fig5", "the next-token loss (Eq. 9) also falls level by level"),
    ("fig7", "with rank R one head learns R eigenvectors"),
    ("fig8", "as Fig. 2, with further ranks R"),
    ("fig9", "with repeated eigenvalues plateaus have unequal lengths"),
)
FIGURES = (
    *(
        FigureRef(name, title, task="linear-icl/separate", preset=name if name in PRESETS else "")
        for name, title in DRAWN
    ),
    FigureRef("fig3", "softmax attention falls in several drops too", task="linear-icl/sequences", preset="fig3"),
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
