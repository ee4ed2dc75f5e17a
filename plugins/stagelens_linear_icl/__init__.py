"""Training dynamics of in-context learning in linear attention."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "linear-icl/separate",
    "tasks:Separate",
    "linear attention learns regression in context one principal component at a time, by exact descent",
    ("quick", "paper", "paper-fig2", "fig2", "fig4", "fig5", "fig7", "fig8", "fig9"),
)
plugin.task(
    "linear-icl/sequences",
    "tasks:RawSequences",
    "linear or softmax attention over the raw sequences, every block trained",
    ("quick", "paper", "fig3"),
)
plugin.task("linear-icl/flow", "flow:LinearFlow", "the gradient flow of linear attention on the population loss")

plugin.probe(
    "principal_components",
    "probes:PrincipalComponents",
    "how many principal components linear attention uses in context",
    ("count", "distance", "learned", "value", "key", "query"),
    default=False,
)

plugin.claim("L1", "claims.main:Drops", "the loss falls in D drops, with plateaus at the levels of Eq. 5")
plugin.claim("L2", "claims.main:ScalarEquation", "the value of a head follows the scalar equation through its drop")
plugin.claim("L3", "claims.main:Alignment", "after each drop a head's key and query point along the next eigenvector")
plugin.claim("L4", "claims.main:FixedPoints", "each set of eigenvectors is a fixed point, with the loss of Eq. 29")
plugin.claim(
    "L5", "claims.main:ComponentRegression", "on a plateau the model is principal component regression in context"
)
plugin.claim("L6", "claims.variations:Ranks", "with rank R the long plateaus are those at m divisible by R")
plugin.claim("L7", "claims.variations:Softmax", "softmax attention falls in several drops too")
plugin.claim("L8", "claims.variations:Lazy", "larger initial weights make shorter plateaus, and the largest none")
plugin.claim(
    "L9", "claims.variations:VaryingLength", "with contexts of varying length the plateaus are those of Eq. 12"
)
plugin.claim(
    "L10", "claims.variations:RepeatedEigenvalues", "repeated eigenvalues: plateaus of any length, at the same levels"
)
plugin.claim("L11", "claims.main:LinearConservation", "training conserves k.k - q.q and k.k - v^2 in each head")
plugin.claim("L12", "claims.main:Durations", "the first plateau lasts tau / (lambda_1^2 v(0))")
plugin.claim(
    "L13", "claims.variations:ZeroBlocks", "the blocks that start at zero stay near zero, the nearer the more sequences"
)

plugin.figure(
    "fig1a",
    "linear-icl/separate",
    "the loss drops from level to level",
    "Six runs whose loss falls in four drops, with plateaus on the dashed levels of Eq. 5.",
    ("L1", "L12"),
)
plugin.figure(
    "fig1b",
    "linear-icl/separate",
    "the value of one head after the other grows",
    "The value of each head in one run rises in turn, next to the solution of Eq. 7.",
    ("L2",),
)
plugin.figure(
    "fig1c",
    "linear-icl/separate",
    "at each plateau one more key lies along an eigenvector",
    "The keys of four heads on each plateau: one more of them has the direction of an eigenvector.",
    ("L3",),
)
plugin.figure(
    "fig2",
    "linear-icl/separate",
    "with rank R the plateaus at multiples of R are long",
    "Six runs for each of the ranks 1, 2, 4 and 8: plateaus last at eight, four, two and one of the levels.",
    ("L6",),
)
plugin.figure(
    "fig4",
    "linear-icl/separate",
    "the larger the initial weights, the shorter the plateaus",
    "Loss curves from small to large initial weights change from stairs to an exponential decay.",
    ("L8",),
)
plugin.figure(
    "fig5",
    "linear-icl/separate",
    "the next-token loss (Eq. 9) also falls level by level",
    "The next-token loss falls in four drops, with plateaus on the dashed levels of Eq. 12.",
    ("L9",),
)
plugin.figure(
    "fig7",
    "linear-icl/separate",
    "with rank R one head learns R eigenvectors",
    "Loss and values for the ranks 2, 3 and 4: a new value grows only after every R-th eigenvector.",
    ("L6",),
)
plugin.figure(
    "fig8",
    "linear-icl/separate",
    "as Fig. 2, with further ranks R",
    "Six runs for each of the ranks 3, 5, 6 and 7: plateaus last at the multiples of the rank.",
    ("L6",),
)
plugin.figure(
    "fig9",
    "linear-icl/separate",
    "with repeated eigenvalues plateaus have unequal lengths",
    "Six runs for each rank with two pairs of equal eigenvalues: plateaus between equals may be long or missing.",
    ("L10",),
)
plugin.figure(
    "fig3",
    "figures.variations:fig3",
    "six runs of softmax attention, in several drops",
    "Six runs of softmax attention whose loss falls in several drops with slower stretches between them.",
    ("L7",),
)
plugin.figure(
    "fig6",
    "figures.main:fig6",
    "the times just after the drops",
    "The loss of one run of Fig. 1a, with the times t_1 to t_D just after its drops.",
    ("L1", "L12"),
)
