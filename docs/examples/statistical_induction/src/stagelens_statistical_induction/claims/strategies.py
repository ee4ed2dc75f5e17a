"""The claims about the strategies, and about the circuit of the last one."""

from __future__ import annotations

from collections.abc import Iterable

from stagelens import Check, Claim
from stagelens.claims import Lab, at_least, at_most, equal, per_seed

from stagelens_statistical_induction.claims.measures import remaining, roles, strategies_in_order

TASK = "statistical-induction/chains"


class UnigramsFirst(Claim):
    id, title = "SI1", "the model predicts from unigram counts before it predicts from bigram counts"
    reference = "Fig. 2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed(TASK)
        order = ["uniform", "unigram", "bigram"]
        yield per_seed(equal, "nearest strategies, in order", runs, order, "Fig. 2", of=strategies_in_order)
        yield per_seed(at_most, "distance from bigrams / from unigrams", runs, 0.5, "Fig. 2", of=remaining)


class TwoLayerCircuit(Claim):
    id, title = "SI2", "a head of layer 0 attends to the previous token, a head of layer 1 to what followed this token"
    reference = "Fig. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed(TASK)
        for layer, role in enumerate(("previous token", "induction target")):
            count = {seed: roles(run, layer).count(role) for seed, run in runs.items()}
            yield per_seed(at_least, f"heads of layer {layer} at the {role}", count, 1, "Fig. 3")
