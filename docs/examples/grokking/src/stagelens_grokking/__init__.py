"""Modular addition: memorized first, understood later."""

from __future__ import annotations

from stagelens import ProbeRef, TaskRef, hookimpl


@hookimpl
def stagelens_register_tasks() -> list[TaskRef]:
    return [
        TaskRef(
            "grokking/addition",
            "addition modulo p: the training set is memorized long before the rest is known",
            ("quick", "paper"),
            "stagelens_grokking.tasks:Addition",
        )
    ]


@hookimpl
def stagelens_register_probes() -> list[ProbeRef]:
    return [
        ProbeRef(
            "fourier",
            "how the embedding of the numbers spreads over the frequencies of the cyclic group",
            ("power", "concentration"),
            "stagelens_grokking.probes:Fourier",
            default=False,
        )
    ]
