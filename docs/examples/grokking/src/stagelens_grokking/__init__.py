"""Modular addition: memorized first, understood later."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.task(
    "grokking/addition",
    "tasks:Addition",
    "addition modulo p: the training set is memorized long before the rest is known",
)

plugin.probe(
    "fourier",
    "probes:Fourier",
    "how the embedding of the numbers spreads over the frequencies of the cyclic group",
    ("power", "concentration"),
    default=False,
)
