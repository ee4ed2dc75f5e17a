"""Fourier analysis of the embedding of the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from stagelens import Probe, Reading
from stagelens.recording import Reduced
from stagelens.timelines import ReadingInfo
from torch import Tensor


class Fourier(Probe):
    """The discrete Fourier transform of the embedding of 0, 1, ..., p - 1.

    `power` is the fraction of the embedding's squared norm in each frequency, without the constant part.
    `concentration` is the sum of the three largest: about 6 / p for a random embedding, and near 1 if the model adds by
    a few rotations.
    """

    name = "fourier"
    title = "how the embedding of the numbers spreads over the frequencies of the cyclic group"
    described = {
        "power": ReadingInfo("fraction of the squared norm in each frequency", ("frequency",), "fraction", 0, 1),
        "concentration": ReadingInfo("sum of the three largest", (), "fraction", 0, 1, "about 6 / p"),
    }
    default = False

    def applies(self, context: Any) -> str | None:
        return None if hasattr(context.model, "W_E") else "the model has no embedding W_E"

    def readings(self, reduced: Reduced, context: Any) -> Iterable[Reading]:
        power = spectrum(context.model.W_E[:-1])  # the last token is the sign `=`
        yield Reading("power", power, ("frequency",), {"frequency": range(1, len(power) + 1)})
        yield Reading("concentration", power.topk(min(3, len(power))).values.sum())


def spectrum(embedding: Tensor) -> Tensor:
    """Returns the fraction of the power of `embedding` [p, d] in each frequency 1, ..., p // 2."""
    power = torch.fft.rfft(embedding, dim=0).abs().square().sum(1)[1:]
    return power / power.sum()
