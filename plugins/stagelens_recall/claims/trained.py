"""The claims about trained models: R1, R2 and R9."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

import numpy as np

from stagelens import Check, Claim, Timeline
from stagelens.claims import Lab, at_least, at_most, close, equal, per_seed, reached
from stagelens_recall import theory
from stagelens_recall.claims.measures import (
    ORDER,
    RESPONSES,
    active_heads,
    drops,
    levels,
    matched_sets,
    order_of_learning,
    own_attention,
)
from stagelens_recall.predictions import partial_matches

BETAS = (0.1, 0.03, 0.01)
ONE_HOT = 0.8  # least attention of a learned head to its own token
DIFFUSE = 0.35  # largest attention of any other head to its own token; uniform attention has 1/k = 0.25
PROBES = ("head_specialization", "recall_circuit")
LEVEL = 0.1  # ours: tolerance of a plateau's level; a mean over the 256 sequences of an evaluation has an error of 4%
NOISE = {"init_scale": 0.001}  # of the initial w, so that seeds differ; well below the smallest beta


class StagedPlateaus(Claim):
    """Compares the plateaus with A.4: their number, their levels, the active heads, and the attention."""

    id, title, reference = "R1", "staged plateaus, one head and beta at a time", "Fig. 1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        runs = lab.each_seed("recall/simplified", NOISE, probes=PROBES)
        found = {seed: run.timeline for seed, run in runs.items()}
        expected = [theory.plateau_loss(ORDER, RESPONSES, j) for j in range(ORDER)]
        where, theirs = self.reference, f"A.4; {self.reference}"
        plateaus = {seed: levels(timeline) for seed, timeline in found.items()}
        yield per_seed(equal, "number of plateaus of the loss", plateaus, ORDER, where, of=len)
        if any(len(level) != ORDER for level in plateaus.values()):
            return
        what = "losses on the plateaus with 0, 1 and 2 tokens matched"
        yield per_seed(close, what, plateaus, expected[:-1], 0.01, theirs, of=lambda level: level[:-1])
        what = "loss on the last plateau over the loss on the first"
        yield per_seed(at_most, what, plateaus, 0.01, theirs, of=lambda level: level[-1] / expected[0])
        what = "heads whose beta has left zero, on each plateau"
        yield per_seed(equal, what, found, ["none", "1", "1,2", "1,2,3"], where, of=active_heads)
        own = {seed: own_attention(timeline) for seed, timeline in found.items()}
        what = "attention of each head to its own token, on the plateau after its drop"
        yield per_seed(at_least, what, own, ONE_HOT, where, of=lambda mass: [mass[h, h - 1] for h in range(1, ORDER)])
        what = "attention of each head to its own token, on the plateau before its drop"
        yield per_seed(at_most, what, own, DIFFUSE, where, of=lambda mass: [mass[h, h] for h in range(ORDER - 1)])


class OrderOfBetas(Claim):
    """Compares the order of learning with the order of the betas, for several orders."""

    id, title, reference = "R2", "the order of learning is the order of the initial betas", "Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for betas in permutations(BETAS):
            settings = {**NOISE, "betas": list(betas), "lr": 1.0, "steps": 700}
            runs = lab.each_seed("recall/simplified", settings, probes=PROBES[1:])
            what = f"order in which heads learn, from betas {', '.join(f'{b:g}' for b in betas)}"
            expected = (np.argsort(betas)[::-1] + 1).tolist()
            orders = {seed: order_of_learning(run.timeline) for seed, run in runs.items()}
            yield per_seed(equal, what, reached_orders(orders), expected, self.reference)


def reached_orders(orders: dict[int, list[int]]) -> dict[int, list[int] | str]:
    """Returns `orders` with `none` for a seed in which no head learned."""
    return {seed: reached(order, "none") for seed, order in orders.items()}


# How the original model is trained, by budget. The paper gives SGD with momentum, the dot-product loss, order 4,
# |R| = 4 and a small initialization. Its scale, learning rates, batches and steps are ours, found on the seeds 0 to 2:
# with twice or four times the scale, stages merge in some of them. `quick` has order 3.
SGD = {"optimizer": "sgd", "loss": "dot-product", "lr": 0.1, "init_scale": 0.005, "w_scale": 0.001}
ORIGINAL: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "SGD with momentum, dot-product": {
        "quick": {**SGD, "order": 3, "steps": 5000},
        "long": {**SGD, "order": 4, "steps": 25_000},
    },
    "Adam, cross-entropy": {
        "quick": {"order": 3, "steps": 1500},
        "long": {"order": 4, "steps": 4000, "lr": 0.005},
    },
}


class OtherModels(Claim):
    """The original model has one drop more: it first learns to attend to responses, which A3 builds in.

    It is trained as the paper trains, by SGD with momentum on the dot-product loss, and by Adam on the cross-entropy.
    Under the dot-product loss it can also bet on the most common response, which the simplified model cannot do; see
    the README. Its drops are counted in `dot_product`, the loss of the simplified model, for either training.
    """

    id = "R9"
    title = "the original model behaves as the simplified one, and cross-entropy as dot-product"
    reason = {
        "quick": "size: at order 3 the original model passes the same partial predictors in the same order in every "
        "seed, but leaves some of them sooner: plateaus are missing or split. The paper has order 4",
        "long": "size: by SGD two of three seeds of order 4 match no token in 25,000 steps, and one only the first. By "
        "Adam every seed has the paper's drops and order; two of them leave one plateau too soon for its level",
    }
    reference = "A.2, A.3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for loss in ("dot-product", "cross-entropy"):
            runs = lab.each_seed("recall/simplified", {**NOISE, "loss": loss}, probes=PROBES)
            found = {seed: run.timeline for seed, run in runs.items()}
            yield per_seed(equal, f"{loss} loss: drops", found, ORDER - 1, "A.3", of=drops)
            orders = reached_orders({seed: order_of_learning(timeline) for seed, timeline in found.items()})
            yield per_seed(equal, f"{loss} loss: order in which heads learn", orders, list(range(1, ORDER)), "A.3")
        for training, settings in ORIGINAL.items():
            yield from self._original(lab, training, lab.of_budget(settings))

    def _original(self, lab: Lab, training: str, settings: Mapping[str, Any]) -> Iterable[Check]:
        """Yields the checks of the original model, trained in one way."""
        runs = lab.each_seed("recall/original", settings, preset="quick", probes=("kl_to_references",))
        found, order = {seed: run.timeline for seed, run in runs.items()}, settings["order"]
        model = f"original model of order {order}, {training}"
        what = f"{model}: drops of 1 - p_r after the drop that starts attention to responses"
        yield per_seed(equal, what, found, order - 1, "A.2", of=lambda t: drops(t, "dot_product") - 1)
        names = list(partial_matches([(i,) for i in range(1, order)]))
        what = f"{model}: partial predictors that it passes, in order"
        yield per_seed(equal, what, found, names, "A.2, A.4", of=lambda t: reached(matched_sets(t), "none"))
        what = f"{model}: levels of the plateaus of 1 - p_r before the last, from nothing matched on"
        expected = [theory.plateau_loss(order, RESPONSES, j) for j in range(order - 1)]
        on = {seed: _levels_between(timeline, order) for seed, timeline in found.items()}
        yield per_seed(close, what, on, expected, LEVEL, "A.2, A.4")


def _levels_between(timeline: Timeline, order: int) -> list[float | str]:
    """Returns the plateaus of 1 - p_r between the first and the last; in words if their number is not k - 1."""
    found = levels(timeline, "dot_product")[1:-1]
    if len(found) == order - 1:
        return [*found]
    return [f"{len(found)} plateaus: {', '.join(f'{level:.3g}' for level in found)}"] * (order - 1)
