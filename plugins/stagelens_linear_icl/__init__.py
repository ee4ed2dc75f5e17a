"""Training dynamics of in-context learning in linear attention."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, ProbeRef, TaskRef, hookimpl

SEPARATE = "linear attention learns regression in context one principal component at a time, by exact descent"
SEQUENCES = "linear or softmax attention over the raw sequences, every block trained"
FLOW = "the gradient flow of linear attention on the population loss"
PRESETS = ("quick", "paper", "paper-fig2", "fig2", "fig4", "fig5", "fig7", "fig8", "fig9")
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

# name, what ours shows, what the paper's shows, the claims that judge it
DRAWN = (
    (
        "fig1a",
        "the loss drops from level to level",
        "Six runs whose loss falls in four drops, with plateaus on the dashed levels of Eq. 5.",
        ("L1", "L12"),
    ),
    (
        "fig1b",
        "the value of one head after the other grows",
        "The value of each head in one run rises in turn, next to the solution of Eq. 7.",
        ("L2",),
    ),
    (
        "fig1c",
        "at each plateau one more key lies along an eigenvector",
        "The keys of four heads on each plateau: one more of them has the direction of an eigenvector.",
        ("L3",),
    ),
    (
        "fig2",
        "with rank R the plateaus at multiples of R are long",
        "Six runs for each of the ranks 1, 2, 4 and 8: plateaus last at eight, four, two and one of the levels.",
        ("L6",),
    ),
    (
        "fig4",
        "the larger the initial weights, the shorter the plateaus",
        "Loss curves from small to large initial weights change from stairs to an exponential decay.",
        ("L8",),
    ),
    (
        "fig5",
        "the next-token loss (Eq. 9) also falls level by level",
        "The next-token loss falls in four drops, with plateaus on the dashed levels of Eq. 12.",
        ("L9",),
    ),
    (
        "fig7",
        "with rank R one head learns R eigenvectors",
        "Loss and values for the ranks 2, 3 and 4: a new value grows only after every R-th eigenvector.",
        ("L6",),
    ),
    (
        "fig8",
        "as Fig. 2, with further ranks R",
        "Six runs for each of the ranks 3, 5, 6 and 7: plateaus last at the multiples of the rank.",
        ("L6",),
    ),
    (
        "fig9",
        "with repeated eigenvalues plateaus have unequal lengths",
        "Six runs for each rank with two pairs of equal eigenvalues: plateaus between equals may be long or missing.",
        ("L10",),
    ),
)
SOFTMAX = "stagelens_linear_icl.figures.variations:fig3"
SOFTMAX_SHOWS = "Six runs of softmax attention whose loss falls in several drops with slower stretches between them."
DROPS = "stagelens_linear_icl.figures.main:fig6"
DROPS_SHOWS = "The loss of one run of Fig. 1a, with the times t_1 to t_D just after its drops."
FIGURES = (
    *(
        FigureRef(
            name,
            title,
            task="linear-icl/separate",
            preset=name if name in PRESETS else "",
            paper=shows,
            claims=claims,
        )
        for name, title, shows, claims in DRAWN
    ),
    FigureRef("fig3", "six runs of softmax attention, in several drops", SOFTMAX, paper=SOFTMAX_SHOWS, claims=("L7",)),
    FigureRef("fig6", "the times just after the drops", DROPS, paper=DROPS_SHOWS, claims=("L1", "L12")),
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
