"""Training dynamics of in-context learning in linear attention."""

from __future__ import annotations

from stagelens import hookimpl
from stagelens.lazy import ProbeRef, TaskRef

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


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_probes() -> tuple[ProbeRef, ...]:
    return PROBES
