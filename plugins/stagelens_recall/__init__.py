"""Incremental learning in in-context associative recall."""

from __future__ import annotations

from stagelens import hookimpl
from stagelens.lazy import ProbeRef, TaskRef

TASKS = (
    TaskRef(
        "recall/simplified",
        "one head after another learns to match one more token of the query; exact population loss",
        ("quick", "paper"),
        "stagelens_recall.tasks:Simplified",
        default=True,
    ),
    TaskRef(
        "recall/flow",
        "the gradient flow of the simplified model, and Theorem 3.1's two equations",
        ("quick", "paper"),
        "stagelens_recall.flow:GradientFlow",
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


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_probes() -> tuple[ProbeRef, ...]:
    return PROBES
