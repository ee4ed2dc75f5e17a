"""The norm of each parameter, and of each head's part of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced
from stagelens_probes.norms import norm, row_norms

HEAD_WEIGHTS = {"W_Q", "W_K", "W_V", "W_O"}  # TransformerLens' names, [head, d_model, d_head] or the like
HEAD_BIASES = {"b_Q", "b_K", "b_V"}  # [head, d_head]


def has_heads(name: str, parameter: Tensor, context: ProbeContext) -> bool:
    """Returns True if the first dimension of `parameter` is the head.

    It must have `cfg.n_heads` rows. A module may list the names of such parameters as `head_parameters`. In other
    modules they are TransformerLens' biases of heads, and parameters of three or more dimensions that have
    TransformerLens' names or belong to a module with a hook of the attention pattern. A matrix does not count: it may
    have as many rows as there are heads by chance.
    """
    owner, _, last = name.rpartition(".")
    if parameter.ndim < 2 or parameter.shape[0] != getattr(getattr(context.model, "cfg", None), "n_heads", None):
        return False
    declared = getattr(context.model.get_submodule(owner), "head_parameters", None)
    if declared is not None:
        return last in declared
    in_attention = last in HEAD_WEIGHTS or f"{owner}.hook_pattern" in context.model.hook_dict
    return last in HEAD_BIASES or (in_attention and parameter.ndim >= 3)


class WeightNorms(Probe):
    """The Frobenius norm of each parameter, and of each head's part of the parameters that have one row per head."""

    name = "weight_norms"
    title = "Frobenius norm of each parameter, and of each head's part of it"
    gives = ("norm", "head_norm")
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        return None if next(context.model.parameters(), None) is not None else "the model has no parameters"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        parameters = dict(context.model.named_parameters())
        norms = torch.stack([norm(p) for p in parameters.values()])
        yield Reading("norm", norms, ("parameter",), {"parameter": list(parameters)})

        heads = {name: p for name, p in parameters.items() if has_heads(name, p, context)}
        heads = heads or getattr(context.model, "head_matrices", dict)()  # of a watched model: parts of its matrices
        if heads:
            per_head = torch.stack([row_norms(p) for p in heads.values()])
            yield Reading("head_norm", per_head, ("head_parameter", "head"), {"head_parameter": list(heads)})
        else:
            yield Omitted("head_norm", "no parameter has a row for each head (cfg.n_heads)")
