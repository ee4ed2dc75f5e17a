"""KL divergence from the task's reference predictors to the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.base import UsageError
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Reduced, wide
from stagelens_probes.described import KL_TO_REFERENCES
from stagelens_probes.positions import as_index, rows_of
from stagelens_probes.repeats import ONE_SEQUENCE, mean_and_error

SAME = 1e-6  # nats: a reference nearer than this to the uniform predictor counts as uniform
MOST_KEPT = 2**20  # entries of a reference predictor's output that is cached; larger outputs are computed again


def kl_divergences(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Returns the mean of KL(p || q) over the positions of each sequence, in nats, [batch].

    Both are log-probabilities [batch, ..., outcome]. An outcome of probability 0 under p (log p = -inf) contributes 0.
    """
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)  # [batch, ...]
    return kl.reshape(len(kl), -1).mean(1)


class KLToReferences(Probe):
    """The mean of KL(f || model) over the scored positions of the batch, for each reference predictor f.

    It is also given as a fraction of KL(f || uniform), the divergence of the uniform predictor.
    """

    name = "kl_to_references"
    title = "KL divergence from the task's reference predictors to the model"
    gives = ("kl", "kl_error", "fraction", "fraction_error")
    described = KL_TO_REFERENCES

    def applies(self, context: ProbeContext) -> str | None:
        return (
            context.padding()
            if context.references
            else "the task names no reference predictors (`references=` of the recorder)"
        )

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        if not isinstance(context.output, Tensor) or context.output.ndim < 2:
            raise DoesNotApply("the model's output is not logits [batch, (position,) outcome]")
        log_q = wide(scored(context.output, context)).log_softmax(-1)  # [batch, (position,) outcome]
        kl, of_uniform = {}, {}  # [batch] of each reference
        uniform = torch.full_like(log_q, -math.log(log_q.shape[-1]))
        for name, predict in context.references.items():
            log_p = reference(name, predict, context)
            log_p = scored(log_p, context) if log_p.shape == context.output.shape else log_p
            if log_p.shape != log_q.shape:
                raise UsageError(
                    f"reference {name!r} gave shape {tuple(log_p.shape)}; expected the output's "
                    f"{tuple(context.output.shape)}, or its scored positions' {tuple(log_q.shape)}"
                )
            if ("checked", name) not in context.constants:
                check_reference(name, log_p)
                context.constants["checked", name] = True
            kl[name] = kl_divergences(log_p.to(log_q), log_q)
            of_uniform[name] = kl_divergences(log_p.to(log_q), uniform)
        known = {name: values for name, values in kl.items() if of_uniform[name].mean() > SAME}
        scales = {name: of_uniform[name].mean() for name in known}
        fractions = {name: values.mean() / scales[name] for name, values in known.items()}
        # To first order, the error of a ratio of means is the mean of one contribution per sequence.
        added = {name: (values - fractions[name] * of_uniform[name]) / scales[name] for name, values in known.items()}
        yield from _with_error("kl", {name: values.mean() for name, values in kl.items()}, kl)
        if known:
            yield from _with_error("fraction", fractions, added)
        else:
            yield Omitted("fraction", "every reference is the uniform predictor itself")


def _with_error(name: str, values: Mapping[str, Tensor], spread: Mapping[str, Tensor]) -> Iterable[Reading | Omitted]:
    """Yields `values` of each reference, and standard errors from their `spread` over sequences, [batch] each."""
    coords = {"reference": list(values)}
    yield Reading(name, torch.stack(list(values.values())), ("reference",), coords)
    if all(len(over) > 1 for over in spread.values()):
        errors = torch.stack([mean_and_error(over)[1] for over in spread.values()])
        yield Reading(f"{name}_error", errors, ("reference",), coords)
    else:
        yield Omitted(f"{name}_error", ONE_SEQUENCE)


def check_reference(name: str, log_p: Tensor) -> None:
    """Raises UsageError if exp(log_p) [..., outcome] does not sum to 1. Does nothing under `torch.vmap`."""
    total = wide(log_p).exp().sum(-1)
    off = (total - 1).abs().max()
    if _all(off <= (1e-3 if log_p.dtype in (torch.float32, torch.float64) else 2e-2)):
        return
    probabilities = _all((log_p >= 0) & (log_p <= 1)) and _all((log_p.sum(-1) - 1).abs() < 1e-3)
    hint = "these are probabilities: return their logarithm" if probabilities else "return log-probabilities"
    raise UsageError(
        f"reference {name!r}: exp of what it gives sums to {float(total.flatten()[0]):.4g} over the "
        f"{log_p.shape[-1]} outcomes, and 1 was expected; {hint}"
    )


def _all(condition: Tensor) -> bool:
    """True if every entry is true. Returns True under `torch.vmap`, where values cannot be inspected."""
    try:
        return bool(condition.all())
    except RuntimeError:
        return True


def reference(name: str, predict: Callable[[Any], Tensor], context: ProbeContext) -> Tensor:
    """Returns the log-probabilities that `predict` gives for the batch. They are cached unless they are large."""
    key = ("reference", name)
    log_p: Tensor = context.constants[key] if key in context.constants else predict(context.batch)
    if not isinstance(log_p, Tensor):
        raise UsageError(f"reference {name!r} gave a {type(log_p).__name__}; expected a tensor of log-probabilities")
    if log_p.numel() <= MOST_KEPT:
        context.constants[key] = log_p
    return log_p


def scored(output: Tensor, context: ProbeContext) -> Tensor:
    """Returns the positions of `output` [batch, position, outcome] that the task scores; [batch, outcome] unchanged."""
    if output.ndim < 3:
        return output
    rows = rows_of(context.queries, output.shape[1], context.n_inputs, "the output")
    return output[:, as_index(rows, output.device)]
