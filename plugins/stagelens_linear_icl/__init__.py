"""Training dynamics of in-context learning in linear attention."""

from __future__ import annotations

from stagelens import hookimpl
from stagelens.lazy import ClaimRef, ProbeRef, TaskRef

TASKS = (
    TaskRef(
        "linear-icl/separate",
        "linear attention learns regression in context one principal component at a time, by exact descent",
        ("quick", "paper", "fig2", "fig4", "fig5", "fig7", "fig8", "fig9"),
        "stagelens_linear_icl.tasks:Separate",
        default=True,
    ),
    TaskRef(
        "linear-icl/sequences",
        "linear or softmax attention over the raw sequences, every block trained",
        ("quick", "paper", "fig3"),
        "stagelens_linear_icl.tasks:RawSequences",
    ),
    TaskRef(
        "linear-icl/flow",
        "the gradient flow of linear attention on the population loss",
        ("quick", "paper"),
        "stagelens_linear_icl.tasks:LinearFlow",
    ),
)

PROBES = (
    ProbeRef(
        "principal_components",
        "how many principal components linear attention uses in context",
        ("count", "distance", "learned", "value", "key", "query"),
        "stagelens_linear_icl.probe:PrincipalComponents",
        default=False,
    ),
)

CLAIMS = (
    ClaimRef("L1", "the loss falls in D drops, and rests where Eq. 5 says", "stagelens_linear_icl.claims:Drops"),
    ClaimRef(
        "L2",
        "the value of a head follows the scalar equation through its drop",
        "stagelens_linear_icl.claims:ScalarEquation",
    ),
    ClaimRef(
        "L3",
        "after each drop a head's key and query point along the next eigenvector",
        "stagelens_linear_icl.claims:Alignment",
    ),
    ClaimRef(
        "L4",
        "each set of eigenvectors is a fixed point, with the loss of Eq. 29",
        "stagelens_linear_icl.claims:FixedPoints",
    ),
    ClaimRef(
        "L5",
        "on a plateau the model is principal component regression in context",
        "stagelens_linear_icl.claims:ComponentRegression",
    ),
    ClaimRef(
        "L6",
        "with rank R the long plateaus are those at m divisible by R",
        "stagelens_linear_icl.variation_claims:Ranks",
    ),
    ClaimRef("L7", "softmax attention falls in several drops too", "stagelens_linear_icl.variation_claims:Softmax"),
    ClaimRef(
        "L8",
        "larger initial weights make shorter plateaus, and the largest none",
        "stagelens_linear_icl.variation_claims:Lazy",
    ),
    ClaimRef(
        "L9",
        "with contexts of varying length the plateaus are those of Eq. 12",
        "stagelens_linear_icl.variation_claims:VaryingLength",
    ),
    ClaimRef(
        "L10",
        "repeated eigenvalues: plateaus of any length, at the same levels",
        "stagelens_linear_icl.variation_claims:RepeatedEigenvalues",
    ),
    ClaimRef(
        "L11", "training conserves k.k - q.q and k.k - v^2 in each head", "stagelens_linear_icl.claims:Conservation"
    ),
    ClaimRef("L12", "the first plateau lasts tau / (lambda_1^2 v(0))", "stagelens_linear_icl.claims:Durations"),
    ClaimRef(
        "L13",
        "the blocks that start at zero stay near it, the more sequences the nearer",
        "stagelens_linear_icl.variation_claims:ZeroBlocks",
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
