"""Probes: the two numbers that the toy model comes down to, and how long its plateau lasts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced
from stagelens_emergence.theory import SHARE, plateau_length


class SingleLocation(Probe):
    """w: W along W* (footnote 1); alpha: attention to a relevant token; relevant: to all B of them.

    `w_repeated` and `w_rest` are w~ and w of A.4.1: along the first column of W*, and along the others.
    """

    name = "single_location"
    title = "W along the target, and the attention to the relevant token"
    gives = ("w", "w_repeated", "w_rest", "alpha", "relevant")
    default = False
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        return None if hasattr(context.model, "W_star") else "the model is not the emergence plugin's toy"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        model: Any = context.model
        along, norms = model.along_target(), model.W_star.norm(dim=0)  # [d]
        yield Reading("w", along.sum() / model.W_star.norm())
        yield Reading("w_repeated", along[0] / norms[0])
        yield Reading("w_rest", along[1:].sum() / norms[1:].norm())
        yield Reading("alpha", model.alpha[-1])
        yield Reading("relevant", model.alpha[-model.B :].sum())


class PlateauLength(Probe):
    """The step at which the loss has fallen to a fifth of its start (D.1); there is no reading before that."""

    name = "plateau_length"
    title = "steps until the loss has fallen to a fifth of its start"
    gives = ("steps",)
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        return None if context.loss_function is not None else "no loss is known to wait for"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        assert context.loss is not None
        now = torch.tensor([float(context.step), float(context.loss)], dtype=torch.float64)
        state = self.state
        state.setdefault("first", now)
        before = state.get("before", now)
        if "length" not in state:
            steps, losses = torch.stack([before, now]).T.tolist()
            length = plateau_length(steps, losses, SHARE * float(state["first"][1]))
            if length == length:
                state["length"] = torch.tensor(length, dtype=torch.float64)
            state["before"] = now
        if "length" in state:
            yield Reading("steps", state["length"])
        else:
            yield Omitted("steps", "the loss has not fallen to a fifth of its start")
