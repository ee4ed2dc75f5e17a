"""Incremental learning of sparse attention patterns on a high-order Markov chain."""

from __future__ import annotations

from stagelens import hookimpl
from stagelens.lazy import TaskRef

TASKS = (
    TaskRef(
        "markov/minimal",
        "attention heads compete, then share out the positions of a high-order Markov chain",
        ("quick", "paper"),
        "stagelens_markov.tasks:Minimal",
        default=True,
    ),
)


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS
