"""In-context learning of Markov chains: unigram statistics first, bigram statistics later."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "statistical-induction/chains",
    "tasks:Chains",
    "every sequence is a Markov chain of its own, which the model learns in context",
)

plugin.claim(
    "SI1",
    "claims.strategies:UnigramsFirst",
    "the model predicts from unigram counts before it predicts from bigram counts",
)
plugin.claim(
    "SI2",
    "claims.strategies:TwoLayerCircuit",
    "a head of layer 0 attends to the previous token, a head of layer 1 to what followed this token",
)

plugin.figure("fig1", "figures.strategies:fig1", "distance from each strategy over the training")
