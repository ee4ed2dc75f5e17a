"""Quantities that training conserves according to theory, and their drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import ProbeContext, Reduced
from stagelens_probes.described import CONSERVED


def named_numbers(quantities: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
    """Returns the name of each number, `name` of a scalar or `name[i,j]` of an array's entry, and the numbers."""
    arrays = {name: torch.as_tensor(value).detach().cpu().double() for name, value in quantities.items()}
    names = [
        f"{name}[{','.join(map(str, index))}]" if index else name
        for name, array in arrays.items()
        for index in product(*map(range, array.shape))
    ]
    return names, torch.cat([array.flatten() for array in arrays.values()])


class Conserved(Probe):
    """The task's conserved quantities and their drift |value - first| / |first|, or |value| if the first value is 0."""

    name = "conserved"
    title = "the task's conserved quantities and their drift"
    described = CONSERVED

    def applies(self, context: ProbeContext) -> str | None:
        if context.conserved is None or not context.conserved(context.model):
            return "the task names no conserved quantities"
        return None

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        assert context.conserved is not None  # applies() checked it
        names, value = named_numbers(context.conserved(context.model))  # [quantity]
        first = self.state.setdefault("first", value.clone()).to(value)
        drift = (value - first).abs() / torch.where(first == 0, 1.0, first.abs())
        coords = {"quantity": names}
        yield Reading("value", value, ("quantity",), coords)
        yield Reading("drift", drift, ("quantity",), coords)
