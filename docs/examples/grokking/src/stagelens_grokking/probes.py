"""Fourier analysis of what the model knows about the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from stagelens import Probe, Reading
from stagelens.recording import Reduced
from torch import Tensor


class Fourier(Probe):
    """The embedding of 0, 1, ..., p - 1 as waves on a circle.

    `power` is each frequency's share of the embedding's squared norm (the constant part left out), `concentration` what
    the three strongest have together: about 3 / (p / 2) at random, near 1 where addition is done by a few rotations.
    """

    name = "fourier"
    title = "how the embedding of the numbers spreads over the frequencies of the cyclic group"
    gives = ("power", "concentration")
    default = False

    def applies(self, context: Any) -> str | None:
        return None if hasattr(context.model, "W_E") else "the model has no embedding W_E"

    def readings(self, reduced: Reduced, context: Any) -> Iterable[Reading]:
        power = spectrum(context.model.W_E[:-1])  # the last token is the sign `=`
        yield Reading("power", power, ("frequency",), {"frequency": range(1, len(power) + 1)})
        yield Reading("concentration", power.topk(min(3, len(power))).values.sum())


def spectrum(embedding: Tensor) -> Tensor:
    """embedding [p, d] -> the share of each frequency 1, ..., p // 2."""
    power = torch.fft.rfft(embedding, dim=0).abs().square().sum(1)[1:]
    return power / power.sum()
