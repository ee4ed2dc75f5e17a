"""What the paper states, measured: R1 to R9.

Above the claims stand the functions that read a number or a list off a timeline. A head counts as learned when its
beta has left zero for good: when it exceeds 1, ten times the largest beta that any run here starts from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from stagelens import Check, Claim, Run, Timeline
from stagelens.claims import NOT_REACHED, Lab, at_least, at_most, close, equal, in_every_seed, reached, reported
from stagelens_recall import theory
from stagelens_recall.learning import partial_matches

Floats = NDArray[np.float64]

ORDER, RESPONSES = 4, 4  # the paper's experiments (A.6)
BETAS = (0.1, 0.03, 0.01)
LEARNED = 1.0  # a beta that has left zero
ONE_HOT, DIFFUSE = 0.8, 0.35  # attention of a head on its own token, where an even one has 1/k = 0.25
PROBES = ("head_specialization", "recall_circuit")
NOISE = {"init_scale": 0.001}  # of w at the start, so that seeds differ; well below the smallest beta
FIRST_JUMP = {"betas": [0.1, 0.0, 0.0], "time": 5000.0, "rtol": 1e-12, "atol": 1e-14}  # I_1, with epsilon = 0.1


def learned_at(timeline: Timeline) -> dict[int, float]:
    """When each head (from 1) was learned; heads that never were are left out."""
    betas = timeline.series("recall_circuit/beta")  # [step, head]
    return {
        h: float(timeline.steps[np.argmax(column > LEARNED)])
        for h, column in enumerate(betas.T, start=1)
        if column[-1] > LEARNED
    }


def order_of_learning(timeline: Timeline) -> list[int]:
    times = learned_at(timeline)
    return sorted(times, key=lambda head: times[head])


def plateau_indices(timeline: Timeline) -> list[int]:
    """A measurement on each plateau of the loss: the one nearest to the middle between the drops beside it."""
    from stagelens import detect_stages

    steps, values = timeline.scalar("loss")
    drops = [t.at for t in detect_stages(steps, values).transitions]
    edges = [float(steps[0]), *drops, float(steps[-1])]
    return [int(np.abs(timeline.steps - (a + b) / 2).argmin()) for a, b in pairwise(edges)]


def levels(timeline: Timeline) -> list[float]:
    """The loss on each plateau."""
    from stagelens import detect_stages

    return [plateau.level for plateau in detect_stages(*timeline.scalar("loss")).plateaus]


def active_heads(timeline: Timeline) -> list[list[int]]:
    """For each plateau, the heads whose beta has left zero."""
    betas = timeline.series("recall_circuit/beta")
    return [[h for h, beta in enumerate(betas[i], start=1) if beta > LEARNED] for i in plateau_indices(timeline)]


def own_attention(timeline: Timeline) -> Floats:
    """[plateau, head]: how much of its attention each head has on its own token."""
    mass = timeline.series("head_specialization/mass")[plateau_indices(timeline), 0]  # [plateau, head, group]
    return np.asarray(mass[:, range(mass.shape[1]), range(mass.shape[1])])


def farthest(one: Timeline, other: Timeline, name: str) -> float:
    """The largest distance between head 1's `name` in two flows recorded at the same times."""
    return float(np.abs(one.series(name)[:, 0] - other.series(name)[:, 0]).max())


def drift(timeline: Timeline, form: str) -> float:
    """How far head 1's f(alpha) - beta^2/4 moves; `form` says whose sign of the last term of f."""
    return float(np.ptp(timeline.series(f"conserved/{form}")[:, 0]))


def escape_time(run: Run) -> float:
    """When the loss of a flow is half-way down its first drop; nan: not by the end."""
    return float(run.manifest.events.get("escape", np.nan))


def straightness(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope and R2 of a line through y over x; nan if there are fewer than three numbers, or one is missing."""
    if len(x) < 3 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan"), float("nan")
    slope, shift = np.polyfit(x, y, 1)
    return float(slope), float(1 - ((y - slope * x - shift) ** 2).sum() / ((y - y.mean()) ** 2).sum())


class Stages(Claim):
    id = "R1"
    title = "staged plateaus, one head and beta at a time"
    reference = "Fig. 1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        found = lab.each_seed("recall/simplified", NOISE, probes=PROBES)
        timelines = {seed: run.timeline for seed, run in found.items()}
        expected = [theory.plateau_loss(ORDER, RESPONSES, j) for j in range(ORDER)]
        where = self.reference
        yield in_every_seed(
            {s: equal("plateaus of the loss", len(levels(t)), ORDER, where) for s, t in timelines.items()}
        )
        if any(len(levels(t)) != ORDER for t in timelines.values()):
            return
        what = "losses on the plateaus with 0, 1 and 2 tokens matched"
        yield in_every_seed(
            {s: close(what, levels(t)[:-1], expected[:-1], 0.01, f"A.4; {where}") for s, t in timelines.items()}
        )
        what = "loss on the last plateau, in units of the first"
        yield in_every_seed(
            {s: at_most(what, levels(t)[-1] / expected[0], 0.01, f"A.4; {where}") for s, t in timelines.items()}
        )
        what, grown = "heads whose beta has left zero, on each plateau", [[], [1], [1, 2], [1, 2, 3]]
        yield in_every_seed(
            {s: equal(what, _named(active_heads(t)), _named(grown), where) for s, t in timelines.items()}
        )
        what = "attention of learned heads on their own token, on the plateau after their drop"
        yield in_every_seed(
            {
                s: at_least(what, [float(own_attention(t)[h, h - 1]) for h in range(1, ORDER)], ONE_HOT, where)
                for s, t in timelines.items()
            }
        )
        what = "attention of heads on their own token, on the plateau before their drop"
        yield in_every_seed(
            {
                s: at_most(what, [float(own_attention(t)[h - 1, h - 1]) for h in range(1, ORDER)], DIFFUSE, where)
                for s, t in timelines.items()
            }
        )


def _named(heads: list[list[int]]) -> list[str]:
    """Lists of heads as words, so that an empty one is a measurement too."""
    return [",".join(map(str, some)) or "none" for some in heads]


class OrderOfBetas(Claim):
    id = "R2"
    title = "the order of learning is the order of the initial betas"
    reference = "Fig. 4"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for betas in permutations(BETAS):
            settings = {**NOISE, "betas": list(betas), "lr": 1.0, "steps": 700}
            expected = [int(h) + 1 for h in np.argsort(betas)[::-1]]
            what = f"order in which heads learn, from betas {', '.join(f'{b:g}' for b in betas)}"
            runs = lab.each_seed("recall/simplified", settings, probes=PROBES[1:])
            yield in_every_seed(
                {
                    s: equal(what, order_of_learning(run.timeline) or "none", expected, self.reference)
                    for s, run in runs.items()
                }
            )


class DirectionalBias(Claim):
    id = "R3"
    title = "from I_1, the first head moves along e_1 and 1 only, towards its own token"
    reference = "Theorem 3.1a, b"

    def checks(self, lab: Lab) -> Iterable[Check]:
        w = lab.run("recall/flow", FIRST_JUMP).timeline.series("w")  # [time, head, token]
        spread = float(np.ptp(w[:, 0, 1:], axis=1).max())
        yield at_most("distance of w^1 from span(e_1, 1)", spread, 1e-8, "Theorem 3.1a")
        least = float(np.diff(w[:, 0, 0]).min()), float(-np.diff(w[:, 0, 1:], axis=0).max())
        yield at_least("least rise of w^1_1 and fall of w^1_i between two records", list(least), 1e-15, "Theorem 3.1b")
        yield at_most("movement of the other heads", float(np.abs(w[:, 1:]).max()), 0.0, "after Theorem 3.1")


class SufficientODE(Claim):
    id = "R4"
    title = "the first jump follows two equations, with Xi as in the proof and not as in Eq. 4"
    reference = "Theorem 3.1c"

    def checks(self, lab: Lab) -> Iterable[Check]:
        full = lab.run("recall/flow", FIRST_JUMP)
        ours = lab.run("recall/flow", {**FIRST_JUMP, "system": "first-jump"})
        eq4 = lab.run("recall/flow", {**FIRST_JUMP, "system": "first-jump", "rate": 2.0})
        for name in ("alpha", "beta"):
            distance = farthest(full.timeline, ours.timeline, name)
            yield at_most(f"{name}_1, equations against the whole flow", distance, 1e-6, "Theorem 3.1c, Lemma C.3")
        times = {run: escape_time(run) for run in (full, ours, eq4)}
        what = "time of the jump: equations with Xi = -(1 + gamma) E Delta_11, over that of the flow"
        yield close(what, reached(times[ours] / times[full]), 1.0, 1e-6, "proof of Theorem 3.1, before Xi is named")
        what = "time of the jump: equations with Eq. 4's Xi, which has a factor 2 more, over that of the flow"
        yield reported(what, reached(times[eq4] / times[full]), "Eq. 4")
        forms = {"without Eq. 4's factor 2": times[ours], "with Eq. 4's factor 2": times[eq4]}
        known = np.isfinite(list(times.values())).all()
        closest = min(forms, key=lambda form: abs(forms[form] - times[full])) if known else NOT_REACHED
        yield equal("the form that the flow supports", closest, "without Eq. 4's factor 2", "Eqs. 4, 5, 6")


class Conservation(Claim):
    id = "R5"
    title = "f(alpha) - beta^2/4 is conserved, with the proof's sign of the last term"
    reference = "Theorem 3.1d"

    def checks(self, lab: Lab) -> Iterable[Check]:
        for system in ("full", "first-jump"):
            timeline = lab.run("recall/flow", {**FIRST_JUMP, "system": system}).timeline
            yield at_most(f"drift with + (k-1)/k [...], {system}", drift(timeline, "proof"), 1e-8, "proof, B.1")
            yield reported(f"drift with - (k-1)/k [...], {system}", drift(timeline, "statement"), "statement, 3.1d")
        drifts = {form: drift(timeline, form) for form in ("proof", "statement")}
        yield equal("the sign that is conserved", min(drifts, key=lambda form: drifts[form]), "proof", "Theorem 3.1d")


class PlateauLength(Claim):
    id = "R6"
    title = "the first plateau lasts O(1/epsilon)"
    reference = "after Theorem 3.1"

    def checks(self, lab: Lab) -> Iterable[Check]:
        epsilons = [0.04, 0.02, 0.01, 0.005]
        times = []
        for epsilon in epsilons:
            end = 2 * theory.escape_law(epsilon, ORDER, RESPONSES)
            run = lab.run("recall/flow", {"betas": [epsilon, 0.0, 0.0], "time": end, "points": 50})
            times.append(escape_time(run))
        exponent, _ = straightness(np.log(epsilons), np.log(times))
        what = "exponent of the plateau's length in epsilon"
        yield close(what, reached(exponent), -1.0, 0.05, self.reference, relative=False)
        law = [theory.escape_law(epsilon, ORDER, RESPONSES) for epsilon in epsilons]
        what = "length at epsilon = 0.005 over (pi/2)(k-1)/(c Xi_0 epsilon), c^2 = 2(k-1)/k"
        yield close(what, reached(times[-1] / law[-1]), 1.0, 0.02, "s = epsilon tan(epsilon T), with our constants")


class LateGrowth(Claim):
    id = "R7"
    title = "after the jump alpha grows like log log t"
    reference = "Eq. 3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        settings = {"betas": [0.1, 0.0, 0.0], "system": "first-jump", "time": 1e12, "points": 600, "method": "LSODA"}
        timeline = lab.run("recall/flow", settings).timeline
        late = timeline.steps > 100 * theory.escape_time(0.1, ORDER, RESPONSES)
        alpha = timeline.series("alpha")[late, 0]
        slope, r2 = straightness(np.log(np.log(timeline.steps[late])), alpha)
        what = "R2 of alpha over log log t, from 100 plateau lengths on to 1e12"
        yield at_least(what, reached(r2), 0.98, self.reference)
        yield reported("slope of alpha over log log t (1 to leading order)", reached(slope), self.reference)


class LaterJumps(Claim):
    """What is compared in the second part.

    I_h as A.6 writes it starts head h from w^h = 0 over all k tokens of its window, h - 1 of which the learned heads
    have settled: they cannot match any more, but take a share of the softmax. The first jump of order k - h + 1 has no
    such tokens. So the curve as stated is compared first, and then the one where head h does not see those tokens.
    """

    id = "R8"
    title = "later jumps are first jumps of lower order"
    reference = "Proposition A.2"

    def checks(self, lab: Lab) -> Iterable[Check]:
        yield from self._stationary()
        for h in (2, 3):
            where, lower = "Proposition A.2b", ORDER - h + 1
            plain, blind, first = (self._jump(lab, h, kind) for kind in ("plain", "blind", "first"))
            what = f"jump {h} from I_{h}: distance of its loss from that of the first jump of order {lower}, in drops"
            yield at_most(what, reached(_distance(plain, first, h)), 0.05, where)
            stretch = reached(escape_time(plain) / escape_time(first))
            what = f"jump {h} from I_{h}: its time over the other's, where k/(k - h + 1) = {ORDER / lower:.4g}"
            yield reported(what, stretch, where)
            what = f"jump {h}, settled tokens hidden from head {h}: distance from the same, in drops"
            yield at_most(what, reached(_distance(blind, first, h)), 1e-6, "proof of Proposition A.2, on P_S")

    def _stationary(self) -> Iterator[Check]:
        from stagelens_recall.flow import GradientFlow, RecallFlowConfig

        scores = np.array([10.0, 15.0, 20.0, 25.0, 30.0])
        for h in (2, 3):
            sizes = []
            for c in scores:
                config = RecallFlowConfig(betas=_betas_of_jump(h), learned=h - 1, learned_score=float(c))
                start = GradientFlow(config).initial()
                d_w, d_beta = theory.population_gradient(start["w"], start["beta"], RESPONSES)
                beta = start["beta"][: h - 1]
                parts = np.abs(d_w[: h - 1]).max(1) / beta**2, np.abs(d_beta[: h - 1]) / beta  # as in Eqs. 7, 8
                sizes.append([float(part.max()) for part in parts])
            slopes = [straightness(scores, column)[0] for column in np.log(sizes).T]
            what = f"I_{h}: slope of the log gradients of w and beta of learned heads over c, the score of a match"
            yield close(what, slopes, [-1.0, -1.0], 0.05, "Proposition A.2a")

    def _jump(self, lab: Lab, h: int, kind: str) -> Run:
        if kind == "first":
            betas = [_betas_of_jump(h)[h - 1]] + [0.0] * (ORDER - 1 - h)
            return lab.run(
                "recall/flow", {"order": ORDER - h + 1, "betas": betas, "system": "first-jump", "time": 2500.0}
            )
        settings = {"betas": list(_betas_of_jump(h)), "learned": h - 1, "blind": kind == "blind", "time": 2500.0}
        return lab.run("recall/flow", settings)


def _betas_of_jump(h: int) -> tuple[float, ...]:
    """The betas of I_h: learned heads get theirs from the flow; epsilon = 0.05 for head h, 0 for those after it."""
    return (0.1,) * (h - 1) + (0.05,) + (0.0,) * (ORDER - 1 - h)


def _distance(one: Run, other: Run, h: int) -> float:
    """The largest distance between two losses through jump h, in units of its drop; nan if one does not jump."""
    if not np.isfinite([escape_time(one), escape_time(other)]).all():
        return float("nan")
    drop = theory.plateau_loss(ORDER, RESPONSES, h - 1) - theory.plateau_loss(ORDER, RESPONSES, h)
    return float(np.abs(one.timeline.scalar("loss")[1] - other.timeline.scalar("loss")[1]).max() / drop)


def matched_sets(timeline: Timeline) -> list[str]:
    """Which partial predictors f^N the model is nearest to by KL divergence, in order; single visits do not count."""
    column, divergence = timeline.column("kl_to_references/kl"), timeline.series("kl_to_references/kl")
    nearest = [column.coordinate("reference")[i] for i in divergence.argmin(1)]
    visits = [(name, len(list(visit))) for name, visit in groupby(nearest)]
    return [name for name, _ in groupby(name for name, length in visits if length > 1)]


def drops(timeline: Timeline, series: str = "loss") -> int:
    """The number of transitions of the loss, or of another series."""
    from stagelens import detect_stages

    return len(detect_stages(*timeline.scalar(series)).transitions)


class OtherModels(Claim):
    """The original model first learns to attend to responses, which A3 gives to the simplified one: one drop more.

    It is trained on the cross-entropy. With the dot-product loss it also learns to bet on the commonest response, which
    the simplified model cannot see; the README says more. Its drops are counted in `dot_product`, the simplified
    model's own loss, and those of its cross-entropy reported. The quick budget has order 3, the paper's order 4.
    """

    id = "R9"
    title = "the original model behaves as the simplified one, and cross-entropy as dot-product"
    reference = "A.2, A.3"

    def checks(self, lab: Lab) -> Iterable[Check]:
        expected = list(range(1, ORDER))
        for loss in ("dot-product", "cross-entropy"):
            found = lab.each_seed("recall/simplified", {**NOISE, "loss": loss}, probes=PROBES)
            timelines = {seed: run.timeline for seed, run in found.items()}
            what = f"{loss} loss: drops"
            yield in_every_seed({s: equal(what, drops(t), ORDER - 1, "A.3") for s, t in timelines.items()})
            what = f"{loss} loss: order in which heads learn"
            yield in_every_seed(
                {s: equal(what, order_of_learning(t) or "none", expected, "A.3") for s, t in timelines.items()}
            )
        found = lab.each_seed("recall/original", probes=("kl_to_references",))
        order = next(iter(found.values())).experiment.config.order
        timelines = {seed: run.timeline for seed, run in found.items()}
        what = f"original model of order {order}: drops of 1 - p_r after the one to attending responses"
        counted = {s: drops(t, "dot_product") - 1 for s, t in timelines.items()}
        yield in_every_seed({s: equal(what, count, order - 1, "A.2") for s, count in counted.items()})
        what = f"original model of order {order}: the same of its cross-entropy"
        yield in_every_seed({s: reported(what, drops(t) - 1, "A.2") for s, t in timelines.items()})
        what = f"original model of order {order}: partial predictors passed"
        names = list(partial_matches([(i,) for i in range(1, order)]))
        yield in_every_seed(
            {s: equal(what, matched_sets(t) or "none", names, "A.2, A.4") for s, t in timelines.items()}
        )
