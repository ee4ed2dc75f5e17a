"""KL divergence from the task's reference predictors to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.base import UsageError
from stagelens.recording import DoesNotApply, ProbeContext, Reduced, wide
from stagelens_probes.positions import as_index, rows_of

MOST_KEPT = 2**20  # entries of a reference predictor's output that is cached; larger outputs are computed again


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Returns the mean over all positions of KL(p || q) in nats, from log-probabilities [..., outcome].

    An outcome of probability 0 under p (log p = -inf) contributes 0.
    """
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1).mean()


class KLToReferences(Probe):
    """The mean of KL(f || model) over the scored positions of the batch, for each reference predictor f."""

    name = "kl_to_references"
    title = "KL divergence from the task's reference predictors to the model"
    gives = ("kl",)

    def applies(self, context: ProbeContext) -> str | None:
        return context.padding() if context.references else "the task names no reference predictors"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        if not isinstance(context.output, Tensor) or context.output.ndim < 2:
            raise DoesNotApply("the model's output is not logits [batch, (position,) outcome]")
        log_q = wide(scored(context.output, context)).log_softmax(-1)  # [batch, (position,) outcome]
        values = []
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
            values.append(kl_divergence(log_p.to(log_q), log_q))
        yield Reading("kl", torch.stack(values), ("reference",), {"reference": list(context.references)})


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
