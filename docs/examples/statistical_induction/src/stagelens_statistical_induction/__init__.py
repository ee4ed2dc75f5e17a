"""In-context learning of Markov chains: unigram statistics first, bigram statistics later."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, TaskRef, hookimpl

PACKAGE = "stagelens_statistical_induction"
TASKS = (
    TaskRef(
        "statistical-induction/chains",
        "every sequence is a Markov chain of its own, which the model learns in context",
        ("quick", "paper"),
        f"{PACKAGE}.tasks:Chains",
    ),
)
CLAIMS = (
    ClaimRef(
        "SI1",
        "the model predicts from unigram counts before it predicts from bigram counts",
        f"{PACKAGE}.claims.strategies:UnigramsFirst",
    ),
    ClaimRef(
        "SI2",
        "a head of layer 0 attends to the previous token, a head of layer 1 to what followed this token",
        f"{PACKAGE}.claims.strategies:TwoLayerCircuit",
    ),
)
FIGURES = (FigureRef("fig1", "distance from each strategy over the training", f"{PACKAGE}.figures.strategies:fig1"),)


@hookimpl
def stagelens_register_tasks() -> tuple[TaskRef, ...]:
    return TASKS


@hookimpl
def stagelens_register_claims() -> tuple[ClaimRef, ...]:
    return CLAIMS


@hookimpl
def stagelens_register_figures() -> tuple[FigureRef, ...]:
    return FIGURES
