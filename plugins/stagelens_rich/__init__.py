"""How transformers get rich: from n-grams to the induction head."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "rich/toy",
    "tasks.toy:RichToy",
    "six parameters learn a 4-gram first and an induction head after a plateau; layerwise, online SGD",
)
plugin.task(
    "rich/flow",
    "flow:RichFlow",
    "the gradient flow of the second layer on the closed-form losses",
    ("quick", "paper", "scaling"),
)
plugin.task(
    "rich/high-dim",
    "tasks.toy:HighDim",
    "the same with tokens of 100 dimensions, by gradient descent or Adam",
    ("quick", "paper", "fig4"),
)
plugin.task("rich/text", "tasks.text:Text", "a two-layer transformer with learnable ALiBi slopes on natural language")

plugin.probe(
    "position_norms",
    "probes:PositionNorms",
    "ALiBi slopes p and the norm of (W_K, W_Q), of each head and of all together",
    ("p", "kq", "all_p", "all_kq"),
    default=False,
)

plugin.claim("G1", "claims.trained:FourPhases", "four phases, the 4-gram first")
plugin.claim("G2", "claims.trained:PreviousToken", "stage I: the first layer comes to attend to the previous token")
plugin.claim("G3", "claims.flow:Balance", "w_Q^2 - w_K^2 is conserved")
plugin.claim(
    "G4", "claims.flow:PlateauTime", "the plateau lasts Theta((1 + alpha*)^2 L log(1/sigma) / w*^2): T_II and T_III"
)
plugin.claim("G5", "claims.trained:Growth", "w_KQ grows exponentially on the plateau")
plugin.claim("G6", "claims.flow:Convergence", "the 4-gram converges as 1/t, the induction head exponentially")
plugin.claim("G7", "claims.sampling:ClosedForms", "the closed forms of both losses")
plugin.claim("G8", "claims.trained:BooleanTokens", "Boolean tokens: the same order and phases")
plugin.claim(
    "G9",
    "claims.optimizers:AdamEscapes",
    "the 4-gram first; gradient descent stays on the plateau, Adam leaves it through several plateaus",
)
plugin.claim(
    "G10",
    "claims.text:PositionsFirst",
    "in a transformer on text, positions come before dot products, and the loss escapes as these are learned",
)
plugin.claim("G11", "claims.flow:PartialLearning", "phase I: the 4-gram below 1% while the induction head is above 99%")

plugin.figure(
    "fig1",
    "rich/toy",
    "Fig. 1: four phases of the toy model",
    "The 4-gram's loss falls first. The induction head's loss falls a little, stays on a plateau, and then falls "
    "suddenly, while w_KQ rises.",
    ("G1", "G2", "G5"),
)
plugin.figure(
    "fig2",
    "figures.text:fig2",
    "Fig. 2 on wikitext-2, which needs a network",
    "On wikitext-2 the loss has a plateau. The norm of p rises first, that of (W_K, W_Q) later and like an "
    "exponential, and the loss leaves the plateau with it.",
    ("G10",),
)
plugin.figure(
    "positions_first",
    "rich/text",
    "Fig. 2 on the help texts of Python",
    "The same on wikitext-2.",
    ("G10",),
    settings={"own_token": False},
)
plugin.figure(
    "fig3",
    "rich/toy",
    "Fig. 3: four phases with Boolean tokens",
    "The same phases as in Fig. 1, for tokens +1 and -1.",
    ("G8",),
    settings={"tokens": "boolean"},
)
plugin.figure(
    "fig4",
    "rich/high-dim",
    "Fig. 4: gradient descent and Adam in 100 dimensions",
    "Gradient descent learns the 4-gram and stays on the induction head's plateau. Adam leaves it, through "
    "several plateaus.",
    ("G9",),
)
plugin.figure("phases", "rich/flow", "Fig. 1 by the flow on the closed forms", "As Fig. 1.", ("G1", "G11"))
plugin.figure(
    "scaling",
    "rich/flow",
    "Theorem 4: the length of the plateau",
    "The paper has no such figure; Theorem 4 states the four power laws.",
    ("G4",),
)
plugin.figure(
    "first_layer",
    "rich/flow",
    "Lemma 2: the first layer",
    "The paper has no such figure; Lemma 2 states the limit.",
    ("G2",),
    settings={"system": "first-layer"},
)
