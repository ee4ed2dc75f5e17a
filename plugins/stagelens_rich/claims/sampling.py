"""The claim about the closed forms, G7: both losses are estimated from sampled sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from stagelens import Check, Claim
from stagelens.base import generator
from stagelens.claims import Lab, close, reported
from stagelens_rich import theory
from stagelens_rich.claims.measures import PAPER
from stagelens_rich.data.toy import sample_tokens
from stagelens_rich.theory import Setting

SEQUENCES = 10**6
CHUNK = 50_000  # sequences that are in memory at once


class LossEstimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


class SecondLayer(NamedTuple):
    """The parameters of the second layer."""

    p: float
    g: float
    w: float
    h: float


def squared_errors(x: Tensor, at: SecondLayer, s: Setting) -> dict[str, Tensor]:
    """Returns half the squared error on each sequence of x [n, L], [n] each.

    `4-gram` is the first head's; `softmax` and `exponential` are the second's, with softmax and with the
    exp(z)/(L-2) of C.3.2 in its place.
    """
    behind = torch.arange(s.L - 3, -1, -1, dtype=x.dtype)  # L - 1 - s for s = 2..L-1
    found = {"4-gram": at.g * x[:, :-2] @ (-at.p * behind).softmax(0) - s.g_star * x[:, -3]}
    key, value = x[:, -1:] * x[:, :-2], x[:, 1:-1]  # x_L x_(s-1) and x_s
    own, target, n = at.w**2 * key, s.w_star**2 * key, s.L - 2  # scores, and how many keys there are
    attention = {"softmax": (own.softmax(1), target.softmax(1)), "exponential": (own.exp() / n, target.exp() / n)}
    for name, (ours, theirs) in attention.items():
        found[name] = at.h * (value * ours).sum(1) - s.h_star * (value * theirs).sum(1)
    return {name: 0.5 * error.square() for name, error in found.items()}


def estimates(at: SecondLayer, s: Setting, n: int, seed: int = 0) -> dict[str, LossEstimate]:
    """Returns the means of `squared_errors` over n sequences, which are sampled in chunks."""
    sums: dict[str, Tensor] = {}
    for chunk, start in enumerate(range(0, n, CHUNK)):
        x = sample_tokens(min(CHUNK, n - start), s.L, 1, s.tokens, generator(seed, "closed forms", chunk))[..., 0]
        for name, error in squared_errors(x, at, s).items():
            moments = torch.stack([error.double().sum(), error.double().square().sum()])
            sums[name] = sums.get(name, torch.zeros(2, dtype=torch.float64)) + moments
    means = {name: (total / n).tolist() for name, total in sums.items()}
    return {name: LossEstimate(a, ((b - a * a) / n) ** 0.5) for name, (a, b) in means.items()}


class ClosedForms(Claim):
    """Eq. 7 is exact. Eq. 10 is exact for exp(z)/(L-2), which replaces the softmax of the model."""

    id, title, reference = "G7", "the closed forms of both losses", "Eqs. 7, 10"

    def checks(self, lab: Lab) -> Iterable[Check]:  # noqa: ARG002
        s = PAPER
        states = {
            "the start": SecondLayer(s.sigma, s.sigma, s.sigma, s.sigma),
            "the plateau": SecondLayer(1.5, 0.6, 0.05, s.h_plateau),
            "emergence": SecondLayer(2.5, 0.55, 0.35, 0.505),
        }
        for where, at in states.items():
            found = estimates(at, s, SEQUENCES)
            exact = {
                "4-gram": theory.four_gram_loss(at.p, at.g, s),
                "exponential": theory.induction_loss(at.w**2, at.h, s),
            }
            for name, equation in (("4-gram", "Eq. 7"), ("exponential", "Eq. 10, for exp(z)/(L-2)")):
                away = (found[name].mean - exact[name]) / found[name].error
                what = f"{equation}, at {where}: distance from the mean of {SEQUENCES:,} sequences, in standard errors"
                yield close(what, away, 0.0, 3.0, equation, relative=False)
            ratio = exact["exponential"] / found["softmax"].mean
            yield reported(f"Eq. 10 over the loss with softmax, at {where}", ratio, "Eq. 10")
