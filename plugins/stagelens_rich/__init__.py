"""How transformers get rich: from n-grams to the induction head."""

from __future__ import annotations

from stagelens import ClaimRef, FigureRef, ProbeRef, TaskRef, hookimpl

TASKS = (
    TaskRef(
        "rich/toy",
        "six parameters learn a 4-gram first and an induction head after a plateau; layerwise, online SGD",
        ("quick", "paper"),
        "stagelens_rich.tasks.toy:RichToy",
        default=True,
    ),
    TaskRef(
        "rich/flow",
        "the gradient flow of the second layer on the closed-form losses",
        ("quick", "paper", "scaling"),
        "stagelens_rich.flow:RichFlow",
    ),
    TaskRef(
        "rich/high-dim",
        "the same with tokens of 100 dimensions, by gradient descent or Adam",
        ("quick", "paper", "fig4"),
        "stagelens_rich.tasks.toy:HighDim",
    ),
    TaskRef(
        "rich/text",
        "a two-layer transformer with learnable ALiBi slopes on natural language",
        ("quick", "paper"),
        "stagelens_rich.tasks.text:Text",
    ),
)
PROBES = (
    ProbeRef(
        "position_norms",
        "ALiBi slopes p and the norm of (W_K, W_Q), of each head and of all together",
        ("p", "kq", "all_p", "all_kq"),
        "stagelens_rich.probes:PositionNorms",
        default=False,
    ),
)
CLAIMS = tuple(
    ClaimRef(id, title, f"stagelens_rich.claims.{where}")
    for id, where, title in (
        ("G1", "trained:FourPhases", "four phases, the 4-gram first"),
        ("G2", "trained:PreviousToken", "stage I: the first layer comes to attend to the previous token"),
        ("G3", "flow:Balance", "w_Q^2 - w_K^2 is conserved"),
        (
            "G4",
            "flow:PlateauTime",
            "the plateau lasts Theta((1 + alpha*)^2 L log(1/sigma) / w*^2): T_II and T_III",
        ),
        ("G5", "trained:Growth", "w_KQ grows exponentially on the plateau"),
        ("G6", "flow:Convergence", "the 4-gram converges as 1/t, the induction head exponentially"),
        ("G7", "sampling:ClosedForms", "the closed forms of both losses"),
        ("G8", "trained:BooleanTokens", "Boolean tokens: the same order and phases"),
        (
            "G9",
            "optimizers:AdamEscapes",
            "the 4-gram first; gradient descent stays on the plateau, Adam leaves it through several plateaus",
        ),
        (
            "G10",
            "text:PositionsFirst",
            "in a transformer on text, positions come before dot products, and the loss escapes as these are learned",
        ),
        ("G11", "flow:PartialLearning", "phase I: the 4-gram below 1% while the induction head is above 99%"),
    )
)
FIGURES = (
    FigureRef(
        "fig1",
        "Fig. 1: four phases of the toy model",
        task="rich/toy",
        paper="The 4-gram's loss falls first. The induction head's loss falls a little, stays on a plateau, and then "
        "falls suddenly, while w_KQ rises.",
        claims=("G1", "G2", "G5"),
    ),
    FigureRef(
        "fig2",
        "Fig. 2 on wikitext-2, which needs a network",
        "stagelens_rich.figures.text:fig2",
        paper="On wikitext-2 the loss has a plateau. The norm of p rises first, that of (W_K, W_Q) later and like an "
        "exponential, and the loss leaves the plateau with it.",
        claims=("G10",),
    ),
    FigureRef(
        "positions_first",
        "Fig. 2 on the help texts of Python",
        task="rich/text",
        settings={"own_token": False},
        paper="The same on wikitext-2.",
        claims=("G10",),
    ),
    FigureRef(
        "fig3",
        "Fig. 3: four phases with Boolean tokens",
        task="rich/toy",
        settings={"tokens": "boolean"},
        paper="The same phases as in Fig. 1, for tokens +1 and -1.",
        claims=("G8",),
    ),
    FigureRef(
        "fig4",
        "Fig. 4: gradient descent and Adam in 100 dimensions",
        task="rich/high-dim",
        preset="fig4",
        paper="Gradient descent learns the 4-gram and stays on the induction head's plateau. Adam leaves it, through "
        "several plateaus.",
        claims=("G9",),
    ),
    FigureRef(
        "phases",
        "Fig. 1 by the flow on the closed forms",
        task="rich/flow",
        paper="As Fig. 1.",
        claims=("G1", "G11"),
    ),
    FigureRef(
        "scaling",
        "Theorem 4: the length of the plateau",
        task="rich/flow",
        preset="scaling",
        paper="The paper has no such figure; Theorem 4 states the four power laws.",
        claims=("G4",),
    ),
    FigureRef(
        "first_layer",
        "Lemma 2: the first layer",
        task="rich/flow",
        settings={"system": "first-layer"},
        paper="The paper has no such figure; Lemma 2 states the limit.",
        claims=("G2",),
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


@hookimpl
def stagelens_register_figures() -> tuple[FigureRef, ...]:
    return FIGURES
